// What the server needs to know of a model beside its engine: its format of text and its defaults.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "server/generation_fields.h"
#include "text/chat_prompt.h"
#include "vision/prompt_image.h"

namespace percheron::server {

struct ServedModel {
    std::string name;
    std::string root;  // the folder, as harnesses load a tokenizer by it
    ChatFormat format;
    GenerationDefaults defaults;
    std::string chat_template;         // its source
    std::vector<TokenId> stop_tokens;  // of config.json and generation_config.json together
    std::uint32_t vocabulary = 0;
    std::uint32_t context_limit = 0;  // max_position_embeddings
    std::uint64_t created = 0;        // Unix seconds of config.json

    // What config.json and preprocessor_config.json say of pictures; nothing without a
    // vision_config or a placeholder token.  Whether the engine sees them is the engine's to say.
    std::optional<vision::PictureFormat> vision;

    // Reads tokenizer, chat template, config.json, generation_config.json and
    // preprocessor_config.json of a model folder; the last two may be absent.
    // Errors: not_found, io, corrupt.
    static Result<ServedModel> load(const std::filesystem::path& folder);
};

}  // namespace percheron::server
