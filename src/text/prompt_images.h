// Where images stand in a prompt.
#pragma once

#include <vector>

#include "percheron/engine.h"

#include "text/chat_prompt.h"

namespace percheron {

// Puts the images, given in reading order of the messages, into a rendered prompt: each placeholder
// is repeated for every token of its picture.  Returns them in the order of the prompt, with
// `first` set; image_positions then name each picture's first placeholder.
std::vector<PromptImage> place_images(std::vector<PromptImage> images, ChatPrompt& prompt);

}  // namespace percheron
