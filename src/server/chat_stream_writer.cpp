#include "server/chat_writer.h"
#include "server/event_stream_writer.h"

namespace percheron::server {
namespace {

using Kind = ReplyEvent::Kind;

class ChatStreamWriter final : public EventStreamWriter {
  public:
    ChatStreamWriter(const WriterSetting& setting, const ChatWriterOptions& options)
        : EventStreamWriter(setting.exchange), options_(options), tokenizer_(setting.tokenizer) {
        const ReplyIdentity& identity = setting.identity;
        head_ = R"(data: {"id":)";
        append_quoted(head_, identity.id);
        head_ += R"(,"object":"chat.completion.chunk","created":)";
        append_number(head_, identity.created);
        head_ += R"(,"model":)";
        append_quoted(head_, identity.model);
        effort_ = R"(,"reasoning_effort":)";
        append_quoted(effort_, identity.reasoning_effort);
        for (std::uint32_t index = 0; index < options_.choices; ++index) {
            std::string start = head_ + R"(,"choices":[{"index":)";
            append_number(start, std::uint64_t{index});
            start += R"(,"delta":{)";
            choice_heads_.push_back(std::move(start));
        }
        role_sent_.resize(options_.choices);
    }

    void progress(const PromptProgress& progress) override {
        text() += head_;
        text() += R"(,"choices":[],)";
        append_progress(text(), progress);
        text() += "}\n\n";
        flush();
    }

    void pieces(std::uint32_t choice, std::span<const ReplyPiece> pieces,
                const ReplyUsage& usage) override {
        for (const ReplyPiece& piece : pieces) {
            open_delta(choice);
            append_delta(piece.event);
            text() += '}';
            append_details(piece.tokens);
            text() += R"(,"finish_reason":null}])";
            close_event(usage);
        }
        flush();
    }

    void end_choice(std::uint32_t choice, const ChoiceEnd& end, const ReplyUsage& usage) override {
        open_delta(choice);
        std::string& text = this->text();
        if (text.back() == ',') text.pop_back();  // after the role stands nothing
        text += '}';
        if (!end.rest.empty()) append_details(end.rest);
        text += R"(,"finish_reason":)";
        append_quoted(text, end.finish_reason);
        text += R"(,"stop_reason":)";
        append_quoted(text, end.stop_reason);
        text += R"(}],"seed":)";
        append_number(text, end.seed);
        text += effort_;
        close_event(usage);
        // The last choice's end goes out together with what follows it.
        if (++ended_ < options_.choices) flush();
    }

    void end(const ReplyUsage& usage) override {
        std::string& text = this->text();
        if (options_.include_usage) {
            text += head_;
            text += R"(,"choices":[],"usage":)";
            append_usage(text, usage);
            text += "}\n\n";
        }
        text += "data: [DONE]\n\n";
        close();
    }

  private:
    void append_failure(const ApiError& error) override {
        text() += "data: " + error_json(error) + "\n\ndata: [DONE]\n\n";
    }

    void open_delta(std::uint32_t choice) {
        text() += choice_heads_[choice];
        if (role_sent_[choice]) return;
        role_sent_[choice] = true;
        text() += R"("role":"assistant",)";
    }

    void append_delta(const ReplyEvent& event) {
        std::string& text = this->text();
        switch (event.kind) {
            case Kind::content:
                text += R"("content":")";
                append_escaped(text, event.text);
                text += '"';
                break;
            case Kind::reasoning: {
                // Clients read one name or the other; both get the same text.
                text += R"("reasoning_content":")";
                const std::size_t begin = text.size();
                append_escaped(text, event.text);
                const std::size_t length = text.size() - begin;
                text += R"(","reasoning":")";
                text.append(text, begin, length);
                text += '"';
                break;
            }
            case Kind::tool_begin:
                open_call(event);
                text += R"(,"id":)";
                append_quoted(text, event.call_id);
                text += R"(,"type":"function","function":{"name":)";
                append_quoted(text, event.text);
                text += R"(,"arguments":""}}])";
                break;
            case Kind::tool_arguments:
                open_call(event);
                text += R"(,"function":{"arguments":)";
                append_quoted(text, event.text);
                text += "}}]";
                break;
            case Kind::tool_end:
                break;
        }
    }

    void open_call(const ReplyEvent& event) {
        text() += R"("tool_calls":[{"index":)";
        append_number(text(), std::uint64_t{event.tool_index});
    }

    void append_details(std::span<const TokenDetail> tokens) {
        std::string& text = this->text();
        if (options_.logprobs) {
            text += R"(,"logprobs":{"content":)";
            append_token_logprobs(text, tokens, tokenizer_);
            text += '}';
        }
        if (options_.token_ids) {
            text += R"(,"token_ids":)";
            append_token_ids(text, tokens);
        }
    }

    void close_event(const ReplyUsage& usage) {
        std::string& text = this->text();
        if (options_.continuous_usage) {
            text += R"(,"usage":)";
            append_usage(text, usage);
        }
        text += "}\n\n";
    }

    ChatWriterOptions options_;
    const Tokenizer& tokenizer_;
    std::string head_;
    std::string effort_;
    std::vector<std::string> choice_heads_;
    std::vector<bool> role_sent_;
    std::uint32_t ended_ = 0;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_chat_stream_writer(const WriterSetting& setting,
                                                     const ChatWriterOptions& options) {
    return std::make_unique<ChatStreamWriter>(setting, options);
}

}  // namespace percheron::server
