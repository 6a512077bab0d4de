// POST /v1/messages and POST /v1/messages/count_tokens.
#include "server/chat_preparation.h"
#include "server/messages_request.h"
#include "server/messages_writer.h"
#include "server/routes.h"

namespace percheron::server {
namespace {

PreparedGeneration prepare(const GenerationSetting& setting, std::string_view body) {
    PreparedGeneration prepared =
        prepare_chat(setting, parse_converted(chat_of_messages(body), setting));
    prepared.id_prefix = "msg_";
    prepared.make_writer =
        prepared.fields.stream ? make_messages_stream_writer : make_messages_writer;
    return prepared;
}

struct Count {
    std::optional<ApiError> error;
    std::size_t tokens = 0;
};

Count count(const GenerationSetting& setting, std::string_view body) {
    ParsedChat parsed = parse_converted(chat_of_messages(body), setting);
    if (parsed.error) return {std::move(parsed.error), 0};
    RenderedChat rendered = render_chat(parsed.request, setting);
    return {std::move(rendered.error), rendered.prompt.ids.size()};
}

}  // namespace

asio::awaitable<void> serve_messages(RouteCall& call) {
    return serve_generation(call, prepare);
}

asio::awaitable<void> serve_count_tokens(RouteCall& call) {
    Count counted{call.state.unavailable(), 0};
    if (!counted.error) {
        const GenerationSetting setting = generation_setting(call);
        const std::string& body = call.exchange.request().body;
        co_await on_text_thread(call.state, [&] { counted = count(setting, body); });
    }
    if (counted.error) {
        call.exchange.respond(error_response(*counted.error, call.error_form));
        co_return;
    }
    HttpResponse response;
    response.body = R"({"input_tokens":)" + std::to_string(counted.tokens) + "}";
    call.exchange.respond(std::move(response));
}

}  // namespace percheron::server
