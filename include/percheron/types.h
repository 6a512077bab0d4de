// Small types that carry their meaning across boundaries.
#pragma once

#include <cstddef>
#include <cstdint>

namespace percheron {

// A row of the embedding matrix.  Added ("special") tokens share the same space.
enum class TokenId : std::int32_t {};

// Index of a token in its sequence, counted from the prompt's first token.
using Position = std::uint32_t;

// A running request's place in everything mutable (KDA state, conv rows, tails).  Never a batch
// row.
enum class RequestSlot : std::uint32_t {};

// One block of 64 token positions in every paged group.
enum class PageId : std::uint32_t {};

// A saved copy of a sequence's mutable state.
enum class CheckpointId : std::uint32_t {};

// Names one submitted request for the life of an engine.
enum class RequestId : std::uint64_t {};

using Bytes = std::uint64_t;

constexpr std::int32_t to_int(TokenId id) {
    return static_cast<std::int32_t>(id);
}
constexpr std::uint32_t to_int(RequestSlot slot) {
    return static_cast<std::uint32_t>(slot);
}
constexpr std::uint32_t to_int(PageId page) {
    return static_cast<std::uint32_t>(page);
}
constexpr std::uint32_t to_int(CheckpointId checkpoint) {
    return static_cast<std::uint32_t>(checkpoint);
}
constexpr std::uint64_t to_int(RequestId id) {
    return static_cast<std::uint64_t>(id);
}

}  // namespace percheron
