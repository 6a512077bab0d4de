// Images of chat messages: from the parts that clients send to what an engine takes.
//
// Everything here runs on a text thread, in three steps: the URLs are taken out of the messages;
// each file's header alone says how many tokens its picture fills, so that what cannot fit is
// refused before anything is decoded; then the pictures are decoded, one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "percheron/engine.h"

#include "server/api_error.h"
#include "server/json_body.h"
#include "server/served_model.h"

namespace percheron::server {

struct ImagePart {
    std::string place;  // "messages[0].content[2]"
    std::string url;
};

// Takes the URLs out of the messages, which must have been checked, in reading order.  The parts
// stay where they are, for the template to see.
std::vector<ImagePart> take_image_parts(Json& messages);

struct ChatImages {
    std::vector<PromptImage> images;  // in reading order; `first` is not set
    std::optional<ApiError> error;
};

// Errors: vision_unavailable when the engine or the model has no vision part;
// context_length_exceeded, request_too_large, invalid_value.
ChatImages read_chat_images(std::vector<ImagePart> parts,
                            const std::optional<vision::PictureFormat>& format,
                            const EngineDescription& engine);

}  // namespace percheron::server
