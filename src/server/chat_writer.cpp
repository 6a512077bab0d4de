#include "server/chat_writer.h"

#include <algorithm>

#include "server/collecting_writer.h"
#include "server/sse.h"
#include "text/unicode.h"

namespace percheron::server {
namespace {

using Block = ReplyBlock::Kind;

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

class ChatWriter final : public CollectingWriter {
  public:
    ChatWriter(const WriterSetting& setting, const ChatWriterOptions& options)
        : CollectingWriter(setting, options.choices), options_(options) {}

  private:
    std::string render(const ReplyUsage& usage) override {
        std::string json = R"({"id":)";
        append_quoted(json, identity().id);
        json += R"(,"object":"chat.completion","created":)";
        append_number(json, identity().created);
        json += R"(,"model":)";
        append_quoted(json, identity().model);
        json += R"(,"choices":[)";
        for (std::uint32_t index = 0; index < choices().size(); ++index) {
            if (index > 0) json += ',';
            append_choice(json, index);
        }
        json += R"(],"usage":)";
        append_usage(json, usage);
        json += R"(,"seed":)";
        append_number(json, choices()[0].end.seed);
        json += R"(,"reasoning_effort":)";
        append_quoted(json, identity().reasoning_effort);
        json += '}';
        return json;
    }

    void append_choice(std::string& json, std::uint32_t index) {
        const CollectedChoice& choice = choices()[index];
        const std::string content = choice.text_of(Block::content);
        const std::string reasoning = choice.text_of(Block::reasoning);
        const bool calls = std::any_of(choice.blocks.begin(), choice.blocks.end(), is_call);
        json += R"({"index":)";
        append_number(json, std::uint64_t{index});
        json += R"(,"message":{"role":"assistant","content":)";
        if (content.empty() && calls) {
            json += "null";
        } else {
            append_quoted(json, content);
        }
        if (!reasoning.empty()) {
            json += R"(,"reasoning_content":)";
            append_quoted(json, reasoning);
            json += R"(,"reasoning":)";
            append_quoted(json, reasoning);
        }
        if (calls) append_calls(json, choice.blocks);
        json += '}';
        if (options_.logprobs) {
            json += R"(,"logprobs":{"content":)";
            append_token_logprobs(json, choice.tokens, tokenizer());
            json += '}';
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

    static bool is_call(const ReplyBlock& block) { return block.kind == Block::call; }

    static void append_calls(std::string& json, const std::vector<ReplyBlock>& blocks) {
        json += R"(,"tool_calls":[)";
        for (const ReplyBlock& block : blocks) {
            if (!is_call(block)) continue;
            if (json.back() != '[') json += ',';
            json += R"({"id":)";
            append_quoted(json, block.call_id);
            json += R"(,"type":"function","function":{"name":)";
            append_quoted(json, block.name);
            json += R"(,"arguments":)";
            append_quoted(json, block.text);
            json += "}}";
        }
        json += ']';
    }

    ChatWriterOptions options_;
};

}  // namespace

void append_token_logprobs(std::string& json, std::span<const TokenDetail> tokens,
                           const Tokenizer& tokenizer) {
    json += '[';
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
    json += ']';
}

std::unique_ptr<ReplyWriter> make_chat_writer(const WriterSetting& setting,
                                              const ChatWriterOptions& options) {
    return std::make_unique<ChatWriter>(setting, options);
}

}  // namespace percheron::server
