// Bytes as the body of a chat request: refused with a client's error, or rendered to a prompt.
#include "fuzz.h"
#include "server/chat_request.h"
#include "server/served_model.h"

namespace percheron::fuzz {
namespace {

const server::ServedModel& nano() {
    static const server::ServedModel model =
        server::ServedModel::load(PERCHERON_SOURCE_DIR "/models/nano").value();
    return model;
}

}  // namespace

void chat_body(Input input) {
    Reader reader(input);
    const server::ParsedChat parsed =
        server::parse_chat_request(reader.rest(), {}, nano().vocabulary);
    if (parsed.error) {
        promise(parsed.error->status >= 400 && parsed.error->status < 500,
                "what is wrong with a body is its client's fault");
        promise(!parsed.error->code.empty() && !parsed.error->message.empty(),
                "an error has a code and a sentence");
        return;
    }
    const auto& request = parsed.request;
    const auto& sampling = request.generation.request.sampling;
    promise(sampling.temperature >= 0 && sampling.top_p > 0 && sampling.top_p <= 1,
            "sampling stays in range");
    const auto prompt =
        nano().format.render(request.messages, request.tools, request.prompt_options);
    if (prompt.ok()) promise(!prompt->ids.empty(), "a prompt has tokens");
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(chat_body)
