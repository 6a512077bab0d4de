#include "server/responses_writer.h"

#include "server/block_stream_writer.h"
#include "server/collecting_writer.h"
#include "server/response_object.h"
#include "server/sse.h"

namespace percheron::server {
namespace {

using Block = ReplyBlock::Kind;

class ResponsesWriter final : public CollectingWriter {
  public:
    ResponsesWriter(const WriterSetting& setting, const ResponsesWriterOptions& options)
        : CollectingWriter(setting, 1), object_(setting.identity, options) {}

  private:
    std::string render(const ReplyUsage& usage) override {
        const CollectedChoice& choice = choices()[0];
        return dump(object_.ended(choice.blocks, choice.end, usage));
    }

    ResponseObject object_;
};

class ResponsesStreamWriter final : public BlockStreamWriter {
  public:
    ResponsesStreamWriter(const WriterSetting& setting, const ResponsesWriterOptions& options)
        : BlockStreamWriter(setting.exchange), object_(setting.identity, options) {}

  private:
    void open_reply(const ReplyUsage& /*usage*/) override {
        const std::string begun = dump(object_.begun());
        for (const char* event : {"response.created", "response.in_progress"})
            begin_event(event) += R"("response":)" + begun + "}\n\n";
    }

    void open_block(std::size_t index, const ReplyBlock& block) override {
        begin_event("response.output_item.added", index) +=
            R"("item":)" + dump(object_.item(index, block, "in_progress")) + "}\n\n";
        if (block.kind == Block::call) return;
        begin_part_event("response.content_part.added", index, block) +=
            R"("part":)" + dump(ResponseObject::text_part_of(block, "")) + "}\n\n";
    }

    void grow_block(std::size_t index, const ReplyBlock& block, std::string_view more) override {
        if (object_.is_custom(block)) return;  // its input is inside the arguments' JSON
        const bool call = block.kind == Block::call;
        std::string& json =
            call ? begin_item_event("response.function_call_arguments.delta", index, block)
                 : begin_part_event(text_event(block, ".delta"), index, block);
        json += R"("delta":)";
        append_quoted(json, more);
        if (block.kind == Block::content) json += R"(,"logprobs":[])";
        json += "}\n\n";
    }

    void close_block(std::size_t index, const ReplyBlock& block, bool complete) override {
        if (block.kind == Block::call) {
            close_call(index, block);
        } else {
            std::string& json = begin_part_event(text_event(block, ".done"), index, block);
            json += R"("text":)";
            append_quoted(json, block.text);
            if (block.kind == Block::content) json += R"(,"logprobs":[])";
            json += "}\n\n";
            begin_part_event("response.content_part.done", index, block) +=
                R"("part":)" + dump(ResponseObject::text_part_of(block, block.text)) + "}\n\n";
        }
        begin_event("response.output_item.done", index) +=
            R"("item":)" + dump(object_.item(index, block, complete ? "completed" : "incomplete")) +
            "}\n\n";
    }

    void close_call(std::size_t index, const ReplyBlock& block) {
        if (object_.is_custom(block)) {
            const std::string input = ResponseObject::custom_input(block);
            for (const auto& [event, member] :
                 {std::pair{"response.custom_tool_call_input.delta", "delta"},
                  std::pair{"response.custom_tool_call_input.done", "input"}}) {
                std::string& json = begin_item_event(event, index, block);
                append_quoted(json, member);
                json += ':';
                append_quoted(json, input);
                json += "}\n\n";
            }
            return;
        }
        std::string& json = begin_item_event("response.function_call_arguments.done", index, block);
        json += R"("name":)";
        append_quoted(json, block.name);
        json += R"(,"arguments":)";
        append_quoted(json, block.text);
        json += "}\n\n";
    }

    void close_reply(const ChoiceEnd& end, const ReplyUsage& usage) override {
        const Json object = object_.ended(blocks(), end, usage);
        const bool whole = object["status"] == "completed";
        begin_event(whole ? "response.completed" : "response.incomplete") +=
            R"("response":)" + dump(object) + "}\n\n";
    }

    void append_failure(const ApiError& error) override {
        begin_event("response.failed") += R"("response":)" + dump(object_.failed(error)) + "}\n\n";
    }

    static std::string text_event(const ReplyBlock& block, std::string_view end) {
        const bool thought = block.kind == Block::reasoning;
        return std::string(thought ? "response.reasoning_text" : "response.output_text") +
               std::string(end);
    }

    // With its number, and a comma behind what stands there.
    std::string& begin_event(std::string_view name) {
        std::string& json = name_event(name);
        json += R"(,"sequence_number":)";
        append_number(json, sequence_++);
        return json += ',';
    }
    std::string& begin_event(std::string_view name, std::size_t index) {
        std::string& json = begin_event(name);
        json += R"("output_index":)";
        append_number(json, std::uint64_t{index});
        json += ',';
        return json;
    }
    std::string& begin_item_event(std::string_view name, std::size_t index,
                                  const ReplyBlock& block) {
        std::string& json = begin_event(name, index);
        json += R"("item_id":)";
        append_quoted(json, object_.item_id(index, block));
        json += ',';
        return json;
    }
    std::string& begin_part_event(std::string_view name, std::size_t index,
                                  const ReplyBlock& block) {
        std::string& json = begin_item_event(name, index, block);
        json += R"("content_index":0,)";
        return json;
    }

    ResponseObject object_;
    std::uint64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_responses_writer(const WriterSetting& setting,
                                                   const ResponsesWriterOptions& options) {
    return std::make_unique<ResponsesWriter>(setting, options);
}

std::unique_ptr<ReplyWriter> make_responses_stream_writer(const WriterSetting& setting,
                                                          const ResponsesWriterOptions& options) {
    return std::make_unique<ResponsesStreamWriter>(setting, options);
}

}  // namespace percheron::server
