// Which pages and slots are in use, and by whom.  Numbers only; the memory behind them is
// CacheStore's.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "percheron/types.h"

namespace percheron::cache {

// A page is free, or in the tables of one or more sequences (its readers), or kept by the prefix
// tree, or both of the latter.
class PagePool {
  public:
    explicit PagePool(std::uint32_t pages) : readers_(pages), kept_(pages) {
        free_.reserve(pages);
        for (std::uint32_t page = pages; page > 0; --page) {
            free_.push_back(PageId(page - 1));
        }
    }

    std::uint32_t total() const { return static_cast<std::uint32_t>(readers_.size()); }
    std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
    // Kept by the tree and read by nobody: free as soon as the tree lets go.
    std::uint32_t idle() const { return idle_; }
    std::uint32_t readers(PageId page) const { return readers_[to_int(page)]; }

    // Grows `table` to `pages` entries with free pages; false, with nothing taken, when too few
    // are free.
    [[nodiscard]] bool grow(std::vector<PageId>& table, std::uint32_t pages) {
        if (pages > table.size() + free_.size()) {
            return false;
        }
        while (table.size() < pages) {
            table.push_back(free_.back());
            free_.pop_back();
            ++readers_[to_int(table.back())];
        }
        return true;
    }

    // One more, or one fewer, table holds a page.
    void add_reader(PageId page) {
        const std::uint32_t before = readers_[to_int(page)]++;
        idle_ -= kept_[to_int(page)] && before == 0 ? 1 : 0;
    }
    void remove_reader(PageId page) {
        assert(readers_[to_int(page)] > 0);
        if (--readers_[to_int(page)] > 0) {
            return;
        }
        if (kept_[to_int(page)]) {
            ++idle_;
        } else {
            free_.push_back(page);
        }
    }

    // `table` gives up all its pages.
    void release(std::vector<PageId>& table) {
        for (auto page = table.rbegin(); page != table.rend(); ++page) {
            remove_reader(*page);
        }
        table.clear();
    }

    // The tree takes a page that somebody reads, or lets go of one that nobody does.
    void keep(PageId page) {
        assert(readers_[to_int(page)] > 0 && !kept_[to_int(page)]);
        kept_[to_int(page)] = true;
    }
    void let_go(PageId page) {
        assert(readers_[to_int(page)] == 0 && kept_[to_int(page)]);
        kept_[to_int(page)] = false;
        --idle_;
        free_.push_back(page);
    }

  private:
    std::vector<std::uint32_t> readers_;  // tables that hold the page
    std::vector<bool> kept_;              // by the tree
    std::uint32_t idle_ = 0;
    std::vector<PageId> free_;
};

// Slots of running sequences and of checkpoints: each is free or taken.
template <class Id>
class SlotNumbers {
  public:
    explicit SlotNumbers(std::uint32_t slots) : total_(slots) {
        free_.reserve(slots);
        for (std::uint32_t slot = slots; slot > 0; --slot) {
            free_.push_back(Id(slot - 1));
        }
    }

    std::uint32_t total() const { return total_; }
    std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }

    std::optional<Id> take() {
        if (free_.empty()) {
            return std::nullopt;
        }
        const Id slot = free_.back();
        free_.pop_back();
        return slot;
    }

    void release(Id slot) {
        free_.push_back(slot);
        assert(free_.size() <= total_);
    }

  private:
    std::uint32_t total_;
    std::vector<Id> free_;
};

using SlotPool = SlotNumbers<RequestSlot>;
using CheckpointPool = SlotNumbers<CheckpointId>;

}  // namespace percheron::cache
