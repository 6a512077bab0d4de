#include "server/messages_request.h"

#include <utility>

namespace percheron::server {
namespace {

constexpr std::string_view billing_line = "x-anthropic-billing-header:";

std::string without_billing_lines(const std::string& text) {
    std::string kept;
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
        const std::string_view line = std::string_view(text).substr(at, end - at);
        if (!line.starts_with(billing_line)) kept += line;
        at = end;
    }
    return kept;
}

class Converter {
  public:
    explicit Converter(ConvertedBody& out) : out_(out) {}

    void convert(const Json& body) {
        if (const auto system = body.find("system"); system != body.end()) read_system(*system);
        const auto messages = body.find("messages");
        if (messages == body.end() || !messages->is_array() || messages->empty()) {
            out_.wrong("messages", "must be a list of at least one message");
            return;
        }
        for (std::size_t i = 0; i < messages->size(); ++i)
            read_message((*messages)[i], place_of("messages", i));
        continue_last(messages->size() - 1);
        out_.chat["messages"] = std::move(messages_);
    }

  private:
    static std::string block_type(const Json& block) {
        const std::string* type = string_in(block, "type");
        return type == nullptr ? std::string() : *type;
    }

    // The text of a string or of a list of text blocks, a line each.
    std::optional<std::string> text_of(const Json& content, const std::string& place) {
        if (content.is_string()) return content.get<std::string>();
        std::string text;
        const bool list = content.is_array();
        for (std::size_t i = 0; list && i < content.size(); ++i) {
            const std::string* more = string_in(content[i], "text");
            if (block_type(content[i]) != "text" || more == nullptr) {
                out_.wrong(place_of(place, i), "must be a text block");
                return std::nullopt;
            }
            if (!text.empty() && text.back() != '\n') text += '\n';
            text += *more;
        }
        if (!list) out_.wrong(place, "must be a string or a list of text blocks");
        return list ? std::optional(text) : std::nullopt;
    }

    void add_system(const Json& content, const std::string& place) {
        const auto text = text_of(content, place);
        if (!text) return;
        std::string kept = without_billing_lines(*text);
        if (!kept.empty()) messages_.push_back({{"role", "system"}, {"content", std::move(kept)}});
    }

    void read_system(const Json& system) {
        if (!system.is_null()) add_system(system, "system");
    }

    void read_message(const Json& message, const std::string& place) {
        const std::string* role = string_in(message, "role");
        const auto content = message.is_object() ? message.find("content") : message.end();
        if (role == nullptr || (*role != "user" && *role != "assistant" && *role != "system")) {
            out_.wrong(place + ".role", "must be user, assistant or system");
        } else if (content == message.end() || (!content->is_string() && !content->is_array())) {
            out_.wrong(place + ".content", "must be a string or a list of blocks");
        } else if (*role == "system") {
            add_system(*content, place + ".content");
        } else if (content->is_string()) {
            messages_.push_back({{"role", *role}, {"content", *content}});
        } else if (*role == "user") {
            read_user(*content, place + ".content");
        } else {
            read_assistant(*content, place + ".content");
        }
    }

    void read_user(const Json& blocks, const std::string& place) {
        Json parts = Json::array();
        const auto flush = [&] {
            if (parts.empty()) return;
            messages_.push_back(
                {{"role", "user"}, {"content", std::exchange(parts, Json::array())}});
        };
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            if (block_type(blocks[i]) == "tool_result") {
                flush();
                read_tool_result(blocks[i], place_of(place, i));
            } else {
                read_part(blocks[i], place_of(place, i), parts);
            }
        }
        if (blocks.empty()) parts.push_back(text_part(""));
        flush();
    }

    void read_tool_result(const Json& block, const std::string& place) {
        const std::string* id = string_in(block, "tool_use_id");
        if (id == nullptr) out_.wrong(place + ".tool_use_id", "must be a string");
        Json message{{"role", "tool"}, {"tool_call_id", id == nullptr ? "" : *id}, {"content", ""}};
        const auto content = block.find("content");
        if (content != block.end() && content->is_string()) {
            message["content"] = *content;
        } else if (content != block.end() && content->is_array()) {
            Json parts = Json::array();
            for (std::size_t i = 0; i < content->size(); ++i)
                read_part((*content)[i], place_of(place + ".content", i), parts);
            message["content"] = std::move(parts);
        } else if (content != block.end() && !content->is_null()) {
            out_.wrong(place + ".content", "must be a string or a list of blocks");
        }
        messages_.push_back(std::move(message));
    }

    // Text and pictures.
    void read_part(const Json& block, const std::string& place, Json& parts) {
        const std::string type = block_type(block);
        if (type == "text") {
            const std::string* text = string_in(block, "text");
            if (text == nullptr) return out_.wrong(place + ".text", "must be a string");
            parts.push_back(text_part(*text));
        } else if (type == "image") {
            read_image(block, place, parts);
        } else if (type == "document" && block.contains("source") &&
                   string_in(block["source"], "data") != nullptr &&
                   block_type(block["source"]) == "text") {
            parts.push_back(text_part(*string_in(block["source"], "data")));
        } else if (type.empty()) {
            out_.wrong(place, "must be an object with a type");
        } else {
            out_.fail(unsupported_parameter(
                place, place + " is of type " + type +
                           ", which is not supported here; send text, images or tool results"));
        }
    }

    void read_image(const Json& block, const std::string& place, Json& parts) {
        const Json source = block.contains("source") ? block["source"] : Json();
        const std::string* data = string_in(source, "data");
        const std::string* media = string_in(source, "media_type");
        const std::string* url = string_in(source, "url");
        if (block_type(source) == "base64" && data != nullptr && media != nullptr) {
            parts.push_back(image_part("data:" + *media + ";base64," + *data));
        } else if (url != nullptr && url->starts_with("data:")) {
            parts.push_back(image_part(*url));
        } else {
            out_.wrong(place + ".source",
                       "must be {\"type\": \"base64\", \"media_type\", \"data\"}; the server "
                       "fetches nothing, neither from addresses nor from a store of files");
        }
        out_.image_places.push_back(place);
    }

    void read_assistant(const Json& blocks, const std::string& place) {
        std::string text;
        std::string thinking;
        Json calls = Json::array();
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            const Json& block = blocks[i];
            const std::string where = place_of(place, i);
            const std::string type = block_type(block);
            if (type == "text" || type == "thinking") {
                const std::string* more = string_in(block, type);
                if (more == nullptr) return out_.wrong(where + "." + type, "must be a string");
                (type == "text" ? text : thinking) += *more;
            } else if (type == "tool_use") {
                read_tool_use(block, where, calls);
            } else if (type.empty()) {
                out_.wrong(where, "must be an object with a type");
            } else if (type != "redacted_thinking") {
                // What other servers' own tools did cannot be shown to this model.
                out_.unknown_fields.push_back("messages.content.type=" + type);
            }
        }
        Json message{{"role", "assistant"}, {"content", text}};
        if (!thinking.empty()) message["reasoning_content"] = std::move(thinking);
        if (!calls.empty()) message["tool_calls"] = std::move(calls);
        messages_.push_back(std::move(message));
    }

    void read_tool_use(const Json& block, const std::string& place, Json& calls) {
        const std::string* id = string_in(block, "id");
        const std::string* name = string_in(block, "name");
        const auto input = block.find("input");
        if (id == nullptr || name == nullptr) {
            out_.wrong(place, "needs an id and a name");
        } else if (input != block.end() && !input->is_object()) {
            out_.wrong(place + ".input", "must be an object");
        } else {
            calls.push_back(
                function_call(*id, *name, input == block.end() ? Json::object() : *input));
        }
    }

    void continue_last(std::size_t index) {
        if (out_.error || messages_.empty()) return;
        const Json& last = messages_.back();
        if (last["role"] != "assistant") return;
        if (last.contains("tool_calls") || last["content"] == "") {
            out_.wrong(place_of("messages", index),
                       "ends the conversation with an assistant's turn that has no text to "
                       "continue; end with a user message or with text");
            return;
        }
        out_.chat["add_generation_prompt"] = false;
        out_.chat["continue_final_message"] = true;
    }

    ConvertedBody& out_;
    Json messages_ = Json::array();
};

void read_tools(const Json& tools, ConvertedBody& out) {
    if (!tools.is_array()) return out.wrong("tools", "must be a list");
    Json functions = Json::array();
    for (std::size_t i = 0; i < tools.size(); ++i) {
        const Json& tool = tools[i];
        if (!tool.is_object()) return out.wrong(place_of("tools", i), "must be an object");
        const std::string* type = string_in(tool, "type");
        if (type != nullptr && *type != "custom") {
            out.unknown_fields.push_back("tools.type=" + *type);
            continue;
        }
        const std::string* name = string_in(tool, "name");
        if (name == nullptr || name->empty()) {
            return out.wrong(place_of("tools", i) + ".name", "must be a name");
        }
        const Json schema = tool.value("input_schema", Json());
        if (!schema.is_object() && !schema.is_null()) {
            return out.wrong(place_of("tools", i) + ".input_schema",
                             "must be a JSON schema object");
        }
        functions.push_back(function_tool(*name, tool.value("description", Json()), schema));
    }
    out.chat["tools"] = std::move(functions);
}

void read_tool_choice(const Json& choice, ConvertedBody& out) {
    const std::string* type = string_in(choice, "type");
    const std::string* name = string_in(choice, "name");
    if (type != nullptr && *type == "any") {
        out.chat["tool_choice"] = "required";
    } else if (type != nullptr && *type == "tool" && name != nullptr) {
        out.chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
    } else if (type != nullptr && (*type == "auto" || *type == "none")) {
        out.chat["tool_choice"] = *type;
    } else {
        return out.wrong("tool_choice", "must have the type auto, any, tool (with a name) or none");
    }
    const auto single = choice.find("disable_parallel_tool_use");
    if (single != choice.end() && single->is_boolean()) {
        out.chat["parallel_tool_calls"] = !single->get<bool>();
    }
}

void read_thinking(const Json& thinking, ConvertedBody& out) {
    const std::string* type = string_in(thinking, "type");
    if (type == nullptr) return out.wrong("thinking", "must be an object with a type");
    const auto budget = thinking.find("budget_tokens");
    if (*type == "enabled" && budget != thinking.end()) {
        out.chat["thinking_budget"] = *budget;
    } else if (*type == "disabled") {
        out.unknown_fields.push_back("thinking");  // it cannot be switched off
    }
}

void read_output_config(const Json& config, ConvertedBody& out) {
    if (!config.is_object()) return out.wrong("output_config", "must be an object");
    if (const auto effort = config.find("effort"); effort != config.end()) {
        out.chat["reasoning_effort"] = *effort;
    }
    const auto format = config.find("format");
    if (format == config.end() || format->is_null()) return;
    if (string_in(*format, "type") == nullptr) {
        return out.wrong("output_config.format", "must be an object with a type");
    }
    out.chat["response_format"] = {
        {"type", (*format)["type"]},
        {"json_schema",
         {{"name", "output"}, {"strict", true}, {"schema", format->value("schema", Json())}}}};
}

}  // namespace

ConvertedBody chat_of_messages(std::string_view text) {
    ConvertedBody out;
    JsonBody json = parse_json_object(text);
    if (json.error) {
        out.error = std::move(json.error);
        return out;
    }
    const Json& body = json.object;
    const auto present = [&](const char* name) -> const Json* {
        const auto found = body.find(name);
        return found == body.end() || found->is_null() ? nullptr : &*found;
    };
    Converter(out).convert(body);
    if (const Json* tools = present("tools")) read_tools(*tools, out);
    if (const Json* choice = present("tool_choice")) read_tool_choice(*choice, out);
    if (const Json* thinking = present("thinking")) read_thinking(*thinking, out);
    if (const Json* config = present("output_config")) read_output_config(*config, out);
    if (const Json* stops = present("stop_sequences")) out.chat["stop"] = *stops;
    out.names = {{"stop", "stop_sequences"},
                 {"thinking_budget", "thinking.budget_tokens"},
                 {"reasoning_effort", "output_config.effort"},
                 {"response_format", "output_config.format"}};
    out.pass_on(body, {"system", "messages", "tools", "tool_choice", "thinking", "output_config",
                       "stop_sequences"});
    return out;
}

}  // namespace percheron::server
