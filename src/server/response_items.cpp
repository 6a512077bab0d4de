// Input items of /v1/responses as chat messages.
#include <utility>

#include "server/responses_request.h"

namespace percheron::server {
namespace {

// What tools of other servers have done; this model cannot be shown it.
bool ran_elsewhere(std::string_view type) {
    return type.starts_with("web_search") || type.starts_with("file_search") ||
           type.starts_with("computer_call") || type.starts_with("code_interpreter") ||
           type.starts_with("image_generation") || type.starts_with("local_shell_call") ||
           type.starts_with("shell_call") || type.starts_with("apply_patch_call") ||
           type.starts_with("mcp_") || type.starts_with("tool_search") || type == "compaction";
}

class ItemReader {
  public:
    ItemReader(ConvertedBody& out, Json& messages) : out_(out), messages_(messages) {}

    void read(const Json& item, const std::string& place) {
        if (!item.is_object()) return out_.wrong(place, "must be an object");
        const std::string* given = string_in(item, "type");
        const std::string type = given == nullptr ? "message" : *given;
        if (type == "message") {
            read_message(item, place);
        } else if (type == "function_call" || type == "custom_tool_call") {
            read_call(item, type == "custom_tool_call", place);
        } else if (type == "function_call_output" || type == "custom_tool_call_output") {
            read_output(item, place);
        } else if (type == "reasoning") {
            read_reasoning(item);
        } else if (type == "item_reference") {
            out_.fail(unsupported_parameter(
                place, place + " refers to a stored item; send the item itself, or the response it "
                               "is in as previous_response_id"));
        } else if (ran_elsewhere(type)) {
            out_.unknown_fields.push_back("input.type=" + type);
        } else {
            out_.wrong(place + ".type", "is not a type of item this server knows: " + type);
        }
    }

    // The turn of the model that is being gathered is complete.
    void finish_turn() {
        if (turn_.is_null()) return;
        messages_.push_back(std::exchange(turn_, Json()));
    }

  private:
    Json& turn() {
        if (turn_.is_null()) turn_ = {{"role", "assistant"}, {"content", ""}};
        return turn_;
    }
    bool has_spoken() const {
        return !turn_.is_null() && (turn_["content"] != "" || turn_.contains("tool_calls"));
    }

    void read_message(const Json& item, const std::string& place) {
        const std::string* role = string_in(item, "role");
        if (role == nullptr || (*role != "user" && *role != "assistant" && *role != "system" &&
                                *role != "developer")) {
            return out_.wrong(place + ".role", "must be user, assistant, system or developer");
        }
        const auto content = item.find("content");
        if (content == item.end()) return out_.wrong(place + ".content", "is missing");
        if (*role != "assistant") {
            finish_turn();
            messages_.push_back({{"role", *role}, {"content", content_of(*content, place)}});
            return;
        }
        if (has_spoken()) finish_turn();
        const Json parts = content_of(*content, place);
        std::string text;
        if (parts.is_string()) text = parts.get<std::string>();
        for (std::size_t i = 0; parts.is_array() && i < parts.size(); ++i) {
            const std::string* more = string_in(parts[i], "text");
            if (more == nullptr) {
                return out_.wrong(place_of(place + ".content", i),
                                  "must be text: it is an assistant's");
            }
            text += *more;
        }
        turn()["content"] = std::move(text);
    }

    // A text, or a list of text and image parts.
    Json content_of(const Json& content, const std::string& item_place,
                    std::string_view field = ".content") {
        const std::string place = item_place + std::string(field);
        if (content.is_string()) return content;
        Json parts = Json::array();
        if (!content.is_array()) {
            out_.wrong(place, "must be a string or a list of parts");
            return parts;
        }
        for (std::size_t i = 0; i < content.size(); ++i) {
            const Json& part = content[i];
            const std::string where = place_of(place, i);
            const std::string* type = string_in(part, "type");
            const std::string kind = type == nullptr ? "" : *type;
            const std::string* text = string_in(part, kind == "refusal" ? "refusal" : "text");
            if (kind == "input_text" || kind == "output_text" || kind == "text" ||
                kind == "refusal") {
                if (text == nullptr) out_.wrong(where, "needs a string with its text");
                parts.push_back(text_part(text == nullptr ? "" : *text));
            } else if (kind == "input_image") {
                read_image(part, where, parts);
            } else if (kind.empty()) {
                out_.wrong(where, "must be an object with a type");
            } else {
                out_.fail(unsupported_parameter(
                    where, where + " is of type " + kind +
                               ", which is not supported here; send input_text or input_image"));
            }
        }
        return parts;
    }

    void read_image(const Json& part, const std::string& place, Json& parts) {
        const std::string* url = string_in(part, "image_url");
        if (url == nullptr || !url->starts_with("data:")) {
            out_.wrong(place,
                       "must have a data: URL as its image_url; the server opens no other "
                       "address and keeps no files");
        }
        parts.push_back(image_part(url == nullptr ? "" : *url));
        out_.image_places.push_back(place);
    }

    void read_call(const Json& item, bool custom, const std::string& place) {
        const std::string* id = string_in(item, "call_id");
        const std::string* name = string_in(item, "name");
        const std::string* text = string_in(item, custom ? "input" : "arguments");
        if (id == nullptr || name == nullptr || text == nullptr) {
            return out_.wrong(place, custom ? "needs a call_id, a name and an input"
                                            : "needs a call_id, a name and arguments");
        }
        const Json arguments = custom ? Json{{"input", *text}} : Json::parse(*text, nullptr, false);
        const bool usable = arguments.is_object() || text->empty();
        if (!usable) return out_.wrong(place + ".arguments", "must be the JSON of an object");
        Json& calls = turn()["tool_calls"];
        if (calls.is_null()) calls = Json::array();
        calls.push_back(function_call(*id, *name, text->empty() ? Json::object() : arguments));
    }

    void read_output(const Json& item, const std::string& place) {
        finish_turn();
        const std::string* id = string_in(item, "call_id");
        if (id == nullptr) return out_.wrong(place + ".call_id", "must be a string");
        const auto output = item.find("output");
        if (output == item.end()) return out_.wrong(place + ".output", "is missing");
        messages_.push_back({{"role", "tool"},
                             {"tool_call_id", *id},
                             {"content", content_of(*output, place, ".output")}});
    }

    void read_reasoning(const Json& item) {
        if (has_spoken()) finish_turn();
        std::string text;
        for (const char* list : {"content", "summary"}) {
            const auto parts = item.find(list);
            if (!text.empty() || parts == item.end() || !parts->is_array()) continue;
            for (const Json& part : *parts) {
                const std::string* more = string_in(part, "text");
                if (more != nullptr) text += *more;
            }
        }
        if (text.empty()) return;  // encrypted for another server
        Json& thought = turn()["reasoning_content"];
        thought = (thought.is_null() ? "" : thought.get<std::string>()) + text;
    }

    ConvertedBody& out_;
    Json& messages_;
    Json turn_;  // of the model: reasoning, text, calls
};

}  // namespace

void add_items(const Json& items, const std::string& place, ConvertedBody& body) {
    Json& messages = body.chat["messages"];
    if (messages.is_null()) messages = Json::array();
    ItemReader reader(body, messages);
    for (std::size_t i = 0; i < items.size(); ++i)
        reader.read(items[i], place_of(place, i));
    reader.finish_turn();
}

}  // namespace percheron::server
