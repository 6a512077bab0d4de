// The request fields that every generating route shares: sampling, limits, seeds, stops, streaming.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "percheron/engine.h"

#include "grammar/output_rules.h"
#include "server/json_body.h"

namespace percheron::server {

// What omitted fields mean; the model's own recommendation and the server's options.
struct GenerationDefaults {
    float temperature = 1.0f;
    float top_p = 1.0f;
    int top_k = 0;
    float min_p = 0.0f;
    float repetition_penalty = 1.0f;
    std::optional<std::chrono::seconds> deadline;
};

struct GenerationFields {
    GenerationRequest request;      // without prompt
    grammar::OutputRequest output;  // what the answer must be
    std::vector<std::string> stop_strings;
    bool stream = false;
    bool include_usage = false;
    bool continuous_usage = false;
    bool return_token_ids = false;
    std::string model;
};

// Reads them from `fields`, whose error() says what is wrong.  `vocabulary` bounds token ids.
GenerationFields read_generation_fields(FieldReader& fields, const GenerationDefaults& defaults,
                                        std::uint32_t vocabulary);

// Refuses what would change a reply and is not done here.  What clients send beside it without
// effect on a reply (user, metadata, store, thinking, ...) stays unread, and so comes into the log.
// `more`: what a route refuses beside, unless it is false.
void refuse_foreign_fields(FieldReader& fields, std::initializer_list<const char*> more = {});

}  // namespace percheron::server
