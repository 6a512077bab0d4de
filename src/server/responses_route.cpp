// POST /v1/responses, GET and DELETE /v1/responses/ID.
#include "server/chat_preparation.h"
#include "server/response_store.h"
#include "server/responses_writer.h"
#include "server/routes.h"
#include "server/sse.h"

namespace percheron::server {
namespace {

// As the client wrote it: 0.95, not the nearest double to its float.
Json shortest(float value) {
    std::string digits;
    append_number(digits, value);
    return Json::parse(digits);
}

PreparedGeneration prepare(const GenerationSetting& setting, std::string_view body) {
    ConvertedResponse converted = chat_of_response(body, setting.responses, setting.owner);
    PreparedGeneration prepared =
        prepare_chat(setting, parse_converted(std::move(converted.body), setting));
    prepared.id_prefix = "resp_";
    const SamplingParameters& sampling = prepared.fields.request.sampling;
    converted.request.echo["temperature"] = shortest(sampling.temperature);
    converted.request.echo["top_p"] = shortest(sampling.top_p);
    const ResponsesWriterOptions options{
        std::make_shared<const ResponseRequest>(std::move(converted.request)), &setting.responses,
        setting.owner};
    prepared.make_writer = [options, stream = prepared.fields.stream](const WriterSetting& writer) {
        return stream ? make_responses_stream_writer(writer, options)
                      : make_responses_writer(writer, options);
    };
    return prepared;
}

void respond_unknown(RouteCall& call) {
    call.exchange.respond(error_response(
        {404, "not_found",
         "there is no such response here: it was never stored, is deleted, or made room for others",
         "response_id"}));
}

}  // namespace

asio::awaitable<void> serve_responses(RouteCall& call) {
    return serve_generation(call, prepare);
}

asio::awaitable<void> serve_response(RouteCall& call) {
    const auto found = call.state.responses.find(std::string(call.tail), call.key.owner);
    if (found == nullptr) {
        respond_unknown(call);
        co_return;
    }
    HttpResponse response;
    response.body = found->object;
    call.exchange.respond(std::move(response));
}

asio::awaitable<void> delete_response(RouteCall& call) {
    if (!call.state.responses.erase(std::string(call.tail), call.key.owner)) {
        respond_unknown(call);
        co_return;
    }
    HttpResponse response;
    response.body = R"({"id":)";
    append_quoted(response.body, call.tail);
    response.body += R"(,"object":"response","deleted":true})";
    call.exchange.respond(std::move(response));
}

}  // namespace percheron::server
