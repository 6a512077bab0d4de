// Which checkpoint goes when there is no memory for another (C8 of docs/SCHEDULER.md).
#pragma once

#include <cstdint>
#include <span>

#include "cache/prefix_block.h"

namespace percheron::cache {

// `held`: every block with a checkpoint, as many as there is memory for.  `added`: the block that
// is to get one of `kind`.  Returns the block that gives its checkpoint up; null: none should, the
// new one is worth less than all of them.
PrefixBlock* checkpoint_to_give_up(std::span<PrefixBlock* const> held, PrefixBlock& added,
                                   CheckpointKind kind);

}  // namespace percheron::cache
