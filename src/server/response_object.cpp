#include "server/response_object.h"

#include "server/block_stream_writer.h"

namespace percheron::server {

using Block = ReplyBlock::Kind;

std::string dump(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool ResponseObject::is_custom(const ReplyBlock& block) const {
    return block.kind == Block::call && options_.request->custom.contains(block.name);
}

std::string ResponseObject::custom_input(const ReplyBlock& block) {
    const Json arguments = Json::parse(block.text, nullptr, false);
    const std::string* input = string_in(arguments, "input");
    return input == nullptr ? block.text : *input;
}

std::string ResponseObject::item_id(std::size_t index, const ReplyBlock& block) const {
    const char* prefix = block.kind == Block::reasoning ? "rs_"
                         : block.kind == Block::content ? "msg_"
                         : is_custom(block)             ? "ctc_"
                                                        : "fc_";
    // Behind "resp_" stands what makes the id its own.
    return prefix + identity_.id.substr(identity_.id.find('_') + 1) + "_" + std::to_string(index);
}

Json ResponseObject::text_part_of(const ReplyBlock& block, const std::string& text) {
    if (block.kind == Block::reasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
}

Json ResponseObject::item(std::size_t index, const ReplyBlock& block,
                          std::string_view status) const {
    Json item{{"id", item_id(index, block)}};
    const bool begun = status != "in_progress";
    const Json content = begun ? Json::array({text_part_of(block, block.text)}) : Json::array();
    switch (block.kind) {
        case Block::reasoning:
            item.update({{"type", "reasoning"}, {"summary", Json::array()}, {"content", content}});
            break;
        case Block::content:
            item.update({{"type", "message"}, {"role", "assistant"}, {"content", content}});
            break;
        case Block::call:
            item.update({{"type", is_custom(block) ? "custom_tool_call" : "function_call"},
                         {"call_id", block.call_id},
                         {"name", block.name}});
            if (is_custom(block)) {
                item["input"] = begun ? custom_input(block) : "";
            } else {
                item["arguments"] = begun ? block.text : "";
            }
            const auto space = options_.request->namespaces.find(block.name);
            if (space != options_.request->namespaces.end()) item["namespace"] = space->second;
            break;
    }
    item["status"] = status;
    return item;
}

Json ResponseObject::frame(std::string_view status) const {
    Json object{
        {"id", identity_.id},       {"object", "response"},   {"created_at", identity_.created},
        {"status", status},         {"error", nullptr},       {"incomplete_details", nullptr},
        {"model", identity_.model}, {"output", Json::array()}};
    object.update(options_.request->echo);
    object["reasoning"] = {{"effort", identity_.reasoning_effort}, {"summary", nullptr}};
    object["usage"] = nullptr;
    return object;
}

Json ResponseObject::begun() const {
    return frame("in_progress");
}

Json ResponseObject::failed(const ApiError& error) const {
    Json object = frame("failed");
    object["error"] = {{"code", error.code}, {"message", error.message}};
    return object;
}

Json ResponseObject::ended(const std::vector<ReplyBlock>& blocks, const ChoiceEnd& end,
                           const ReplyUsage& usage) const {
    const bool cut = end.finish_reason == "length";
    Json object = frame(cut ? "incomplete" : "completed");
    if (cut) object["incomplete_details"] = {{"reason", "max_output_tokens"}};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        const bool open = i + 1 == blocks.size() && !completes_last_block(blocks, end);
        object["output"].push_back(item(i, blocks[i], open ? "incomplete" : "completed"));
    }
    object["usage"] = {{"input_tokens", usage.prompt_tokens},
                       {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                       {"output_tokens", usage.completion_tokens},
                       {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
                       {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
    object["stop_reason"] = end.stop_reason;
    object["seed"] = end.seed;
    const ResponseRequest& request = *options_.request;
    if (request.store) {
        options_.store->add({identity_.id, options_.owner, dump(object), request.input,
                             object["output"], request.previous});
    }
    return object;
}

}  // namespace percheron::server
