// A block drafter's keys and values: pages of 64 positions, all layers' together, in memory of
// their own beside the trunk's.
//
// A slot holds the positions that the next block can see: with a window the last `window` - 1 of
// them, rounded to whole pages; pages behind it are given back.  A checkpoint of the prefix cache
// keeps the pages that a block at its place would see, so that a prompt that goes on from there is
// drafted for as well as one that was computed whole.  Pages are shared, and never written again
// once they are full.  Where no page is left, contexts of old checkpoints go, then those of slots
// that were not seen this step; a sequence without context is not drafted for, and waits for
// nobody.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "percheron/types.h"

#include "cache/pools.h"
#include "core/dtype.h"
#include "core/status.h"
#include "model/dflash2_config.h"
#include "ops/backend.h"
#include "ops/block_drafting.h"

namespace percheron::draft {

struct ContextShape {
    std::size_t layers = 0;
    std::size_t kv_heads = 0;
    std::size_t head_dim = 0;
    DType dtype = DType::bf16;
    std::uint32_t window = 0;  // 0: all is seen

    static ContextShape of(const model::Dflash2Config& config, DType dtype);

    Bytes layer_page_bytes() const;
    Bytes page_bytes() const { return layers * layer_page_bytes(); }
    // That a slot holds at most; 0: as many as its positions need.
    std::uint32_t pages_a_slot() const;
};

class ContextCache {
  public:
    // Errors: out_of_memory from the backend.
    static Result<std::unique_ptr<ContextCache>> create(const ContextShape& shape,
                                                        std::uint32_t pages, std::uint32_t slots,
                                                        ops::Backend& backend);

    const ContextShape& shape() const { return shape_; }
    std::span<const ops::ContextPages> views() const { return views_; }  // one a layer
    std::uint32_t free_pages() const { return pages_.free(); }
    std::uint32_t total_pages() const { return pages_.total(); }

    // Slots that are extended from now on keep their pages until the next step.
    void begin_step() { ++step_; }
    // Room for positions [first, end), the next ones of the slot; whatever it had goes if they are
    // not.  Returns the first of them to be stored, `end` if none can be.
    Position extend(RequestSlot slot, Position first, Position end);
    // Good until the slot's next extend(), clear() or restore().
    ops::DraftContext context(RequestSlot slot) const;
    void clear(RequestSlot slot);

    // Between a slot and a checkpoint at `position`, a multiple of 64.
    void save(RequestSlot slot, Position position, CheckpointId checkpoint);
    void restore(RequestSlot slot, Position position, CheckpointId checkpoint);
    void forget(CheckpointId checkpoint);

  private:
    struct Context {
        Position begin = 0;
        Position end = 0;
        std::vector<PageId> pages;
        std::uint64_t used = 0;  // the step
    };

    ContextCache(const ContextShape& shape, std::uint32_t pages, std::uint32_t slots)
        : shape_(shape), pages_(pages), slots_(slots) {}
    void drop(Context& context);
    bool grow(Context& context, std::uint32_t pages);
    bool give_up_one();

    ContextShape shape_;
    cache::PagePool pages_;
    std::vector<Context> slots_;
    std::map<CheckpointId, Context> checkpoints_;
    std::uint64_t step_ = 0;
    std::unique_ptr<ops::BackendBuffer> memory_;
    std::vector<ops::ContextPages> views_;
};

}  // namespace percheron::draft
