#include "engine/prefix_disk.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/batch.h"

namespace percheron::engine {

// How many blocks of the prompt a hit would have if the files were read; 0: not more than it has
// now.
std::uint32_t PrefixDisk::blocks_worth_reading(Sequence& sequence, std::uint32_t& in_memory) {
    const std::uint32_t most = sequence.shareable_blocks();
    if (most == 0 || !scheduler_.uses_cache(sequence)) return 0;
    const cache::PrefixText text = sequence.prefix_text();
    const cache::PrefixHit hit = scheduler_.cache().find(text, most);
    if (hit.blocks() == most) return 0;
    if (!sequence.keys.rooted()) sequence.keys = tier_->keys_of(text.salt);
    in_memory = hit.matched;
    std::uint32_t best = 0;
    for (std::uint32_t block = hit.blocks() + 1; block <= most; ++block) {
        sequence.keys.extend(text, block);
        const cache::BlockKey& key = sequence.keys.behind(block);
        if (block > hit.matched && !tier_->has_block(key)) break;
        if (tier_->has_state(key)) best = block;
    }
    return best;
}

bool PrefixDisk::take(std::unique_ptr<Sequence>& sequence) {
    std::uint32_t in_memory = 0;
    if (blocks_worth_reading(*sequence, in_memory) == 0) return false;
    waiting_.push_back(std::move(sequence));
    return true;
}

void PrefixDisk::begin() {
    while (!reading_ && !waiting_.empty()) {
        Sequence& first = *waiting_.front();
        std::uint32_t in_memory = 0;
        const std::uint32_t target = blocks_worth_reading(first, in_memory);
        std::vector<cache::BlockKey> keys;
        for (std::uint32_t block = in_memory + 1; block <= target; ++block)
            keys.push_back(first.keys.behind(block));
        if (target > 0 && tier_->ask(std::move(keys), first.keys.behind(target))) {
            reading_ = Reading{std::min(in_memory, target), target};
        } else {
            ready_.push_back(std::move(waiting_.front()));
            waiting_.erase(waiting_.begin());
        }
    }
}

void PrefixDisk::advance() {
    if (std::optional<cache::DiskTier::Piece> piece = tier_->next(); piece && reading_) {
        take_piece(*piece);
    }
    begin();
}

void PrefixDisk::take_piece(cache::DiskTier::Piece& piece) {
    const bool state = piece.pages == 0;
    const bool taken = !piece.failed && (state ? take_state(piece) : take_pages(piece));
    if (taken) tier_->count_restored(piece.bytes.size());
    if (taken && !state) return;
    if (taken) tier_->count_restore();
    end_reading();
}

// False: what stands before them is no longer in the tree, or there is no page for them.
bool PrefixDisk::take_pages(const cache::DiskTier::Piece& piece) {
    const cache::PrefixText text = waiting_.front()->prefix_text();
    cache::PrefixCache& cache = scheduler_.cache();
    const cache::PrefixHit found = cache.find(text, reading_->next);
    if (found.matched < reading_->next) return false;
    cache::PrefixPlace place{found.deepest};
    const Bytes page_bytes = caches_.shape().page_bytes();
    for (std::uint32_t page = 0; page < piece.pages; ++page) {
        const cache::PrefixCache::Adopted adopted = cache.adopt(place, text);
        if (adopted.place.blocks() == place.blocks()) return false;
        place = adopted.place;
        if (adopted.fill) {
            caches_.write_page(*adopted.fill,
                               std::span(piece.bytes).subspan(page * page_bytes, page_bytes));
        }
    }
    reading_->next += piece.pages;
    return true;
}

bool PrefixDisk::take_state(const cache::DiskTier::Piece& piece) {
    const cache::PrefixText text = waiting_.front()->prefix_text();
    cache::PrefixCache& cache = scheduler_.cache();
    const cache::PrefixHit found = cache.find(text, reading_->target);
    if (found.matched < reading_->target) return false;
    if (const auto checkpoint = cache.add_checkpoint({found.deepest}, piece.kind)) {
        caches_.write_checkpoint(*checkpoint, piece.bytes);
    }
    return true;
}

// Read or not: the first in line goes on with what there is.
void PrefixDisk::end_reading() {
    tier_->give_up();
    reading_.reset();
    ready_.push_back(std::move(waiting_.front()));
    waiting_.erase(waiting_.begin());
}

std::unique_ptr<Sequence> PrefixDisk::remove(const Sequence& sequence) {
    if (reading_ && waiting_.front().get() == &sequence) {
        tier_->give_up();
        reading_.reset();
    }
    return take_from(waiting_, sequence);
}

void PrefixDisk::store(const StepPlan& plan, const PlannedRows& planned) {
    Sequence& sequence = *planned.sequence;
    if (plan.numeric_class != ops::NumericClass::prefill || !scheduler_.uses_cache(sequence)) {
        return;
    }
    const std::uint32_t blocks = sequence.place.blocks();
    store_blocks(sequence,
                 blocks - std::min<std::uint32_t>(blocks, planned.first / ops::page_tokens));
    for (const StateCopy& copy : plan.copies) {
        // A background's checkpoint moves along until its end.
        const bool passing = plan.background && sequence.computed < sequence.prompt_tokens;
        if (copy.sequence == &sequence && copy.kind != cache::CheckpointKind::between && !passing) {
            store_state(copy);
        }
    }
}

// All blocks of the sequence's path that no file has, the first of them first.  `fresh`: so many of
// its last are new.
void PrefixDisk::store_blocks(Sequence& sequence, std::uint32_t fresh) {
    const std::uint32_t blocks = sequence.place.blocks();
    if (!sequence.keys.rooted()) sequence.keys = tier_->keys_of(sequence.cache_salt);
    sequence.keys.extend(sequence.prefix_text(), blocks);
    // One after the other, each once: files may be missing anywhere in the path.
    for (std::uint32_t& block = sequence.blocks_on_disk; block < blocks; ++block) {
        const cache::BlockKey& key = sequence.keys.behind(block + 1);
        const bool kept = tier_->has_block(key) ||
                          tier_->offer_page(sequence.keys.behind(block), block == 0, key,
                                            [&](std::span<std::byte> bytes) {
                                                caches_.read_page(sequence.pages[block], bytes);
                                            });
        if (!kept) {
            tier_->count_dropped(std::min(fresh, blocks - block));
            return;
        }
    }
}

// C13: of an end of a turn or an anchor, if its blocks have been handed over.
void PrefixDisk::store_state(const StateCopy& copy) {
    const cache::BlockKey& key = copy.sequence->keys.behind(copy.position / ops::page_tokens);
    if (tier_->has_state(key)) return;
    const bool taken = tier_->has_block(key) &&
                       tier_->offer_state(key, copy.kind, [&](std::span<std::byte> bytes) {
                           caches_.read_checkpoint(copy.checkpoint, bytes);
                       });
    if (!taken) tier_->count_dropped(1);
}

}  // namespace percheron::engine
