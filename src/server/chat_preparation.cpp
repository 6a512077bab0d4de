#include "server/chat_preparation.h"

#include <utility>

#include "text/prompt_images.h"

namespace percheron::server {

ChatDefaults chat_defaults(const GenerationSetting& setting) {
    return {setting.model.defaults, setting.reasoning_effort};
}

RenderedChat render_chat(ChatRequest& chat, const GenerationSetting& setting) {
    RenderedChat result;
    ChatImages images =
        read_chat_images(std::move(chat.images), setting.model.vision, setting.engine);
    result.error = std::move(images.error);
    if (result.error) return result;
    chat.prompt_options.most_tokens = setting.engine.context_tokens;
    auto rendered = setting.model.format.render(chat.messages, chat.tools, chat.prompt_options);
    if (!rendered.ok()) {
        result.error = error_of_rendering(rendered.error());
        return result;
    }
    result.prompt = std::move(*rendered);
    result.images = place_images(std::move(images.images), result.prompt);
    return result;
}

PreparedGeneration prepare_chat(const GenerationSetting& setting, ParsedChat parsed) {
    PreparedGeneration prepared;
    ChatRequest& chat = parsed.request;
    prepared.fields = std::move(chat.generation);
    prepared.unknown_fields = std::move(chat.unknown_fields);
    prepared.error = std::move(parsed.error);
    if (!prepared.error) prepared.error = check_model(setting, prepared.fields.model);
    if (prepared.error) return prepared;
    write_output_rules(setting, prepared);
    if (prepared.error) return prepared;
    RenderedChat rendered = render_chat(chat, setting);
    prepared.error = std::move(rendered.error);
    if (prepared.error) return prepared;

    GenerationRequest request = prepared.fields.request;
    request.images = std::move(rendered.images);
    request.last_message = std::move(rendered.prompt.last_message);
    prepared.error = set_prompt(request, std::move(rendered.prompt.ids), setting, "messages");
    if (prepared.error) return prepared;
    prepared.requests.push_back(std::move(request));
    prepared.starts_in_reasoning = rendered.prompt.starts_in_reasoning;
    prepared.tools = std::make_shared<const ToolSchemas>(chat.tools);
    prepared.parallel_tool_calls = chat.parallel_tool_calls;
    prepared.reasoning_effort = std::move(chat.prompt_options.reasoning_effort);
    return prepared;
}

}  // namespace percheron::server
