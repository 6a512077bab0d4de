// The prefix cache (C1 to C8 of docs/SCHEDULER.md): which pages hold what, who reads them, and
// where a saved state stands.  One space of page ids for sequences and cache.  Numbers only; pages'
// and checkpoints' memory is CacheStore's, and the copies between slots and checkpoints are the
// engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "percheron/types.h"

#include "cache/block_names.h"
#include "cache/pools.h"
#include "cache/prefix_block.h"

namespace percheron::cache {

// How far a sequence's pages are a path of the tree.  Good as long as the sequence holds them:
// blocks with readers stay.
struct PrefixPlace {
    PrefixBlock* block = nullptr;  // null: no block of it

    std::uint32_t blocks() const { return block == nullptr ? 0 : block->depth; }
};

// What a prompt finds.  Good until the cache changes.
struct PrefixHit {
    PrefixBlock* block = nullptr;    // null: nothing; else one with a checkpoint
    PrefixBlock* deepest = nullptr;  // of the prompt's blocks in the tree, hit or not ...
    std::uint32_t matched = 0;       // ... and how many they are

    std::uint32_t blocks() const { return block == nullptr ? 0 : block->depth; }
};

class PrefixCache {
  public:
    // Without checkpoints nothing can be hit, and nothing is kept.
    PrefixCache(std::uint32_t pages, std::uint32_t checkpoints)
        : pages_(pages), checkpoints_(checkpoints) {}

    const PagePool& pages() const { return pages_; }
    std::uint32_t available() const { return pages_.free() + pages_.idle(); }
    std::uint32_t blocks() const { return static_cast<std::uint32_t>(blocks_.size()); }
    std::uint32_t checkpoints() const { return static_cast<std::uint32_t>(held_.size()); }
    bool on() const { return checkpoints_.total() > 0; }

    // ---- pages of sequences

    // Grows `table` to `pages` entries, taking pages from the tree where none is free; false, with
    // nothing taken, when too few are available.
    [[nodiscard]] bool grow(std::vector<PageId>& table, std::uint32_t pages);
    void release(std::vector<PageId>& table) { pages_.release(table); }

    // ---- hits

    // The deepest checkpoint on the prompt's path, among its first `most` blocks.
    PrefixHit find(const PrefixText& text, std::uint32_t most);
    // Starts an empty table with the pages of a hit.
    PrefixPlace attach(const PrefixHit& hit, std::vector<PageId>& table);

    // ---- what sequences leave behind

    // Blocks [place, blocks) of the text are computed and lie in `table`: they enter the tree, or
    // the table takes the tree's pages for them.  Returns the place behind them.
    PrefixPlace publish(PrefixPlace place, const PrefixText& text, std::vector<PageId>& table,
                        std::uint32_t blocks);
    // Room for a checkpoint at the end of a place; the state must be copied there before anything
    // looks for a hit.  Nothing: there is one already, or no room for one of this kind.
    std::optional<CheckpointId> add_checkpoint(PrefixPlace place, CheckpointKind kind);
    // Gives up the checkpoint at the end of a place, if there is one.
    void drop_checkpoint(PrefixPlace place);
    // Who keeps something beside checkpoints is told when one goes, before its id is another's.
    void watch_checkpoints(std::function<void(CheckpointId)> gone) { gone_ = std::move(gone); }

    // ---- what comes from elsewhere

    // The text's block behind `place`, whose numbers somebody has kept, enters the tree with a page
    // that nobody reads; it must be filled before anything looks for a hit.
    struct Adopted {
        PrefixPlace place;           // behind the block; where it was: there is no page
        std::optional<PageId> fill;  // absent: the tree has it
    };
    Adopted adopt(PrefixPlace place, const PrefixText& text);

  private:
    PrefixBlock* root(std::string_view salt, bool make);
    PrefixBlock* add_block(PrefixBlock& parent, std::string name, PageId page);
    void touch(PrefixBlock& block);
    bool give_up_page();
    void remove(PrefixBlock& block);

    PagePool pages_;
    CheckpointPool checkpoints_;
    std::map<std::string, PrefixBlock, std::less<>> roots_;  // by salt; each has children
    std::unordered_map<const PrefixBlock*, std::unique_ptr<PrefixBlock>> blocks_;
    std::set<std::pair<std::uint64_t, PrefixBlock*>> leaves_;  // by last use
    std::vector<PrefixBlock*> held_;                           // blocks with a checkpoint
    std::function<void(CheckpointId)> gone_;
    std::uint64_t clock_ = 0;
};

}  // namespace percheron::cache
