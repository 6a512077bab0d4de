#include "server/chat_request.h"

#include <algorithm>
#include <array>

#include "server/output_fields.h"
#include "text/image_parts.h"
#include "vision/data_url.h"

namespace percheron::server {
namespace {

std::string indexed(std::string_view name, std::size_t index) {
    return std::string(name) + "[" + std::to_string(index) + "]";
}

void check_image(const Json& part, const std::string& place, FieldReader& fields) {
    const std::string* url = image_url_of(part);
    if (url == nullptr) {
        fields.fail(invalid_value(place, place + " needs image_url.url"));
    } else if (!vision::is_data_url(*url)) {
        // Nothing is ever fetched: neither over a network nor from this machine's files.
        fields.fail(invalid_value(place, place + " must be a data: URL; the server opens no other "
                                                 "address, remote or local"));
    }
}

void check_part(const Json& part, const std::string& place, FieldReader& fields) {
    if (part.is_string()) return;
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string()) {
        fields.fail(invalid_value(place, place + " must be an object with a type"));
        return;
    }
    const std::string& kind = type->get_ref<const std::string&>();
    if (kind == "text" || kind == "refusal") {
        const auto text = part.find(kind == "text" ? "text" : "refusal");
        if (text == part.end() || !text->is_string()) {
            fields.fail(invalid_value(place, place + " needs a string in its field " + kind));
        }
    } else if (is_image_part(part)) {
        check_image(part, place, fields);
    } else if (kind == "video_url" || kind == "video" || kind == "input_audio" ||
               kind == "audio_url" || kind == "file") {
        fields.fail(unsupported_parameter(
            place,
            place + " is of type " + kind + ", which is not supported; send text or images"));
    } else if (kind != "tool_reference") {
        fields.fail(invalid_value(place, place + " is of an unknown type"));
    }
}

void check_message(const Json& message, const std::string& place, FieldReader& fields) {
    constexpr std::array<std::string_view, 5> roles{"system", "developer", "user", "assistant",
                                                    "tool"};
    if (!message.is_object()) {
        fields.fail(invalid_value(place, place + " must be an object"));
        return;
    }
    const auto role = message.find("role");
    const bool known =
        role != message.end() && role->is_string() &&
        std::find(roles.begin(), roles.end(), role->get_ref<const std::string&>()) != roles.end();
    if (!known) {
        fields.fail(invalid_value(
            place + ".role", place + ".role must be system, developer, user, assistant or tool"));
        return;
    }
    const auto content = message.find("content");
    if (content == message.end() || content->is_null()) {
        if (*role != "assistant" && *role != "tool") {
            fields.fail(invalid_value(place + ".content", place + ".content is missing"));
        }
        return;
    }
    if (content->is_string()) return;
    if (!content->is_array()) {
        fields.fail(invalid_value(place + ".content",
                                  place + ".content must be a string or a list of parts"));
        return;
    }
    for (std::size_t i = 0; i < content->size(); ++i) {
        check_part((*content)[i], indexed(place + ".content", i), fields);
    }
}

void check_messages(FieldReader& fields) {
    const Json* messages = fields.find("messages");
    if (messages == nullptr || !messages->is_array() || messages->empty()) {
        fields.fail(invalid_value("messages", "messages must be a list of at least one message"));
        return;
    }
    for (std::size_t i = 0; i < messages->size(); ++i) {
        check_message((*messages)[i], indexed("messages", i), fields);
    }
}

void read_tools(FieldReader& fields, ChatRequest& request) {
    request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
    const Json none = Json::array();
    const Json* tools = fields.find("tools");
    if (tools == nullptr) tools = &none;
    if (!tools->is_array()) {
        fields.fail(invalid_value("tools", "tools must be a list"));
        return;
    }
    Json functions = Json::array();
    for (std::size_t i = 0; i < tools->size(); ++i) {
        const Json& tool = (*tools)[i];
        const std::string place = indexed("tools", i);
        const auto type = tool.is_object() ? tool.find("type") : tool.end();
        if (!tool.is_object()) {
            fields.fail(invalid_value(place, place + " must be an object"));
            return;
        }
        // Tools of other kinds run elsewhere or not at all; the model is offered functions.
        if (type != tool.end() && *type != "function") continue;
        const auto nested = tool.find("function");
        const Json& function = nested != tool.end() ? *nested : tool;
        const auto name = function.is_object() ? function.find("name") : function.end();
        if (!function.is_object() || name == function.end() || !name->is_string() ||
            name->get_ref<const std::string&>().empty()) {
            fields.fail(invalid_value(place + ".function.name",
                                      place + ".function.name must be a string with a name in it"));
            return;
        }
        const auto parameters = function.find("parameters");
        if (parameters != function.end() && !parameters->is_object() && !parameters->is_null()) {
            fields.fail(invalid_value(place + ".function.parameters",
                                      place + ".function.parameters must be a JSON schema object"));
            return;
        }
        functions.push_back(tool);
    }
    if (read_tool_choice(fields, functions, request.parallel_tool_calls,
                         request.generation.output)) {
        request.tools = std::move(functions);
    }
}

void read_logprobs(FieldReader& fields, SamplingParameters& sampling) {
    const bool wanted = fields.boolean("logprobs").value_or(false);
    const auto top = fields.integer("top_logprobs", 0, 20);
    if (top && *top > 0 && !wanted) {
        fields.fail(invalid_value("top_logprobs", "top_logprobs needs logprobs: true"));
    }
    if (wanted) sampling.top_logprobs = static_cast<int>(top.value_or(0));
}

// The effective level, or nothing for a value that means none of them.
std::optional<std::string> effort_level(const Json& value) {
    if (!value.is_string()) return std::nullopt;
    const std::string& name = value.get_ref<const std::string&>();
    if (name == "minimal" || name == "low") return "low";
    if (name == "medium" || name == "high") return "high";
    if (name == "xhigh" || name == "max") return "max";
    return std::nullopt;
}

void read_prompt_options(FieldReader& fields, const ChatDefaults& defaults, ChatOptions& options) {
    options.reasoning_effort = defaults.reasoning_effort;
    const auto set_effort = [&](const Json& value, const char* place) {
        if (auto level = effort_level(value)) {
            options.reasoning_effort = *level;
        } else {
            fields.fail(invalid_value(place, std::string(place) +
                                                 " must be minimal, low, medium, high, xhigh or "
                                                 "max; this model always thinks"));
        }
    };
    Json variables = Json::object();
    if (const Json* given = fields.find("chat_template_kwargs")) {
        if (given->is_object()) {
            variables = *given;
        } else {
            fields.fail(
                invalid_value("chat_template_kwargs", "chat_template_kwargs must be an object"));
        }
    }
    // The model cannot be kept from thinking, and the split of its thinking stays armed.
    for (const char* name : {"enable_thinking", "thinking"})
        variables.erase(name);
    if (const auto effort = variables.find("reasoning_effort"); effort != variables.end()) {
        if (!effort->is_null()) set_effort(*effort, "chat_template_kwargs.reasoning_effort");
        variables.erase("reasoning_effort");
    }
    if (const Json* effort = fields.find("reasoning_effort")) {
        set_effort(*effort, "reasoning_effort");
    }
    options.variables = std::move(variables);
    options.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
    options.continue_final_message = fields.boolean("continue_final_message").value_or(false);
    if (options.continue_final_message && options.add_generation_prompt) {
        fields.fail(invalid_value("continue_final_message",
                                  "continue_final_message needs add_generation_prompt: false"));
    }
}

}  // namespace

ParsedChat parse_chat_request(std::string_view body, const ChatDefaults& defaults,
                              std::uint32_t vocabulary) {
    JsonBody json = parse_json_object(body);
    if (json.error) return {{}, std::move(json.error)};
    return parse_chat_object(std::move(json.object), defaults, vocabulary);
}

ParsedChat parse_chat_object(Json body, const ChatDefaults& defaults, std::uint32_t vocabulary) {
    ParsedChat result;
    ChatRequest& request = result.request;
    FieldReader fields(body);
    request.generation = read_generation_fields(fields, defaults.generation, vocabulary);
    check_messages(fields);
    read_tools(fields, request);
    read_logprobs(fields, request.generation.request.sampling);
    read_prompt_options(fields, defaults, request.prompt_options);
    refuse_foreign_fields(fields, {"best_of", "echo"});
    request.unknown_fields = fields.unknown();
    result.error = fields.error();
    if (result.error) return result;
    request.messages = std::move(body["messages"]);
    request.images = take_image_parts(request.messages);
    return result;
}

}  // namespace percheron::server
