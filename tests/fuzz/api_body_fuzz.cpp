// Bytes as the body of each other generating route: refused with a client's error, or prompts.  The
// first byte chooses the route.
#include "fuzz.h"
#include "server/chat_preparation.h"
#include "server/completion_request.h"
#include "server/messages_request.h"
#include "server/response_store.h"
#include "server/responses_request.h"
#include "server/served_model.h"

namespace percheron::fuzz {
namespace {

using namespace server;

const ServedModel& nano() {
    static const ServedModel model = ServedModel::load(PERCHERON_SOURCE_DIR "/models/nano").value();
    return model;
}

// A turn that previous_response_id may name.
ResponseStore& store() {
    static ResponseStore kept(1 << 20);
    if (kept.find("resp_1", "") == nullptr) {
        kept.add({"resp_1", "", "{}", Json::array({{{"role", "user"}, {"content", "hi"}}}),
                  Json::array({{{"type", "function_call"},
                                {"call_id", "c"},
                                {"name", "f"},
                                {"arguments", "{}"}}}),
                  nullptr});
    }
    return kept;
}

void expect_clients_fault(const ApiError& error) {
    promise(error.status >= 400 && error.status < 500,
            "what is wrong with a body is its client's fault");
    promise(!error.code.empty() && !error.message.empty(), "an error has a code and a sentence");
}

void expect_generation(const PreparedGeneration& prepared) {
    if (prepared.error) return expect_clients_fault(*prepared.error);
    promise(!prepared.requests.empty(), "what is accepted has a prompt");
    for (const GenerationRequest& request : prepared.requests) {
        promise(!request.prompt.empty(), "a prompt has tokens");
        promise(request.sampling.temperature >= 0 && request.sampling.top_p > 0 &&
                    request.sampling.top_p <= 1,
                "sampling stays in range");
        for (const PromptImage& image : request.images)
            promise(image.first + image.count <= request.prompt.size(),
                    "images stand inside the prompt");
    }
}

}  // namespace

void api_body(Input input) {
    Reader reader(input);
    const unsigned route = reader.byte();
    EngineDescription engine;
    engine.context_tokens = 4096;
    engine.vision = true;
    const GenerationSetting setting{nano(), engine, "max", false, "", store()};
    if (route % 3 == 0) {
        expect_generation(prepare_completion(setting, reader.rest()));
    } else if (route % 3 == 1) {
        expect_generation(
            prepare_chat(setting, parse_converted(chat_of_messages(reader.rest()), setting)));
    } else {
        ConvertedResponse converted = chat_of_response(reader.rest(), store(), "");
        expect_generation(
            prepare_chat(setting, parse_converted(std::move(converted.body), setting)));
    }
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(api_body)
