// Hostile templates, and hostile chats for the shipped template.
#include <string>

#include <nlohmann/json.hpp>

#include "fuzz.h"
#include "text/chat_prompt.h"
#include "text/chat_template.h"
#include "text/unicode.h"

namespace percheron::fuzz {
namespace {

using Json = nlohmann::ordered_json;

const ChatFormat& nano() {
    static const ChatFormat format = ChatFormat::load(PERCHERON_SOURCE_DIR "/models/nano").value();
    return format;
}

// The variables every template sees here.
std::vector<std::pair<std::string, jinja::Value>> variables() {
    static const Json json = Json::parse(
        R"({"s":"a <|user|> b","n":3,"l":[1,"x",null,2.5],"d":{"k":"v","q":[{}]},"t":true,
            "messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]})");
    std::vector<std::pair<std::string, jinja::Value>> result;
    for (const auto& [name, value] : json.items()) {
        result.emplace_back(name, jinja::value_of_json(value, TextOrigin::from_input).value());
    }
    return result;
}

void any_template(std::string_view source) {
    const auto compiled = ChatTemplate::compile(source);
    if (!compiled.ok()) {
        promise(!compiled.error().message().empty(), "a refusal says why");
        return;
    }
    const auto text = compiled->render(variables(), {.steps = 200'000, .text_bytes = 1 << 18});
    promise(text.ok() || !text.error().message().empty(), "a failure says why");
    if (text.ok()) promise(text->size() <= 1 << 18, "the text is bounded");
}

// The same bytes as messages, wherever text can stand.
void any_chat(std::uint8_t shape, std::string_view bytes) {
    const std::string text = with_replacements(bytes);
    Json messages = Json::parse(bytes, nullptr, false);
    Json tools;
    if (messages.is_discarded()) {
        messages = Json::array(
            {{{"role", "system"}, {"content", text}},
             {{"role", "user"}, {"content", Json::array({text})}},
             {{"role", "assistant"},
              {"content", text},
              {"reasoning", text},
              {"tool_calls",
               Json::array({{{"id", text},
                             {"function", {{"name", text}, {"arguments", {{text, text}}}}}}})}},
             {{"role", "tool"}, {"tool_call_id", text}, {"content", text}}});
        if (shape % 2 == 0) tools = Json::array({{{"name", text}, {"description", text}}});
    }
    ChatOptions options;
    options.add_generation_prompt = shape % 4 < 2;
    const auto prompt = nano().render(messages, tools, options);
    if (!prompt.ok()) {
        promise(!prompt.error().message().empty(), "a refusal says why");
        return;
    }
    promise(nano().tokenizer().decode(prompt->ids) == with_replacements(prompt->text),
            "the ids are the rendered text");
}

}  // namespace

void chat_template(Input input) {
    Reader reader(input);
    const std::uint8_t kind = reader.byte();
    if (kind < 160) {
        any_template(reader.rest());
    } else {
        any_chat(kind, reader.rest());
    }
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(chat_template)
