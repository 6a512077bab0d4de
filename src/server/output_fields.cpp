#include "server/output_fields.h"

#include <algorithm>
#include <utility>

namespace percheron::server {
namespace {

using Output = grammar::OutputRequest;
using Format = Output::Format;

class FormatReader {
  public:
    explicit FormatReader(FieldReader& fields) : fields_(fields) {}

    Output read() {
        if (const Json* format = fields_.find("response_format")) response_format(*format);
        if (const Json* outputs = fields_.find("structured_outputs")) structured_outputs(*outputs);
        for (const auto& [name, kind] : names)
            named(fields_.find(name), fields_.path_of(name), kind);
        return std::move(output_);
    }

  private:
    enum class Kind { schema, regex, choice, rules };
    static constexpr std::pair<const char*, Kind> names[] = {
        {"guided_json", Kind::schema},   {"guided_regex", Kind::regex},
        {"guided_choice", Kind::choice}, {"guided_grammar", Kind::rules},
        {"json_schema", Kind::schema},   {"regex", Kind::regex},
        {"grammar", Kind::rules},        {"ebnf", Kind::rules}};

    void wrong(const std::string& place, const std::string& what) {
        fields_.fail(invalid_value(place, place + " " + what));
    }
    void set(Format format, const std::string& place) {
        if (output_.format != Format::text) {
            wrong(place, "is a second format of the answer beside " + output_.param +
                             "; send one of them");
        }
        output_.format = format;
        output_.param = place;
    }

    void response_format(const Json& format) {
        const std::string place = fields_.path_of("response_format");
        const auto type = format.is_object() ? format.find("type") : format.end();
        if (!format.is_object() || type == format.end() || !type->is_string()) {
            wrong(place, "must be an object with a type");
            return;
        }
        const auto member = [&](const char* name) {
            const auto found = format.find(name);
            return found == format.end() ? nullptr : &*found;
        };
        if (*type == "text") return;
        if (*type == "json_object") {
            set(Format::json_object, place);
        } else if (*type == "json_schema") {
            json_schema(member("json_schema"), place + ".json_schema");
        } else if (*type == "regex") {
            const char* name = member("pattern") != nullptr ? "pattern" : "regex";
            need(member(name), place + "." + name, Kind::regex);
        } else if (*type == "grammar") {
            need(member("grammar"), place + ".grammar", Kind::rules);
        } else {
            fields_.fail(unsupported_parameter(
                place, place + ".type can be text, json_object, json_schema, regex or grammar"));
        }
    }

    void json_schema(const Json* given, const std::string& place) {
        const auto schema =
            given != nullptr && given->is_object() ? given->find("schema") : Json::const_iterator();
        if (given == nullptr || !given->is_object() || schema == given->end()) {
            wrong(place, "must be an object with a schema");
            return;
        }
        set(Format::json_schema, place + ".schema");
        output_.schema = *schema;
    }

    // vLLM's newer names.
    void structured_outputs(const Json& outputs) {
        const std::string place = fields_.path_of("structured_outputs");
        if (!outputs.is_object()) {
            wrong(place, "must be an object");
            return;
        }
        static constexpr std::pair<const char*, Kind> kinds[] = {{"json", Kind::schema},
                                                                 {"regex", Kind::regex},
                                                                 {"choice", Kind::choice},
                                                                 {"grammar", Kind::rules}};
        for (const auto& [name, value] : outputs.items()) {
            if (value.is_null() || value == false) continue;
            const std::string inner = place + "." + name;
            const auto* kind = std::find_if(std::begin(kinds), std::end(kinds),
                                            [&](const auto& one) { return name == one.first; });
            if (kind != std::end(kinds)) {
                named(&value, inner, kind->second);
            } else if (name == "json_object" && value == true) {
                set(Format::json_object, inner);
            } else {
                fields_.fail(
                    unsupported_parameter(inner, inner + " is not supported; leave it out"));
            }
        }
    }

    void need(const Json* value, const std::string& place, Kind kind) {
        if (value == nullptr) {
            wrong(place, "is missing");
        } else {
            named(value, place, kind);
        }
    }

    void named(const Json* value, const std::string& place, Kind kind) {
        if (value == nullptr || value->is_null()) return;
        if (kind == Kind::schema) {
            set(Format::json_schema, place);
            output_.schema = *value;
            if (!value->is_string()) return;
            // Some clients send the schema as text.
            output_.schema = parse_json_object(value->get_ref<const std::string&>()).object;
            if (!output_.schema.is_object()) wrong(place, "must be a JSON schema");
        } else if (kind == Kind::choice) {
            set(Format::choice, place);
            for (const Json& one : value->is_array() ? *value : Json::array()) {
                if (one.is_string()) output_.choices.push_back(one.get<std::string>());
            }
            if (!value->is_array() || output_.choices.size() != value->size() || value->empty()) {
                wrong(place, "must be a list of strings");
            }
        } else if (!value->is_string()) {
            wrong(place, "must be a string");
        } else {
            set(kind == Kind::regex ? Format::regex : Format::rules, place);
            output_.text = value->get<std::string>();
        }
    }

    FieldReader& fields_;
    Output output_;
};

const Json& function_of(const Json& tool) {
    const auto nested = tool.find("function");
    return nested != tool.end() ? *nested : tool;
}

// The function that {"type": "function", ...} names; nothing: no such form.
const std::string* chosen_name(const Json& choice) {
    const auto type = choice.find("type");
    if (type == choice.end() || *type != "function") return nullptr;
    const Json& function = function_of(choice);
    if (!function.is_object()) return nullptr;
    const auto name = function.find("name");
    return name != function.end() && name->is_string() ? &name->get_ref<const std::string&>()
                                                       : nullptr;
}

}  // namespace

grammar::OutputRequest read_output_format(FieldReader& fields) {
    return FormatReader(fields).read();
}

bool read_tool_choice(FieldReader& fields, const Json& functions, bool parallel,
                      grammar::OutputRequest& output) {
    const Json* choice = fields.find("tool_choice");
    const bool automatic = choice == nullptr || *choice == "auto";
    if (choice != nullptr && *choice == "none") return false;
    const std::string place = fields.path_of("tool_choice");
    const std::string* name =
        choice != nullptr && choice->is_object() ? chosen_name(*choice) : nullptr;
    if (!automatic && *choice != "required" && name == nullptr) {
        fields.fail(invalid_value(
            place,
            place + " must be \"auto\", \"none\", \"required\" or a function with its name"));
        return false;
    }
    output.tools = Json::array();
    for (const Json& tool : functions) {
        if (name == nullptr || function_of(tool).at("name") == *name) output.tools.push_back(tool);
    }
    if (!automatic && output.tools.empty()) {
        fields.fail(invalid_value(
            place, name == nullptr ? place + " asks for a call, but no tools are offered"
                                   : place + " names a function that tools does not hold"));
        return false;
    }
    if (output.tools.empty()) return false;
    output.calls = automatic ? Output::Calls::allowed : Output::Calls::required;
    output.one_call = name != nullptr || !parallel;
    return true;
}

}  // namespace percheron::server
