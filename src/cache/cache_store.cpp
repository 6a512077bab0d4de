#include "cache/cache_store.h"

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
                                                       std::uint32_t slots, ops::Backend& backend) {
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

void CacheStore::clear_slot(RequestSlot slot) {
    for (const Arena arena : {state, conv, kept, tails}) {
        const Bytes bytes = slot_arena_bytes(arena);
        backend_.clear(static_cast<std::byte*>(arenas_[arena]->data()) + to_int(slot) * bytes,
                       bytes);
    }
}

}  // namespace percheron::cache
