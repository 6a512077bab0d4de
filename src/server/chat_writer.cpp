#include "server/chat_writer.h"

#include <algorithm>

#include "text/unicode.h"

namespace percheron::server {
namespace {

using Kind = ReplyEvent::Kind;

void append_token(std::string& json, TokenId id, float logprob, const Tokenizer& tokenizer) {
    const std::string_view bytes = tokenizer.bytes_of(id);
    json += R"({"token":)";
    append_quoted(json, with_replacements(bytes));
    json += R"(,"logprob":)";
    // Where a probability is zero the API's clients expect this value instead of an infinity.
    append_number(json, std::max(logprob, -9999.0f));
    json += R"(,"bytes":[)";
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i > 0) json += ',';
        append_number(json, std::uint64_t{static_cast<unsigned char>(bytes[i])});
    }
    json += ']';
}

class ChatWriter final : public ReplyWriter {
  public:
    ChatWriter(HttpExchange& exchange, const ReplyIdentity& identity,
               const ChatWriterOptions& options, const Tokenizer& tokenizer)
        : exchange_(exchange),
          identity_(identity),
          options_(options),
          tokenizer_(tokenizer),
          choices_(options.choices) {}

    void begin() override {}

    void pieces(std::uint32_t index, std::span<const ReplyPiece> pieces,
                const ReplyUsage&) override {
        Choice& choice = choices_[index];
        for (const ReplyPiece& piece : pieces) {
            const ReplyEvent& event = piece.event;
            switch (event.kind) {
                case Kind::content:
                    choice.content += event.text;
                    break;
                case Kind::reasoning:
                    choice.reasoning += event.text;
                    break;
                case Kind::tool_begin:
                    choice.calls.push_back({event.call_id, event.text, ""});
                    break;
                case Kind::tool_arguments:
                    choice.calls[event.tool_index].arguments += event.text;
                    break;
                case Kind::tool_end:
                    break;
            }
            choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
        }
    }

    void end_choice(std::uint32_t index, const ChoiceEnd& end, const ReplyUsage&) override {
        choices_[index].end = end;
    }

    void end(const ReplyUsage& usage) override {
        std::string json = R"({"id":)";
        append_quoted(json, identity_.id);
        json += R"(,"object":"chat.completion","created":)";
        append_number(json, identity_.created);
        json += R"(,"model":)";
        append_quoted(json, identity_.model);
        json += R"(,"choices":[)";
        for (std::uint32_t index = 0; index < choices_.size(); ++index) {
            if (index > 0) json += ',';
            append_choice(json, index);
        }
        json += R"(],"usage":)";
        append_usage(json, usage);
        json += R"(,"seed":)";
        append_number(json, choices_[0].end.seed);
        json += R"(,"reasoning_effort":)";
        append_quoted(json, identity_.reasoning_effort);
        json += '}';
        HttpResponse response;
        response.body = std::move(json);
        exchange_.respond(std::move(response));
    }

    void fail(const ApiError& error) override { exchange_.respond(error_response(error)); }

  private:
    struct Call {
        std::string id;
        std::string name;
        std::string arguments;
    };
    struct Choice {
        std::string content;
        std::string reasoning;
        std::vector<Call> calls;
        std::vector<TokenDetail> tokens;
        ChoiceEnd end;
    };

    void append_choice(std::string& json, std::uint32_t index) {
        Choice& choice = choices_[index];
        json += R"({"index":)";
        append_number(json, std::uint64_t{index});
        json += R"(,"message":{"role":"assistant","content":)";
        if (choice.content.empty() && !choice.calls.empty()) {
            json += "null";
        } else {
            append_quoted(json, choice.content);
        }
        if (!choice.reasoning.empty()) {
            json += R"(,"reasoning_content":)";
            append_quoted(json, choice.reasoning);
            json += R"(,"reasoning":)";
            append_quoted(json, choice.reasoning);
        }
        if (!choice.calls.empty()) append_calls(json, choice.calls);
        json += '}';
        choice.tokens.insert(choice.tokens.end(), choice.end.rest.begin(), choice.end.rest.end());
        if (options_.logprobs) {
            json += R"(,"logprobs":)";
            append_chat_logprobs(json, choice.tokens, tokenizer_);
        }
        if (options_.token_ids) {
            json += R"(,"token_ids":)";
            append_token_ids(json, choice.tokens);
        }
        json += R"(,"finish_reason":)";
        append_quoted(json, choice.end.finish_reason);
        json += R"(,"stop_reason":)";
        append_quoted(json, choice.end.stop_reason);
        json += '}';
    }

    static void append_calls(std::string& json, const std::vector<Call>& calls) {
        json += R"(,"tool_calls":[)";
        for (std::size_t i = 0; i < calls.size(); ++i) {
            json += i > 0 ? R"(,{"id":)" : R"({"id":)";
            append_quoted(json, calls[i].id);
            json += R"(,"type":"function","function":{"name":)";
            append_quoted(json, calls[i].name);
            json += R"(,"arguments":)";
            append_quoted(json, calls[i].arguments);
            json += "}}";
        }
        json += ']';
    }

    HttpExchange& exchange_;
    ReplyIdentity identity_;
    ChatWriterOptions options_;
    const Tokenizer& tokenizer_;
    std::vector<Choice> choices_;
};

}  // namespace

void append_chat_logprobs(std::string& json, std::span<const TokenDetail> tokens,
                          const Tokenizer& tokenizer) {
    json += R"({"content":[)";
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0) json += ',';
        const EngineEvents::Logprobs none;
        const auto& logprobs = tokens[i].logprobs ? *tokens[i].logprobs : none;
        append_token(json, tokens[i].id, logprobs.chosen, tokenizer);
        json += R"(,"top_logprobs":[)";
        for (std::size_t k = 0; k < logprobs.top.size(); ++k) {
            if (k > 0) json += ',';
            append_token(json, logprobs.top[k].id, logprobs.top[k].logprob, tokenizer);
            json += '}';
        }
        json += "]}";
    }
    json += "]}";
}

std::unique_ptr<ReplyWriter> make_chat_writer(HttpExchange& exchange, const ReplyIdentity& identity,
                                              const ChatWriterOptions& options,
                                              const Tokenizer& tokenizer) {
    return std::make_unique<ChatWriter>(exchange, identity, options, tokenizer);
}

}  // namespace percheron::server
