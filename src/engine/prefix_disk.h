// The engine's side of the prefix cache's files (C13 to C16 of docs/SCHEDULER.md): what a step has
// left behind is handed over to be written; a prompt of which the files hold more than the memory
// waits here until it has been read, while others run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "percheron/engine.h"

#include "cache/cache_store.h"
#include "cache/disk_tier.h"
#include "engine/scheduler.h"
#include "engine/sequence_order.h"

namespace percheron::engine {

class PrefixDisk {
  public:
    // `tier` is started; caches and scheduler outlive this.
    PrefixDisk(std::unique_ptr<cache::DiskTier> tier, cache::CacheStore& caches,
               Scheduler& scheduler)
        : tier_(std::move(tier)), caches_(caches), scheduler_(scheduler) {}

    void start(std::function<void()> wake) { tier_->start(std::move(wake)); }

    // ---- reading

    // Takes the sequence if there is more of its prompt to be read than the memory holds.
    bool take(std::unique_ptr<Sequence>& sequence);
    // What has been read enters the cache, a few megabytes a call.  Whoever has nothing more to
    // wait for stands in ready() after it.
    void advance();
    bool has_news() const { return tier_->has_news(); }
    // Sequences that may be admitted; the caller takes them out.
    Sequences& ready() { return ready_; }
    const Sequences& waiting() const { return waiting_; }
    // Null: it is not here.
    std::unique_ptr<Sequence> remove(const Sequence& sequence);

    // ---- writing

    // What a commit has published of one of the plan's sequences, and its copies.  After the drafts,
    // for the MTP layer writes its part of the pages then; of a sequence that ends, before it does.
    void store(const StepPlan& plan, const PlannedRows& planned);

    PrefixDiskStatus status() const { return tier_->status(); }  // any thread

  private:
    // A path that is being read for the first in line; who comes later lines up behind it.
    struct Reading {
        std::uint32_t next = 0;    // blocks that are in the tree
        std::uint32_t target = 0;  // the state stands at the end of so many
    };

    std::uint32_t blocks_worth_reading(Sequence& sequence, std::uint32_t& in_memory);
    void begin();
    void take_piece(cache::DiskTier::Piece& piece);
    bool take_pages(const cache::DiskTier::Piece& piece);
    bool take_state(const cache::DiskTier::Piece& piece);
    void end_reading();
    void store_blocks(Sequence& sequence, std::uint32_t fresh);
    void store_state(const StateCopy& copy);

    std::unique_ptr<cache::DiskTier> tier_;
    cache::CacheStore& caches_;
    Scheduler& scheduler_;
    Sequences waiting_, ready_;
    std::optional<Reading> reading_;
};

}  // namespace percheron::engine
