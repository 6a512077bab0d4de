// Text to ids and back, for harnesses that count tokens with the server's own tokenizer.
#include "server/api_error.h"
#include "server/chat_preparation.h"
#include "server/json_body.h"
#include "server/routes.h"
#include "text/unicode.h"

namespace percheron::server {
namespace {

constexpr std::size_t longest_text = 64 * 1024 * 1024;

// What a text thread leaves behind.
struct Outcome {
    std::optional<ApiError> error;
    std::string json;
};

Outcome tokenize(const GenerationSetting& setting, std::string_view body) {
    const ServedModel& model = setting.model;
    const EngineDescription& engine = setting.engine;
    JsonBody json = parse_json_object(body);
    if (json.error) return {json.error, ""};
    FieldReader fields(json.object);
    const bool with_strings = fields.boolean("return_token_strs").value_or(false);
    std::vector<TokenId> ids;
    if (fields.find("messages") != nullptr) {
        ChatRequest chat;
        chat.prompt_options.add_generation_prompt =
            fields.boolean("add_generation_prompt").value_or(true);
        if (const Json* tools = fields.find("tools")) chat.tools = *tools;
        if (fields.error()) return {fields.error(), ""};
        chat.messages = *fields.find("messages");
        chat.images = take_image_parts(chat.messages);
        RenderedChat rendered = render_chat(chat, setting);
        if (rendered.error) return {rendered.error, ""};
        ids = std::move(rendered.prompt.ids);
    } else {
        const auto text = fields.text("prompt", longest_text);
        // The tokenizer adds no tokens of its own, so there are none to leave out.
        fields.boolean("add_special_tokens");
        if (!text) fields.fail(invalid_value("prompt", "prompt must be a string"));
        if (fields.error()) return {fields.error(), ""};
        const std::size_t least = text->size() / model.format.tokenizer().longest_token();
        if (least > engine.context_tokens) {
            return {ApiError{400, "context_length_exceeded",
                             "the text has more than " + std::to_string(least) +
                                 " tokens and the model's context is " +
                                 std::to_string(engine.context_tokens) + " tokens; send a part",
                             "prompt"},
                    ""};
        }
        ids = model.format.tokenizer().encode_trusted(*text);
    }
    Json tokens = Json::array();
    for (const TokenId id : ids)
        tokens.push_back(to_int(id));
    Json reply{{"count", ids.size()}, {"max_model_len", engine.context_tokens}, {"tokens", tokens}};
    if (with_strings) {
        Json& strings = reply["token_strs"] = Json::array();
        for (const TokenId id : ids)
            strings.push_back(with_replacements(model.format.tokenizer().bytes_of(id)));
    }
    return {std::nullopt, reply.dump()};
}

Outcome detokenize(const ServedModel& model, std::string_view body) {
    JsonBody json = parse_json_object(body);
    if (json.error) return {json.error, ""};
    FieldReader fields(json.object);
    const Json* tokens = fields.find("tokens");
    const std::string wrong =
        "tokens must be a list of token ids below " + std::to_string(model.vocabulary);
    if (tokens == nullptr || !tokens->is_array()) return {invalid_value("tokens", wrong), ""};
    std::vector<TokenId> ids;
    for (const Json& token : *tokens) {
        if (!token.is_number_unsigned() || token.get<std::uint64_t>() >= model.vocabulary) {
            return {invalid_value("tokens", wrong), ""};
        }
        ids.push_back(TokenId{token.get<std::int32_t>()});
    }
    return {std::nullopt, Json{{"prompt", model.format.tokenizer().decode(ids)}}.dump()};
}

void respond(HttpExchange& exchange, Outcome outcome) {
    if (outcome.error) {
        exchange.respond(error_response(*outcome.error));
        return;
    }
    HttpResponse response;
    response.body = std::move(outcome.json);
    exchange.respond(std::move(response));
}

}  // namespace

asio::awaitable<void> serve_tokenize(RouteCall& call) {
    if (const auto error = call.state.unavailable()) {
        call.exchange.respond(error_response(*error));
        co_return;
    }
    Outcome outcome;
    const GenerationSetting setting = generation_setting(call);
    const std::string& body = call.exchange.request().body;
    co_await on_text_thread(call.state, [&] { outcome = tokenize(setting, body); });
    respond(call.exchange, std::move(outcome));
}

asio::awaitable<void> serve_detokenize(RouteCall& call) {
    if (const auto error = call.state.unavailable()) {
        call.exchange.respond(error_response(*error));
        co_return;
    }
    Outcome outcome;
    const ServedModel& model = *call.state.model;
    const std::string& body = call.exchange.request().body;
    co_await on_text_thread(call.state, [&] { outcome = detokenize(model, body); });
    respond(call.exchange, std::move(outcome));
}

asio::awaitable<void> serve_tokenizer_info(RouteCall& call) {
    if (const auto error = call.state.unavailable()) {
        call.exchange.respond(error_response(*error));
        co_return;
    }
    const ServedModel& model = *call.state.model;
    const Tokenizer& tokenizer = model.format.tokenizer();
    const std::string end(
        model.stop_tokens.empty() ? "" : tokenizer.bytes_of(model.stop_tokens.front()));
    HttpResponse response;
    response.body = Json{{"tokenizer_class", "byte_level_bpe"},
                         {"eos_token", end},
                         {"bos_token", nullptr},
                         {"pad_token", end},
                         {"chat_template", model.chat_template}}
                        .dump(-1, ' ', false, Json::error_handler_t::replace);
    call.exchange.respond(std::move(response));
}

}  // namespace percheron::server
