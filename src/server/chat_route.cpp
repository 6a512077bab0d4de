// POST /v1/chat/completions.
#include "server/chat_preparation.h"
#include "server/chat_writer.h"
#include "server/generation.h"
#include "server/routes.h"

namespace percheron::server {
namespace {

PreparedGeneration prepare(const GenerationSetting& setting, std::string_view body) {
    PreparedGeneration prepared = prepare_chat(
        setting, parse_chat_request(body, chat_defaults(setting), setting.model.vocabulary));
    prepared.id_prefix = "chatcmpl-";
    const GenerationFields& fields = prepared.fields;
    const ChatWriterOptions options{fields.request.choices, fields.include_usage,
                                    fields.continuous_usage, fields.return_token_ids,
                                    fields.request.sampling.top_logprobs >= 0};
    prepared.make_writer = [options, stream = fields.stream](const WriterSetting& writer) {
        return stream ? make_chat_stream_writer(writer, options)
                      : make_chat_writer(writer, options);
    };
    return prepared;
}

}  // namespace

asio::awaitable<void> serve_chat(RouteCall& call) {
    return serve_generation(call, prepare);
}

}  // namespace percheron::server
