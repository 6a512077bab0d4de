#include "text/prompt_images.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace percheron {

std::vector<PromptImage> place_images(std::vector<PromptImage> images, ChatPrompt& prompt) {
    std::vector<PromptImage> placed;
    std::vector<TokenId> ids;
    auto rest = prompt.ids.cbegin();  // what is not yet in `ids`
    for (std::size_t k = 0; k < prompt.image_positions.size(); ++k) {
        const auto placeholder =
            prompt.ids.cbegin() + static_cast<std::ptrdiff_t>(prompt.image_positions[k]);
        PromptImage image = images[prompt.image_parts[k]];
        ids.insert(ids.end(), rest, placeholder);
        image.first = static_cast<std::uint32_t>(ids.size());
        prompt.image_positions[k] = image.first;
        ids.insert(ids.end(), image.count, *placeholder);
        rest = placeholder + 1;
        placed.push_back(std::move(image));
    }
    ids.insert(ids.end(), rest, prompt.ids.cend());
    prompt.ids = std::move(ids);
    return placed;
}

}  // namespace percheron
