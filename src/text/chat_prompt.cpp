#include "text/chat_prompt.h"

#include <array>
#include <fstream>
#include <optional>
#include <sstream>

#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/image_parts.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Value;

Result<std::string> content_of(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) return Error(ErrorCode::not_found, path.string() + " cannot be opened");
    std::ostringstream content;
    content << stream.rdbuf();
    if (stream.bad()) return Error(ErrorCode::io, path.string() + " cannot be read");
    return content.str();
}

Result<std::string> template_source(const std::filesystem::path& folder) {
    Result<std::string> source = content_of(folder / "chat_template.jinja");
    if (source.ok() || source.error().code() != ErrorCode::not_found) return source;
    // Older folders keep it inside the tokenizer's configuration.
    PERCHERON_ASSIGN(const std::string text, content_of(folder / "tokenizer_config.json"));
    const Json config = Json::parse(text, nullptr, false);
    if (!config.is_object() || !config.contains("chat_template") ||
        !config["chat_template"].is_string()) {
        return Error(ErrorCode::not_found, folder.string() +
                                               " has neither chat_template.jinja nor a "
                                               "chat_template in tokenizer_config.json");
    }
    return config["chat_template"].get<std::string>();
}

constexpr std::string_view context_length_exceeded = "context_length_exceeded";

using Variables = std::vector<std::pair<std::string, Value>>;

// The tokens that tokenizer_config.json names: templates may print them.
Variables named_tokens(const std::filesystem::path& folder) {
    Variables variables;
    const Result<std::string> text = content_of(folder / "tokenizer_config.json");
    const Json config = text.ok() ? Json::parse(*text, nullptr, false) : Json();
    if (!config.is_object()) return variables;
    for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
        if (!config.contains(name)) continue;
        const Json& token =
            config[name].is_object() ? config[name].value("content", Json()) : config[name];
        if (token.is_string()) variables.emplace_back(name, Value::text(token.get<std::string>()));
    }
    return variables;
}

void set(Variables& variables, std::string name, Value value) {
    for (auto& [present, old] : variables) {
        if (present == name) {
            old = std::move(value);
            return;
        }
    }
    variables.emplace_back(std::move(name), std::move(value));
}

// The variables that a template sees, but the messages.
Result<Variables> variables_of(Variables variables, const Json& tools, const ChatOptions& options) {
    PERCHERON_ASSIGN(Value tool_list, read_chat_tools(tools));
    if (options.variables.is_object()) {
        for (const auto& [name, json] : options.variables.items()) {
            PERCHERON_ASSIGN(Value value, jinja::value_of_json(json, TextOrigin::from_input));
            set(variables, name, std::move(value));
        }
    } else if (!options.variables.is_null()) {
        return Error(ErrorCode::invalid_argument, "chat_template_kwargs must be an object");
    }
    set(variables, "tools", std::move(tool_list));
    set(variables, "add_generation_prompt", Value(options.add_generation_prompt));
    if (!options.reasoning_effort.empty()) {
        set(variables, "reasoning_effort",
            Value::text(options.reasoning_effort, TextOrigin::from_input));
    }
    return variables;
}

// What ends the rendering of a last assistant message that is to be continued: everything from the
// end of its text on is cut off.
Status cut_after_final_message(MarkedText& rendered, const std::string& final_text) {
    const std::size_t first = final_text.find_first_not_of(" \t\n\r\v\f");
    const std::size_t last = final_text.find_last_not_of(" \t\n\r\v\f");
    const std::string sought =
        first == std::string::npos ? std::string() : final_text.substr(first, last - first + 1);
    const std::size_t place = sought.empty() ? std::string::npos : rendered.text().rfind(sought);
    if (place == std::string::npos) {
        return Error(ErrorCode::invalid_argument,
                     "continue_final_message needs a last message with text that the chat template "
                     "prints");
    }
    // Blanks that the caller wrote at the end belong to what is continued, if they were printed.
    std::size_t end = place + sought.size();
    for (std::size_t i = last + 1;
         i < final_text.size() && end < rendered.size() && rendered.text()[end] == final_text[i];
         ++i) {
        ++end;
    }
    rendered = rendered.slice(0, end);
    return {};
}

}  // namespace

struct ChatFormat::Content {
    Tokenizer tokenizer;
    ChatTemplate chat_template;
    Variables token_names;
    std::optional<TokenId> think_open;
    std::optional<TokenId> think_close;
    std::optional<TokenId> image;
    std::optional<TokenId> video;
};

ChatFormat::ChatFormat(std::unique_ptr<Content> content) : content_(std::move(content)) {}
ChatFormat::ChatFormat(ChatFormat&&) noexcept = default;
ChatFormat& ChatFormat::operator=(ChatFormat&&) noexcept = default;
ChatFormat::~ChatFormat() = default;

const Tokenizer& ChatFormat::tokenizer() const {
    return content_->tokenizer;
}

// Control text that the template writes and the tokenizer does not know would reach the model as
// plain letters.
Status check_roles(const Tokenizer& tokenizer, std::string_view template_source) {
    for (const std::string_view name :
         {"<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"}) {
        if (template_source.find(name) != std::string_view::npos && !tokenizer.added_token(name)) {
            return Error(ErrorCode::corrupt,
                         "tokenizer.json has no added token " + std::string(name) +
                             ", which the chat template writes; put the model's own "
                             "tokenizer.json beside its template");
        }
    }
    return {};
}

Result<ChatFormat> ChatFormat::load(const std::filesystem::path& model_folder) {
    PERCHERON_ASSIGN(Tokenizer tokenizer, Tokenizer::load(model_folder / "tokenizer.json"));
    PERCHERON_ASSIGN(const std::string source, template_source(model_folder));
    PERCHERON_ASSIGN(ChatFormat format, make(std::move(tokenizer), source));
    format.content_->token_names = named_tokens(model_folder);
    return format;
}

Result<ChatFormat> ChatFormat::make(Tokenizer tokenizer, std::string_view template_source) {
    PERCHERON_ASSIGN(ChatTemplate compiled, ChatTemplate::compile(template_source));
    auto content = std::make_unique<Content>(
        Content{std::move(tokenizer), std::move(compiled), {}, {}, {}, {}, {}});
    const Tokenizer& known = content->tokenizer;
    PERCHERON_TRY(check_roles(known, template_source));
    content->think_open = known.added_token("<think>");
    content->think_close = known.added_token("</think>");
    content->image = known.added_token("<|image|>");
    content->video = known.added_token("<|video|>");
    return ChatFormat(std::move(content));
}

Result<ChatPrompt> ChatFormat::render(const Json& messages, const Json& tools,
                                      const ChatOptions& options) const {
    if (options.continue_final_message && options.add_generation_prompt) {
        return Error(ErrorCode::invalid_argument,
                     "continue_final_message needs add_generation_prompt to be false");
    }
    PERCHERON_ASSIGN(ChatMessages chat, read_chat_messages(messages));
    PERCHERON_ASSIGN(Variables variables, variables_of(content_->token_names, tools, options));
    if (options.continue_final_message && !chat.ends_with_assistant) {
        return Error(ErrorCode::invalid_argument,
                     "continue_final_message needs an assistant message at the end of messages");
    }
    set(variables, "messages", std::move(chat.messages));
    PERCHERON_ASSIGN(MarkedText rendered, content_->chat_template.render(std::move(variables)));
    if (options.continue_final_message) {
        PERCHERON_TRY(cut_after_final_message(rendered, chat.last_text));
    }
    const std::size_t least = rendered.size() / content_->tokenizer.longest_token();
    if (least > options.most_tokens) {
        return Error(ErrorCode::invalid_argument,
                     "the prompt has " + std::to_string(rendered.size()) +
                         " bytes of text, which are more than " + std::to_string(least) +
                         " tokens, and the model's context is " +
                         std::to_string(options.most_tokens) + " tokens; shorten the messages",
                     context_length_exceeded);
    }
    ChatPrompt prompt;
    prompt.ids = content_->tokenizer.encode_marked(rendered);
    prompt.text = rendered.text();
    prompt.last_message = std::move(chat.last_text);
    for (std::size_t i = 0; i < prompt.ids.size(); ++i) {
        const TokenId id = prompt.ids[i];
        if (id == content_->image) prompt.image_positions.push_back(i);
        if (id == content_->video) prompt.video_positions.push_back(i);
        if (id == content_->think_open) prompt.starts_in_reasoning = true;
        if (id == content_->think_close) prompt.starts_in_reasoning = false;
    }
    PERCHERON_TRY(find_image_parts(messages, tools, options, prompt));
    return prompt;
}

Status ChatFormat::find_image_parts(const Json& messages, const Json& tools,
                                    const ChatOptions& options, ChatPrompt& prompt) const {
    const std::size_t parts = count_image_parts(messages);
    if (prompt.image_positions.size() != parts) {
        return Error(ErrorCode::invalid_argument,
                     "messages hold " + std::to_string(parts) +
                         " images and the chat template prints " +
                         std::to_string(prompt.image_positions.size()) +
                         "; send images in user or tool messages");
    }
    if (parts < 2) {
        prompt.image_parts.resize(parts, 0);
        return {};
    }
    const auto render_again = [&](const Json& marked) -> Result<std::string> {
        PERCHERON_ASSIGN(ChatMessages chat, read_chat_messages(marked));
        PERCHERON_ASSIGN(Variables variables, variables_of(content_->token_names, tools, options));
        set(variables, "messages", std::move(chat.messages));
        PERCHERON_ASSIGN(const MarkedText text,
                         content_->chat_template.render(std::move(variables)));
        return text.text();
    };
    PERCHERON_ASSIGN(prompt.image_parts, order_of_image_parts(messages, prompt.text, render_again));
    return {};
}

}  // namespace percheron
