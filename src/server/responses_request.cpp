#include "server/responses_request.h"

#include <utility>

namespace percheron::server {
namespace {

constexpr std::size_t longest_chain = 1000;

class ToolReader {
  public:
    ToolReader(ConvertedBody& out, ResponseRequest& request) : out_(out), request_(request) {}

    void read(const Json& tools, const std::string& place, const std::string& space) {
        if (!tools.is_array()) return out_.wrong(place, "must be a list");
        for (std::size_t i = 0; i < tools.size(); ++i)
            read_one(tools[i], place_of(place, i), space);
    }

    Json take() { return std::move(functions_); }

  private:
    void read_one(const Json& tool, const std::string& place, const std::string& space) {
        const std::string* type = string_in(tool, "type");
        if (type == nullptr) return out_.wrong(place, "must be an object with a type");
        if (*type == "namespace") {
            const std::string* name = string_in(tool, "name");
            if (!space.empty() || name == nullptr) {
                return out_.wrong(place, "must be a namespace with a name, in no other");
            }
            return read(tool.value("tools", Json::array()), place + ".tools", *name);
        }
        if (*type != "function" && *type != "custom") {
            out_.unknown_fields.push_back("tools.type=" + *type);
            return;
        }
        const Json& function = tool.contains("function") ? tool["function"] : tool;
        const std::string* name = string_in(function, "name");
        if (name == nullptr || name->empty()) return out_.wrong(place + ".name", "must be a name");
        if (!space.empty()) request_.namespaces[*name] = space;
        if (*type == "custom") {
            request_.custom[*name] = true;
            functions_.push_back(custom_tool(*name, tool));
            return;
        }
        const Json schema = function.value("parameters", Json());
        if (!schema.is_object() && !schema.is_null()) {
            return out_.wrong(place + ".parameters", "must be a JSON schema object");
        }
        Json offered = function_tool(*name, function.value("description", Json()), schema);
        const Json strict = function.value("strict", Json());
        if (!strict.is_null()) offered["function"]["strict"] = strict;
        functions_.push_back(std::move(offered));
    }

    static Json custom_tool(const std::string& name, const Json& tool) {
        const std::string* text = string_in(tool, "description");
        std::string description = text == nullptr ? "" : *text;
        const Json format = tool.value("format", Json());
        if (const std::string* definition = string_in(format, "definition")) {
            description += "\nThe input must follow this grammar:\n" + *definition;
        }
        const Json schema{{"type", "object"},
                          {"properties", {{"input", {{"type", "string"}}}}},
                          {"required", Json::array({"input"})}};
        return function_tool(name, description, schema);
    }

    ConvertedBody& out_;
    ResponseRequest& request_;
    Json functions_ = Json::array();
};

void read_tool_choice(const Json& choice, ConvertedBody& out) {
    if (choice.is_string()) {
        out.chat["tool_choice"] = choice;
        return;
    }
    const std::string* type = string_in(choice, "type");
    const std::string* name = string_in(choice, "name");
    const std::string* mode = string_in(choice, "mode");
    if (type != nullptr && (*type == "function" || *type == "custom") && name != nullptr) {
        out.chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
    } else if (type != nullptr && *type == "allowed_tools" && mode != nullptr) {
        out.chat["tool_choice"] = *mode;
    } else {
        out.wrong("tool_choice", "must be auto, none, required or a function with its name");
    }
}

void read_text(const Json& text, ConvertedBody& out) {
    if (!text.is_object()) return out.wrong("text", "must be an object");
    const auto format = text.find("format");
    if (format == text.end() || format->is_null()) return;
    const std::string* type = string_in(*format, "type");
    if (type == nullptr) return out.wrong("text.format", "must be an object with a type");
    if (*type != "json_schema") {
        out.chat["response_format"] = *format;
        return;
    }
    Json schema = *format;
    schema.erase("type");
    out.chat["response_format"] = {{"type", *type}, {"json_schema", std::move(schema)}};
}

class BodyReader {
  public:
    BodyReader(const Json& body, ConvertedResponse& result)
        : body_(body), out_(result.body), request_(result.request) {}

    void read(const ResponseStore& store, std::string_view owner) {
        read_conversation(store, owner);
        if (const Json* tools = find("tools")) {
            ToolReader reader(out_, request_);
            reader.read(*tools, "tools", "");
            out_.chat["tools"] = reader.take();
        }
        if (const Json* choice = find("tool_choice")) read_tool_choice(*choice, out_);
        if (const Json* text = find("text")) read_text(*text, out_);
        if (const Json* limit = find("max_output_tokens")) out_.chat["max_tokens"] = *limit;
        if (const Json* reasoning = find("reasoning")) {
            if (!reasoning->is_object()) out_.wrong("reasoning", "must be an object");
            const Json effort =
                reasoning->is_object() ? reasoning->value("effort", Json()) : Json();
            if (!effort.is_null()) out_.chat["reasoning_effort"] = effort;
        }
        if (const Json* keep = find("store")) {
            if (!keep->is_boolean()) return out_.wrong("store", "must be true or false");
            request_.store = keep->get<bool>();
        }
        refuse();
        echo();
        out_.names = {{"max_tokens", "max_output_tokens"},
                      {"reasoning_effort", "reasoning.effort"},
                      {"response_format", "text.format"}};
        out_.pass_on(
            body_, {"input", "instructions", "previous_response_id", "tools", "tool_choice", "text",
                    "max_output_tokens", "reasoning", "store", "background", "conversation",
                    "prompt", "truncation", "metadata", "top_logprobs"});
    }

  private:
    const Json* find(const char* name) const {
        const auto found = body_.find(name);
        return found == body_.end() || found->is_null() ? nullptr : &*found;
    }

    void read_conversation(const ResponseStore& store, std::string_view owner) {
        out_.chat["messages"] = Json::array();
        if (const Json* instructions = find("instructions")) {
            if (!instructions->is_string()) return out_.wrong("instructions", "must be a string");
            out_.chat["messages"].push_back({{"role", "system"}, {"content", *instructions}});
        }
        if (const Json* id = find("previous_response_id")) {
            if (!id->is_string()) return out_.wrong("previous_response_id", "must be a string");
            request_.previous = store.find(id->get<std::string>(), owner);
            if (request_.previous == nullptr) {
                return out_.fail({404, "not_found",
                                  "previous_response_id names no response kept here; send the "
                                  "whole conversation as input",
                                  "previous_response_id"});
            }
        }
        // Oldest first, all in one list: a turn may go on across the border.
        std::vector<const StoredResponse*> chain;
        for (auto node = request_.previous.get(); node != nullptr; node = node->previous.get())
            chain.push_back(node);
        if (chain.size() > longest_chain) {
            return out_.wrong("previous_response_id", "has more than " +
                                                          std::to_string(longest_chain) +
                                                          " turns before it; send the whole "
                                                          "conversation as input");
        }
        Json items = Json::array();
        for (auto node = chain.rbegin(); node != chain.rend(); ++node) {
            for (const Json* list : {&(*node)->input, &(*node)->output})
                items.insert(items.end(), list->begin(), list->end());
        }
        add_items(items, "previous_response_id", out_);
        const Json* input = find("input");
        if (input != nullptr && input->is_string()) {
            request_.input = Json::array({{{"role", "user"}, {"content", *input}}});
        } else if (input != nullptr && input->is_array()) {
            request_.input = *input;
        } else if (input != nullptr || request_.previous == nullptr) {
            return out_.wrong("input", "must be a string or a list of items");
        }
        add_items(request_.input, "input", out_);
        if (out_.chat["messages"].empty()) out_.wrong("input", "must hold at least one item");
    }

    void refuse() {
        const auto refuse_one = [&](const char* name, const std::string& why) {
            out_.fail(unsupported_parameter(name, name + std::string(" ") + why));
        };
        const Json* background = find("background");
        if (background != nullptr && *background != false) {
            refuse_one("background", "is not supported; leave it out and stream instead");
        }
        for (const char* name : {"conversation", "prompt"}) {
            if (find(name) != nullptr) {
                refuse_one(name, "is not supported; send instructions and input");
            }
        }
        const Json* truncation = find("truncation");
        if (truncation != nullptr && *truncation != "disabled") {
            refuse_one("truncation", "can only be \"disabled\"; shorten the input instead");
        }
        const Json* logprobs = find("top_logprobs");
        if (logprobs != nullptr && *logprobs != 0) {
            refuse_one("top_logprobs", "is not supported here; use /v1/chat/completions");
        }
    }

    void echo() {
        Json& echo = request_.echo;
        for (const char* name : {"instructions", "max_output_tokens", "previous_response_id"})
            echo[name] = find(name) == nullptr ? Json() : *find(name);
        const auto with_default = [&](const char* name, Json otherwise) {
            echo[name] = find(name) == nullptr ? std::move(otherwise) : *find(name);
        };
        with_default("metadata", Json::object());
        with_default("parallel_tool_calls", true);
        with_default("tool_choice", "auto");
        with_default("tools", Json::array());
        with_default("text", {{"format", {{"type", "text"}}}});
        echo["store"] = request_.store;
        echo["truncation"] = "disabled";
        echo["background"] = false;
    }

    const Json& body_;
    ConvertedBody& out_;
    ResponseRequest& request_;
};

}  // namespace

ConvertedResponse chat_of_response(std::string_view body, const ResponseStore& store,
                                   std::string_view owner) {
    ConvertedResponse result;
    JsonBody json = parse_json_object(body);
    if (json.error) {
        result.body.error = std::move(json.error);
        return result;
    }
    BodyReader(json.object, result).read(store, owner);
    return result;
}

}  // namespace percheron::server
