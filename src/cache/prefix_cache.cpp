#include "cache/prefix_cache.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

#include "cache/checkpoint_choice.h"

namespace percheron::cache {

bool PrefixCache::grow(std::vector<PageId>& table, std::uint32_t pages) {
    const std::uint32_t missing =
        pages > table.size() ? pages - static_cast<std::uint32_t>(table.size()) : 0;
    if (missing > available()) return false;
    while (pages_.free() < missing) {
        if (!give_up_page()) return false;
    }
    return pages_.grow(table, pages);
}

PrefixHit PrefixCache::find(const PrefixText& text, std::uint32_t most) {
    PrefixHit hit;
    PrefixBlock* block = root(text.salt, false);
    while (block != nullptr && block->depth < most) {
        const auto child = block->children.find(block_name(text, block->depth));
        if (child == block->children.end()) break;
        block = child->second;
        touch(*block);
        hit.deepest = block;
        ++hit.matched;
        if (block->checkpoint) hit.block = block;
    }
    return hit;
}

PrefixPlace PrefixCache::attach(const PrefixHit& hit, std::vector<PageId>& table) {
    assert(table.empty());
    table.resize(hit.blocks());
    for (const PrefixBlock* block = hit.block; block != nullptr && block->depth > 0;
         block = block->parent) {
        table[block->depth - 1] = block->page;
        pages_.add_reader(block->page);
    }
    return {hit.block};
}

PrefixPlace PrefixCache::publish(PrefixPlace place, const PrefixText& text,
                                 std::vector<PageId>& table, std::uint32_t blocks) {
    if (!on() || place.blocks() >= blocks) return place;
    PrefixBlock* block = place.block != nullptr ? place.block : root(text.salt, true);
    while (block->depth < blocks) {
        PageId& page = table[block->depth];
        std::string name = block_name(text, block->depth);
        const auto child = block->children.find(name);
        if (child == block->children.end()) {
            block = add_block(*block, std::move(name), page);
            continue;
        }
        block = child->second;
        if (page != block->page) {
            pages_.add_reader(block->page);
            pages_.remove_reader(page);
            page = block->page;
        }
        touch(*block);
    }
    return {block};
}

PrefixCache::Adopted PrefixCache::adopt(PrefixPlace place, const PrefixText& text) {
    std::string name = block_name(text, place.blocks());
    PrefixBlock* const before = place.block;
    if (PrefixBlock* const known = before != nullptr ? before : root(text.salt, false)) {
        const auto child = known->children.find(name);
        if (child != known->children.end()) {
            touch(*child->second);
            return {{child->second}, std::nullopt};
        }
    }
    // The page is taken from the tree where none is free, but not from the block before.
    if (before != nullptr) pages_.add_reader(before->page);
    std::vector<PageId> table;
    const bool grown = grow(table, 1);
    if (before != nullptr) pages_.remove_reader(before->page);
    if (!grown) return {place, std::nullopt};
    PrefixBlock& parent = before != nullptr ? *before : *root(text.salt, true);
    PrefixBlock* const block = add_block(parent, std::move(name), table.front());
    pages_.release(table);
    return {{block}, block->page};
}

std::optional<CheckpointId> PrefixCache::add_checkpoint(PrefixPlace place, CheckpointKind kind) {
    if (place.block == nullptr || !on()) return std::nullopt;
    PrefixBlock& block = *place.block;
    const bool there = block.checkpoint.has_value();
    if (there) {
        block.checkpoint->kind = std::max(block.checkpoint->kind, kind);
    } else {
        if (checkpoints_.free() == 0) {
            PrefixBlock* const victim = checkpoint_to_give_up(held_, block, kind);
            if (victim == nullptr) return std::nullopt;
            drop_checkpoint({victim});
        }
        block.checkpoint = {*checkpoints_.take(), kind};
        held_.push_back(&block);
    }
    if (kind == CheckpointKind::turn_end) {
        for (PrefixBlock* before = block.parent; before != nullptr; before = before->parent) {
            if (before->checkpoint && before->checkpoint->kind == CheckpointKind::turn_end) {
                before->checkpoint->kind = CheckpointKind::between;
            }
        }
    }
    return there ? std::nullopt : std::optional(block.checkpoint->id);
}

void PrefixCache::drop_checkpoint(PrefixPlace place) {
    if (place.block == nullptr || !place.block->checkpoint) return;
    const CheckpointId id = place.block->checkpoint->id;
    checkpoints_.release(id);
    if (gone_) gone_(id);
    place.block->checkpoint.reset();
    held_.erase(std::find(held_.begin(), held_.end(), place.block));
}

PrefixBlock* PrefixCache::root(std::string_view salt, bool make) {
    const auto found = roots_.find(salt);
    if (found != roots_.end()) return &found->second;
    if (!make) return nullptr;
    const auto added = roots_.try_emplace(std::string(salt)).first;
    added->second.name = &added->first;
    return &added->second;
}

PrefixBlock* PrefixCache::add_block(PrefixBlock& parent, std::string name, PageId page) {
    auto owned = std::make_unique<PrefixBlock>();
    PrefixBlock& block = *owned;
    blocks_.emplace(&block, std::move(owned));
    if (parent.parent != nullptr) leaves_.erase({parent.used, &parent});
    const auto child = parent.children.emplace(std::move(name), &block).first;
    block.parent = &parent;
    block.name = &child->first;
    block.depth = parent.depth + 1;
    block.page = page;
    block.used = ++clock_;
    leaves_.emplace(block.used, &block);
    pages_.keep(page);
    return &block;
}

void PrefixCache::touch(PrefixBlock& block) {
    const bool leaf = leaves_.erase({block.used, &block}) > 0;
    block.used = ++clock_;
    if (leaf) leaves_.emplace(block.used, &block);
}

// The longest unused block with none behind it and no reader.  Readers of a block read all before
// it, so whenever an idle page is left there is one.
bool PrefixCache::give_up_page() {
    for (const auto& [used, block] : leaves_) {
        if (pages_.readers(block->page) == 0) {
            remove(*block);
            return true;
        }
    }
    return false;
}

void PrefixCache::remove(PrefixBlock& block) {
    drop_checkpoint({&block});
    pages_.let_go(block.page);
    leaves_.erase({block.used, &block});
    PrefixBlock& parent = *block.parent;
    parent.children.erase(parent.children.find(*block.name));
    if (parent.children.empty()) {
        if (parent.parent != nullptr) {
            leaves_.emplace(parent.used, &parent);
        } else {
            roots_.erase(roots_.find(*parent.name));
        }
    }
    blocks_.erase(&block);
}

}  // namespace percheron::cache
