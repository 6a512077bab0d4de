#include "server/messages_writer.h"

#include "server/block_stream_writer.h"
#include "server/collecting_writer.h"
#include "server/sse.h"

namespace percheron::server {
namespace {

using Block = ReplyBlock::Kind;

std::string_view stop_reason_of(const ChoiceEnd& end) {
    if (end.stop_reason == "stop_string") return "stop_sequence";
    if (end.stop_reason == "context") return "model_context_window_exceeded";
    if (end.finish_reason == "tool_calls") return "tool_use";
    return end.finish_reason == "length" ? "max_tokens" : "end_turn";
}

// "stop_reason":..., "stop_sequence":..., and what this server says of the end.
void append_end(std::string& json, const ChoiceEnd& end) {
    json += R"("stop_reason":)";
    append_quoted(json, stop_reason_of(end));
    json += R"(,"stop_sequence":)";
    if (end.stop_string.empty()) {
        json += "null";
    } else {
        append_quoted(json, end.stop_string);
    }
}

// What was read from the cache is not counted as input once more.
void append_message_usage(std::string& json, const ReplyUsage& usage) {
    json += R"({"input_tokens":)";
    append_number(json, std::uint64_t{usage.prompt_tokens - usage.cached_tokens});
    json += R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)";
    append_number(json, std::uint64_t{usage.cached_tokens});
    json += R"(,"output_tokens":)";
    append_number(json, std::uint64_t{usage.completion_tokens});
    json += '}';
}

void append_message_head(std::string& json, const ReplyIdentity& identity) {
    json += R"({"id":)";
    append_quoted(json, identity.id);
    json += R"(,"type":"message","role":"assistant","model":)";
    append_quoted(json, identity.model);
}

// A block with the text it has so far.  The signature of a thinking block names the message it
// belongs to; nobody checks it when it comes back.
void append_block(std::string& json, const ReplyBlock& block, std::string_view signature) {
    switch (block.kind) {
        case Block::reasoning:
            json += R"({"type":"thinking","thinking":)";
            append_quoted(json, block.text);
            json += R"(,"signature":)";
            append_quoted(json, signature);
            break;
        case Block::content:
            json += R"({"type":"text","text":)";
            append_quoted(json, block.text);
            break;
        case Block::call:
            json += R"({"type":"tool_use","id":)";
            append_quoted(json, block.call_id);
            json += R"(,"name":)";
            append_quoted(json, block.name);
            json += R"(,"input":)" + (block.text.empty() ? std::string("{}") : block.text);
            break;
    }
    json += '}';
}

class MessagesWriter final : public CollectingWriter {
  public:
    explicit MessagesWriter(const WriterSetting& setting)
        : CollectingWriter(setting, 1, ErrorForm::anthropic) {}

  private:
    std::string render(const ReplyUsage& usage) override {
        const CollectedChoice& choice = choices()[0];
        std::string json;
        append_message_head(json, identity());
        json += R"(,"content":[)";
        // A call that the end has cut is nothing to be run.
        const std::size_t whole =
            choice.blocks.size() - (cuts_last_call(choice.blocks, choice.end) ? 1 : 0);
        for (std::size_t i = 0; i < whole; ++i) {
            if (i > 0) json += ',';
            append_block(json, choice.blocks[i], identity().id);
        }
        json += "],";
        append_end(json, choice.end);
        json += R"(,"usage":)";
        append_message_usage(json, usage);
        json += R"(,"seed":)";
        append_number(json, choice.end.seed);
        json += '}';
        return json;
    }
};

class MessagesStreamWriter final : public BlockStreamWriter {
  public:
    explicit MessagesStreamWriter(const WriterSetting& setting)
        : BlockStreamWriter(setting.exchange, ErrorForm::anthropic), identity_(setting.identity) {}

  private:
    void open_reply(const ReplyUsage& usage) override {
        ReplyUsage before = usage;
        before.completion_tokens = 0;
        std::string& json = begin_event("message_start");
        json += R"("message":)";
        append_message_head(json, identity_);
        json += R"(,"content":[],"stop_reason":null,"stop_sequence":null,"usage":)";
        append_message_usage(json, before);
        json += '}';
        end_event();
    }

    void open_block(std::size_t index, const ReplyBlock& block) override {
        std::string& json = begin_event("content_block_start", index);
        json += R"("content_block":)";
        append_block(json, block, "");
        end_event();
    }

    void grow_block(std::size_t index, const ReplyBlock& block, std::string_view more) override {
        std::string& json = begin_event("content_block_delta", index);
        json += R"("delta":{"type":)";
        json += block.kind == Block::reasoning ? R"("thinking_delta","thinking":)"
                : block.kind == Block::content ? R"("text_delta","text":)"
                                               : R"("input_json_delta","partial_json":)";
        append_quoted(json, more);
        json += '}';
        end_event();
    }

    void close_block(std::size_t index, const ReplyBlock& block, bool /*complete*/) override {
        if (block.kind == Block::reasoning) {
            std::string& json = begin_event("content_block_delta", index);
            json += R"("delta":{"type":"signature_delta","signature":)";
            append_quoted(json, identity_.id);
            json += '}';
            end_event();
        }
        begin_event("content_block_stop", index).pop_back();
        end_event();
    }

    void close_reply(const ChoiceEnd& end, const ReplyUsage& usage) override {
        std::string& json = begin_event("message_delta");
        json += R"("delta":{)";
        append_end(json, end);
        json += R"(},"usage":)";
        append_message_usage(json, usage);
        json += R"(,"seed":)";
        append_number(json, end.seed);
        end_event();
        begin_event("message_stop").pop_back();
        end_event();
    }

    void append_failure(const ApiError& error) override {
        text() += "event: error\ndata: " + error_json(error, form()) + "\n\n";
    }
    std::string_view sign_of_life() const override {
        return "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    }

    // With a comma behind what stands there.
    std::string& begin_event(std::string_view name) { return name_event(name) += ','; }
    std::string& begin_event(std::string_view name, std::size_t index) {
        std::string& json = begin_event(name);
        json += R"("index":)";
        append_number(json, std::uint64_t{index});
        json += ',';
        return json;
    }
    void end_event() { text() += "}\n\n"; }

    ReplyIdentity identity_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_messages_writer(const WriterSetting& setting) {
    return std::make_unique<MessagesWriter>(setting);
}

std::unique_ptr<ReplyWriter> make_messages_stream_writer(const WriterSetting& setting) {
    return std::make_unique<MessagesStreamWriter>(setting);
}

}  // namespace percheron::server
