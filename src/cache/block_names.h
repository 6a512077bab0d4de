// What the blocks of a prompt are called in the prefix tree (C2 of docs/SCHEDULER.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "percheron/types.h"

#include "ops/batch.h"

namespace percheron::cache {

// Placeholders [first, first + count) of a prompt, replaced by the rows of one image.
struct ImageSpan {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::array<std::uint8_t, 32> content_hash{};
};

// A prompt as the tree sees it.  Views: the owner outlives it.
struct PrefixText {
    std::span<const TokenId> tokens;
    std::span<const ImageSpan> images;  // ascending, apart from each other
    std::string_view salt;
};

// The name of positions [64 * block, 64 * block + 64): their 64 ids, then for every image that
// reaches into them where it does, with which of its rows, and its hash.  The ids have a fixed
// length and so has every image's entry, so that two names are equal only if all of it is.
inline std::string block_name(const PrefixText& text, std::size_t block) {
    const std::size_t begin = block * ops::page_tokens;
    const std::size_t end = begin + ops::page_tokens;
    std::string name;
    const auto append = [&name](const void* data, std::size_t bytes) {
        name.append(static_cast<const char*>(data), bytes);
    };
    append(text.tokens.data() + begin, ops::page_tokens * sizeof(TokenId));
    for (const ImageSpan& image : text.images) {
        const std::size_t from = std::max<std::size_t>(image.first, begin);
        const std::size_t to = std::min<std::size_t>(image.first + image.count, end);
        if (from >= to) continue;
        const std::uint32_t entry[3] = {static_cast<std::uint32_t>(from - begin),
                                        static_cast<std::uint32_t>(to - from),
                                        static_cast<std::uint32_t>(from - image.first)};
        append(entry, sizeof entry);
        append(image.content_hash.data(), image.content_hash.size());
    }
    return name;
}

}  // namespace percheron::cache
