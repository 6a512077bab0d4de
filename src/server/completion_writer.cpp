#include "server/completion_writer.h"

#include "server/collecting_writer.h"
#include "server/completion_logprobs.h"
#include "server/event_stream_writer.h"
#include "server/sse.h"
#include "text/unicode.h"

namespace percheron::server {
namespace {

using Scores = std::vector<EngineEvents::Logprobs>;

std::string head_of(const ReplyIdentity& identity) {
    std::string json = R"({"id":)";
    append_quoted(json, identity.id);
    json += R"(,"object":"text_completion","created":)";
    append_number(json, identity.created);
    json += R"(,"model":)";
    append_quoted(json, identity.model);
    return json;
}

// The parts of a choice that both forms write.
class ChoiceText {
  public:
    ChoiceText(const CompletionWriterOptions& options, const Tokenizer& tokenizer)
        : options_(options), tokenizer_(tokenizer) {}

    const CompletionPrompt& prompt_of(std::uint32_t index) const {
        return (*options_.prompts)[index / options_.choices];
    }

    // Adds the prompt's tokens; returns where its text ends.
    std::uint64_t add_prompt(CompletionLogprobs& logprobs, std::uint32_t index,
                             const Scores& scores) const {
        const std::vector<TokenId>& ids = prompt_of(index).ids;
        std::uint64_t offset = 0;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const bool scored = i > 0 && i <= scores.size();
            offset = logprobs.add(ids[i], scored ? &scores[i - 1] : nullptr, offset);
        }
        return offset;
    }
    std::uint64_t add_tokens(CompletionLogprobs& logprobs, std::span<const TokenDetail> tokens,
                             std::uint64_t offset) const {
        for (const TokenDetail& token : tokens) {
            offset = logprobs.add(token.id, token.logprobs ? &*token.logprobs : nullptr, offset);
        }
        return offset;
    }

    // What stands behind the text: log-probs, ids, how it ended (`end` null: it has not).
    void append_details(std::string& json, const CompletionLogprobs& logprobs,
                        std::span<const TokenDetail> tokens, const ChoiceEnd* end) const {
        if (options_.logprobs) {
            json += R"(,"logprobs":)";
            logprobs.append_to(json);
        }
        if (options_.token_ids) {
            json += R"(,"token_ids":)";
            append_token_ids(json, tokens);
        }
        json += R"(,"finish_reason":)";
        if (end == nullptr) {
            json += "null}";
            return;
        }
        append_quoted(json, end->finish_reason);
        json += R"(,"stop_reason":)";
        append_quoted(json, end->stop_reason);
        json += '}';
    }

    const CompletionWriterOptions& options() const { return options_; }
    const Tokenizer& tokenizer() const { return tokenizer_; }

  private:
    CompletionWriterOptions options_;
    const Tokenizer& tokenizer_;
};

std::string shown(const CompletionPrompt& prompt) {
    return with_replacements(prompt.text);
}

class CompletionWriter final : public CollectingWriter {
  public:
    CompletionWriter(const WriterSetting& setting, const CompletionWriterOptions& options)
        : CollectingWriter(setting, options.prompts->size() * options.choices),
          form_(options, setting.tokenizer),
          scores_(options.prompts->size()) {}

    void prompt_scores(std::uint32_t choice,
                       std::span<const EngineEvents::Logprobs> scores) override {
        Scores& known = scores_[choice / form_.options().choices];
        known.insert(known.end(), scores.begin(), scores.end());
    }

  private:
    std::string render(const ReplyUsage& usage) override {
        std::string json = head_of(identity()) + R"(,"choices":[)";
        for (std::uint32_t index = 0; index < choices().size(); ++index) {
            if (index > 0) json += ',';
            append_choice(json, index);
        }
        json += R"(],"usage":)";
        append_usage(json, usage);
        json += R"(,"seed":)";
        append_number(json, choices()[0].end.seed);
        json += '}';
        return json;
    }

    void append_choice(std::string& json, std::uint32_t index) const {
        const CollectedChoice& choice = choices()[index];
        const bool echo = form_.options().echo;
        json += R"({"index":)";
        append_number(json, std::uint64_t{index});
        json += R"(,"text":")";
        if (echo) append_escaped(json, shown(form_.prompt_of(index)));
        append_escaped(json, choice.text_of(ReplyBlock::Kind::content));
        json += '"';
        CompletionLogprobs logprobs(form_.tokenizer());
        if (form_.options().logprobs) {
            const Scores& scores = scores_[index / form_.options().choices];
            const std::uint64_t offset = echo ? form_.add_prompt(logprobs, index, scores) : 0;
            form_.add_tokens(logprobs, choice.tokens, offset);
        }
        form_.append_details(json, logprobs, choice.tokens, &choice.end);
    }

    ChoiceText form_;
    std::vector<Scores> scores_;  // of each prompt
};

class CompletionStreamWriter final : public EventStreamWriter {
  public:
    CompletionStreamWriter(const WriterSetting& setting, const CompletionWriterOptions& options)
        : EventStreamWriter(setting.exchange),
          form_(options, setting.tokenizer),
          head_("data: " + head_of(setting.identity)),
          scores_(options.prompts->size()),
          choices_(options.prompts->size() * options.choices) {}

    void prompt_scores(std::uint32_t index,
                       std::span<const EngineEvents::Logprobs> scores) override {
        Scores& known = scores_[index / form_.options().choices];
        known.insert(known.end(), scores.begin(), scores.end());
    }

    void progress(const PromptProgress& progress) override {
        text() += head_ + R"(,"choices":[],)";
        append_progress(text(), progress);
        text() += "}\n\n";
        flush();
    }

    void pieces(std::uint32_t index, std::span<const ReplyPiece> pieces,
                const ReplyUsage& usage) override {
        echo(index, usage);
        for (const ReplyPiece& piece : pieces)
            append_event(index, piece.event.text, piece.tokens, nullptr, usage);
        flush();
    }

    void end_choice(std::uint32_t index, const ChoiceEnd& end, const ReplyUsage& usage) override {
        echo(index, usage);
        append_event(index, "", end.rest, &end, usage);
        // The last choice's end goes out together with what follows it.
        if (++ended_ < choices_.size()) flush();
    }

    void end(const ReplyUsage& usage) override {
        if (form_.options().include_usage) {
            text() += head_ + R"(,"choices":[],"usage":)";
            append_usage(text(), usage);
            text() += "}\n\n";
        }
        text() += "data: [DONE]\n\n";
        close();
    }

  private:
    struct Choice {
        bool echoed = false;
        std::uint64_t offset = 0;
    };

    void append_failure(const ApiError& error) override {
        text() += "data: " + error_json(error) + "\n\ndata: [DONE]\n\n";
    }

    // The prompt comes with the first of its reply, when all of it has been scored.
    void echo(std::uint32_t index, const ReplyUsage& usage) {
        Choice& choice = choices_[index];
        if (!form_.options().echo || choice.echoed) return;
        choice.echoed = true;
        CompletionLogprobs logprobs(form_.tokenizer());
        if (form_.options().logprobs) {
            const Scores& scores = scores_[index / form_.options().choices];
            choice.offset = form_.add_prompt(logprobs, index, scores);
        }
        append_event(index, shown(form_.prompt_of(index)), logprobs, {}, nullptr, usage);
    }

    void append_event(std::uint32_t index, std::string_view piece,
                      std::span<const TokenDetail> tokens, const ChoiceEnd* end,
                      const ReplyUsage& usage) {
        CompletionLogprobs logprobs(form_.tokenizer());
        Choice& choice = choices_[index];
        if (form_.options().logprobs) {
            choice.offset = form_.add_tokens(logprobs, tokens, choice.offset);
        }
        append_event(index, piece, logprobs, tokens, end, usage);
    }

    void append_event(std::uint32_t index, std::string_view piece,
                      const CompletionLogprobs& logprobs, std::span<const TokenDetail> tokens,
                      const ChoiceEnd* end, const ReplyUsage& usage) {
        std::string& json = text();
        json += head_;
        json += R"(,"choices":[{"index":)";
        append_number(json, std::uint64_t{index});
        json += R"(,"text":)";
        append_quoted(json, piece);
        form_.append_details(json, logprobs, tokens, end);
        json += ']';
        if (end != nullptr) {
            json += R"(,"seed":)";
            append_number(json, end->seed);
        }
        if (form_.options().continuous_usage) {
            json += R"(,"usage":)";
            append_usage(json, usage);
        }
        json += "}\n\n";
    }

    ChoiceText form_;
    std::string head_;
    std::vector<Scores> scores_;  // of each prompt
    std::vector<Choice> choices_;
    std::size_t ended_ = 0;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_completion_stream_writer(const WriterSetting& setting,
                                                           const CompletionWriterOptions& options) {
    return std::make_unique<CompletionStreamWriter>(setting, options);
}

std::unique_ptr<ReplyWriter> make_completion_writer(const WriterSetting& setting,
                                                    const CompletionWriterOptions& options) {
    return std::make_unique<CompletionWriter>(setting, options);
}

}  // namespace percheron::server
