#include "draft/context_cache.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

namespace percheron::draft {
namespace {

constexpr auto page = static_cast<Position>(ops::page_tokens);

}  // namespace

ContextShape ContextShape::of(const model::Dflash2Config& config, DType dtype) {
    return {config.layers(), config.kv_heads, config.head_dim, dtype, config.window()};
}

Bytes ContextShape::layer_page_bytes() const {
    return 2 * ops::page_tokens * kv_heads * head_dim * size_of(dtype);
}

std::uint32_t ContextShape::pages_a_slot() const {
    // window - 1 positions reach into one page more than they fill.
    return window == 0 ? 0 : (window - 1 + page - 1) / page + 1;
}

Result<std::unique_ptr<ContextCache>> ContextCache::create(const ContextShape& shape,
                                                           std::uint32_t pages, std::uint32_t slots,
                                                           ops::Backend& backend) {
    std::unique_ptr<ContextCache> cache(new ContextCache(shape, pages, slots));
    PERCHERON_ASSIGN(cache->memory_,
                     backend.allocate(pages * shape.page_bytes(), "the drafter's context"));
    for (std::size_t layer = 0; layer < shape.layers; ++layer) {
        auto* const first =
            static_cast<std::byte*>(cache->memory_->data()) + layer * shape.layer_page_bytes();
        cache->views_.push_back(
            {first, shape.dtype, shape.page_bytes(), shape.kv_heads, shape.head_dim});
    }
    return cache;
}

Position ContextCache::extend(RequestSlot slot, Position first, Position end) {
    Context& context = slots_[to_int(slot)];
    context.used = step_;
    if (context.end != first) {
        drop(context);
        context.begin = first;
    }
    const Position seen =
        shape_.window > 0 && end >= shape_.window ? end - shape_.window + 1 : Position{0};
    if (seen / page > context.begin / page) {
        const std::size_t behind =
            std::min<std::size_t>(seen / page - context.begin / page, context.pages.size());
        for (std::size_t i = 0; i < behind; ++i) {
            pages_.remove_reader(context.pages[i]);
        }
        context.pages.erase(context.pages.begin(),
                            context.pages.begin() + static_cast<std::ptrdiff_t>(behind));
        context.begin = seen / page * page;
    }
    if (!grow(context, (end - 1) / page - context.begin / page + 1)) {
        drop(context);
        context.begin = end;
    }
    context.end = end;
    return std::max(first, context.begin);
}

ops::DraftContext ContextCache::context(RequestSlot slot) const {
    const Context& context = slots_[to_int(slot)];
    return {context.begin, context.end, context.pages};
}

void ContextCache::clear(RequestSlot slot) {
    drop(slots_[to_int(slot)]);
}

void ContextCache::save(RequestSlot slot, Position position, CheckpointId checkpoint) {
    assert(position % page == 0);
    Context& saved = checkpoints_[checkpoint];
    drop(saved);
    const Context& context = slots_[to_int(slot)];
    if (context.end < position || context.begin >= position) {
        checkpoints_.erase(checkpoint);
        return;
    }
    saved.begin = context.begin;
    saved.end = position;
    saved.used = step_;
    const std::size_t count = position / page - context.begin / page;
    saved.pages.assign(context.pages.begin(),
                       context.pages.begin() + static_cast<std::ptrdiff_t>(count));
    for (const PageId id : saved.pages) {
        pages_.add_reader(id);
    }
}

void ContextCache::restore(RequestSlot slot, Position position, CheckpointId checkpoint) {
    Context& context = slots_[to_int(slot)];
    drop(context);
    context.begin = context.end = position;
    const auto saved = checkpoints_.find(checkpoint);
    if (saved == checkpoints_.end() || saved->second.end != position) return;
    saved->second.used = step_;
    context.begin = saved->second.begin;
    context.pages = saved->second.pages;
    for (const PageId id : context.pages) {
        pages_.add_reader(id);
    }
}

void ContextCache::forget(CheckpointId checkpoint) {
    const auto saved = checkpoints_.find(checkpoint);
    if (saved == checkpoints_.end()) return;
    drop(saved->second);
    checkpoints_.erase(saved);
}

void ContextCache::drop(Context& context) {
    pages_.release(context.pages);
    context.begin = context.end = 0;
}

bool ContextCache::grow(Context& context, std::uint32_t pages) {
    while (!pages_.grow(context.pages, pages)) {
        if (!give_up_one()) return false;
    }
    return true;
}

// False: whoever is left was seen this step.
bool ContextCache::give_up_one() {
    const auto older = [](const auto& a, const auto& b) { return a.second.used < b.second.used; };
    const auto oldest = std::min_element(checkpoints_.begin(), checkpoints_.end(), older);
    if (oldest != checkpoints_.end()) {
        drop(oldest->second);
        checkpoints_.erase(oldest);
        return true;
    }
    Context* longest_unseen = nullptr;
    for (Context& context : slots_) {
        if (context.pages.empty() || context.used == step_) continue;
        if (longest_unseen == nullptr || context.used < longest_unseen->used) {
            longest_unseen = &context;
        }
    }
    if (longest_unseen == nullptr) return false;
    drop(*longest_unseen);
    return true;
}

}  // namespace percheron::draft
