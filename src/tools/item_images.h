// The pictures that a task's messages carry or describe.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "percheron/engine.h"

#include "core/status.h"

namespace percheron::tools {

// In reading order, as an engine takes them; `first` is not set.  A part has a "draw" object
// (tools/drawn_pictures.h) or a data: URL where chat clients put one.
// Errors: of draw_picture and of the decoder, with the part's place.
Result<std::vector<PromptImage>> item_images(const nlohmann::ordered_json& messages);

}  // namespace percheron::tools
