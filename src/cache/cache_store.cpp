#include "cache/cache_store.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace percheron::cache {

CacheStore::CacheStore(const CacheShape& shape, ops::Backend& backend)
    : shape_(shape), backend_(backend) {}

Bytes CacheStore::slot_arena_bytes(Arena arena) const {
    switch (arena) {
        case state:
            return sizeof(float) * shape_.kda_layers * shape_.state_floats();
        case conv:
            return sizeof(float) * shape_.kda_layers * shape_.conv_floats();
        case kept:
            return sizeof(float) * shape_.kda_layers * shape_.kept_floats();
        default:
            return sizeof(float) * shape_.sparse_layers * shape_.tail_floats();
    }
}

Result<std::unique_ptr<CacheStore>> CacheStore::create(const CacheShape& shape, std::uint32_t pages,
                                                       std::uint32_t slots, ops::Backend& backend,
                                                       std::uint32_t checkpoints) {
    std::unique_ptr<CacheStore> store(new CacheStore(shape, backend));
    const auto allocate = [&](Arena arena, Bytes bytes, const char* purpose) -> Status {
        PERCHERON_ASSIGN(store->arenas_[arena], backend.allocate(bytes, purpose));
        return {};
    };
    const Bytes layers = shape.sparse_layers;
    PERCHERON_TRY(allocate(latents, pages * layers * shape.latent_page_bytes(), "latent pages"));
    PERCHERON_TRY(
        allocate(pooled, pages * layers * shape.pooled_page_bytes(), "pooled index keys"));
    PERCHERON_TRY(allocate(state, slots * store->slot_arena_bytes(state), "KDA states"));
    PERCHERON_TRY(allocate(conv, slots * store->slot_arena_bytes(conv), "KDA conv rows"));
    PERCHERON_TRY(allocate(kept, slots * store->slot_arena_bytes(kept), "KDA kept rows"));
    PERCHERON_TRY(allocate(tails, slots * store->slot_arena_bytes(tails), "index tails"));
    PERCHERON_TRY(allocate(saved, checkpoints * shape.checkpoint_bytes(), "prefix checkpoints"));
    store->build_views();
    return store;
}

void CacheStore::build_views() {
    const auto floats = [this](Arena arena) { return static_cast<float*>(arenas_[arena]->data()); };
    const auto bytes = [this](Arena arena) {
        return static_cast<std::byte*>(arenas_[arena]->data());
    };
    for (std::size_t layer = 0; layer < shape_.kda_layers; ++layer) {
        ops::KdaSlots slots;
        slots.state = floats(state) + layer * shape_.state_floats();
        slots.state_stride = shape_.kda_layers * shape_.state_floats();
        slots.conv = floats(conv) + layer * shape_.conv_floats();
        slots.conv_stride = shape_.kda_layers * shape_.conv_floats();
        slots.kept = floats(kept) + layer * shape_.kept_floats();
        slots.kept_stride = shape_.kda_layers * shape_.kept_floats();
        slots.ring = shape_.ring;
        views_.kda.push_back(slots);
    }
    for (std::size_t layer = 0; layer < shape_.sparse_layers; ++layer) {
        ops::LatentPages pages;
        pages.latents = bytes(latents) + layer * shape_.latent_page_bytes();
        pages.latent_dtype = shape_.kv_dtype;
        pages.latent_page_bytes = shape_.sparse_layers * shape_.latent_page_bytes();
        pages.pooled = bytes(pooled) + layer * shape_.pooled_page_bytes();
        pages.pooled_dtype = shape_.kv_dtype;
        pages.pooled_page_bytes = shape_.sparse_layers * shape_.pooled_page_bytes();
        pages.tails = floats(tails) + layer * shape_.tail_floats();
        pages.tail_stride = shape_.sparse_layers * shape_.tail_floats();
        pages.tail_ring = shape_.tail_ring;
        views_.latent.push_back(pages);
    }
}

std::byte* CacheStore::slot_part(Arena arena, RequestSlot slot) const {
    return static_cast<std::byte*>(arenas_[arena]->data()) + to_int(slot) * slot_arena_bytes(arena);
}

float* CacheStore::checkpoint(CheckpointId id) const {
    return static_cast<float*>(arenas_[saved]->data()) +
           to_int(id) * (shape_.checkpoint_bytes() / sizeof(float));
}

void CacheStore::clear_slot(RequestSlot slot) {
    for (const Arena arena : {state, conv, kept, tails}) {
        backend_.clear(slot_part(arena, slot), slot_arena_bytes(arena));
    }
}

// Calls copy(in the slot's ring, in the checkpoint, floats) for the rows just before `position`, as
// many at a time as lie together in the ring.
template <class Copy>
void CacheStore::for_conv_rows(RequestSlot slot, Position position, CheckpointId id,
                               Copy copy) const {
    const std::size_t row = shape_.conv_row_floats();
    float* part = checkpoint(id) + shape_.checkpoint_state_floats();
    for (const ops::KdaSlots& layer : views_.kda) {
        float* const ring = layer.conv + to_int(slot) * layer.conv_stride;
        Position at = position - shape_.conv_history;
        while (at < position) {
            const std::uint32_t place = at % shape_.ring;
            const std::uint32_t rows = std::min(shape_.ring - place, position - at);
            copy(ring + place * row, part, rows * row);
            part += rows * row;
            at += rows;
        }
    }
}

void CacheStore::save(RequestSlot slot, Position position, CheckpointId id) {
    backend_.copy(checkpoint(id), slot_part(state, slot), slot_arena_bytes(state));
    for_conv_rows(slot, position, id, [this](float* ring, float* kept_copy, std::size_t floats) {
        backend_.copy(kept_copy, ring, floats * sizeof(float));
    });
}

void CacheStore::restore(RequestSlot slot, Position position, CheckpointId id) {
    for (const Arena arena : {conv, kept, tails}) {
        backend_.clear(slot_part(arena, slot), slot_arena_bytes(arena));
    }
    backend_.copy(slot_part(state, slot), checkpoint(id), slot_arena_bytes(state));
    for_conv_rows(slot, position, id, [this](float* ring, float* kept_copy, std::size_t floats) {
        backend_.copy(ring, kept_copy, floats * sizeof(float));
    });
}

Bytes CacheStore::page_part_bytes(Arena arena) const {
    return shape_.sparse_layers *
           (arena == latents ? shape_.latent_page_bytes() : shape_.pooled_page_bytes());
}

std::byte* CacheStore::page_part(Arena arena, PageId page) const {
    return static_cast<std::byte*>(arenas_[arena]->data()) + to_int(page) * page_part_bytes(arena);
}

void CacheStore::read_page(PageId page, std::span<std::byte> bytes) const {
    assert(bytes.size() == shape_.page_bytes());
    const Bytes first = page_part_bytes(latents);
    backend_.copy_to_host(bytes.data(), page_part(latents, page), first);
    backend_.copy_to_host(bytes.data() + first, page_part(pooled, page), page_part_bytes(pooled));
}

void CacheStore::write_page(PageId page, std::span<const std::byte> bytes) {
    assert(bytes.size() == shape_.page_bytes());
    const Bytes first = page_part_bytes(latents);
    backend_.copy_from_host(page_part(latents, page), bytes.data(), first);
    backend_.copy_from_host(page_part(pooled, page), bytes.data() + first, page_part_bytes(pooled));
}

void CacheStore::read_checkpoint(CheckpointId id, std::span<std::byte> bytes) const {
    backend_.copy_to_host(bytes.data(), checkpoint(id), shape_.checkpoint_bytes());
}

void CacheStore::write_checkpoint(CheckpointId id, std::span<const std::byte> bytes) {
    backend_.copy_from_host(checkpoint(id), bytes.data(), shape_.checkpoint_bytes());
}

}  // namespace percheron::cache
