// The memory of the caches, one arena a group, and the views the network's layers get of it.
//
//   latents  [page][sparse layer][64][latent]             KV dtype
//   pooled   [page][sparse layer][64 / pool][index dim]   KV dtype (of fp8 both with the rows'
//                                                         scales behind a layer's: stored_rows.h)
//   state    [slot][KDA layer][head][key dim][value dim]  fp32
//   conv     [slot][KDA layer][ring][q | k | v]           fp32
//   kept     [slot][KDA layer][ring][kept row]            fp32
//   tails    [slot][sparse layer][tail ring][2][index dim] fp32
//   saved    [checkpoint][states | conv rows]              fp32 (CacheShape)
//
// Page and slot are the outermost index, so that what belongs to one of them lies together: a slot
// is cleared by one write an arena, and a page moves as one block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "percheron/types.h"

#include "cache/cache_shape.h"
#include "core/status.h"
#include "model/network.h"
#include "ops/backend.h"

namespace percheron::cache {

class CacheStore {
  public:
    // Errors: out_of_memory from the backend.
    static Result<std::unique_ptr<CacheStore>> create(const CacheShape& shape, std::uint32_t pages,
                                                      std::uint32_t slots, ops::Backend& backend,
                                                      std::uint32_t checkpoints = 0);

    const CacheShape& shape() const { return shape_; }
    const model::CacheViews& views() const { return views_; }

    // Everything mutable of the slot becomes zero: the state of a sequence of no tokens.
    void clear_slot(RequestSlot slot);

    // The state of a sequence of `position` tokens, a multiple of 64, all of them committed: from
    // its slot to a checkpoint, and back into a slot with whatever content.  In order with the
    // steps.
    void save(RequestSlot slot, Position position, CheckpointId checkpoint);
    void restore(RequestSlot slot, Position position, CheckpointId checkpoint);

    // What a page holds, and a checkpoint, as bytes of the host's memory: CacheShape::page_bytes()
    // (latents, then pooled keys) and checkpoint_bytes().  In order with the steps.
    void read_page(PageId page, std::span<std::byte> bytes) const;
    void write_page(PageId page, std::span<const std::byte> bytes);
    void read_checkpoint(CheckpointId checkpoint, std::span<std::byte> bytes) const;
    void write_checkpoint(CheckpointId checkpoint, std::span<const std::byte> bytes);

  private:
    enum Arena : std::size_t { latents, pooled, state, conv, kept, tails, saved, arena_count };

    CacheStore(const CacheShape& shape, ops::Backend& backend);
    Bytes slot_arena_bytes(Arena arena) const;
    void build_views();
    std::byte* page_part(Arena arena, PageId page) const;
    Bytes page_part_bytes(Arena arena) const;
    std::byte* slot_part(Arena arena, RequestSlot slot) const;
    float* checkpoint(CheckpointId id) const;
    template <class Copy>
    void for_conv_rows(RequestSlot slot, Position position, CheckpointId id, Copy copy) const;

    CacheShape shape_;
    ops::Backend& backend_;
    std::array<std::unique_ptr<ops::BackendBuffer>, arena_count> arenas_;
    model::CacheViews views_;
};

}  // namespace percheron::cache
