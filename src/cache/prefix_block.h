// A block of the prefix tree, and the checkpoint that may stand at its end.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "percheron/types.h"

#include "ops/batch.h"

namespace percheron::cache {

// In rising order of what they are worth to others (C7 of docs/SCHEDULER.md).
enum class CheckpointKind : std::uint8_t {
    between,   // at a chunk's end in the middle of a prompt
    turn_end,  // where the latest prompt or reply of a conversation ends
    anchor,    // where prompts are known, or were seen, to part
};

struct PrefixBlock {
    struct Checkpoint {
        CheckpointId id{};
        CheckpointKind kind = CheckpointKind::between;
    };

    PrefixBlock* parent = nullptr;      // null: a root, which stands for no positions
    const std::string* name = nullptr;  // its key with the parent; a root's is the salt
    std::uint32_t depth = 0;            // blocks up to this one, itself included
    PageId page{};
    std::uint64_t used = 0;  // rises with every use
    std::map<std::string, PrefixBlock*> children;
    std::optional<Checkpoint> checkpoint;

    Position end() const { return depth * static_cast<Position>(ops::page_tokens); }
};

}  // namespace percheron::cache
