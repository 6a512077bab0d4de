// Bytes as the body of a chat request: refused with a client's error, or rendered to a prompt.
#include "fuzz.h"
#include "server/chat_request.h"
#include "server/served_model.h"
#include "text/prompt_images.h"

namespace percheron::fuzz {
namespace {

const server::ServedModel& nano() {
    static const server::ServedModel model =
        server::ServedModel::load(PERCHERON_SOURCE_DIR "/models/nano").value();
    return model;
}

void expect_clients_fault(const server::ApiError& error) {
    promise(error.status >= 400 && error.status < 500,
            "what is wrong with a body is its client's fault");
    promise(!error.code.empty() && !error.message.empty(), "an error has a code and a sentence");
}

}  // namespace

void chat_body(Input input) {
    Reader reader(input);
    server::ParsedChat parsed = server::parse_chat_request(reader.rest(), {}, nano().vocabulary);
    if (parsed.error) return expect_clients_fault(*parsed.error);
    auto& request = parsed.request;
    const auto& sampling = request.generation.request.sampling;
    promise(sampling.temperature >= 0 && sampling.top_p > 0 && sampling.top_p <= 1,
            "sampling stays in range");
    EngineDescription engine;
    engine.context_tokens = 4096;
    engine.vision = true;
    const std::size_t parts = request.images.size();
    server::ChatImages images =
        server::read_chat_images(std::move(request.images), nano().vision, engine);
    if (images.error) return expect_clients_fault(*images.error);
    promise(images.images.size() == parts, "every image part is an image");
    auto prompt = nano().format.render(request.messages, request.tools, request.prompt_options);
    if (!prompt.ok()) return;
    const auto placed = place_images(std::move(images.images), *prompt);
    promise(!prompt->ids.empty(), "a prompt has tokens");
    promise(placed.size() == parts, "every image stands in the prompt");
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(chat_body)
