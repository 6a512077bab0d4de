// Which pages and slots are free.  Numbers only; the memory behind them is CacheStore's.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "percheron/types.h"

namespace percheron::cache {

class PagePool {
  public:
    explicit PagePool(std::uint32_t pages) : total_(pages) {
        free_.reserve(pages);
        for (std::uint32_t page = pages; page > 0; --page) {
            free_.push_back(PageId(page - 1));
        }
    }

    std::uint32_t total() const { return total_; }
    std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }

    // Grows `table` to `pages` entries; false, with nothing taken, when too few are free.
    [[nodiscard]] bool grow(std::vector<PageId>& table, std::uint32_t pages) {
        if (pages > table.size() + free_.size()) {
            return false;
        }
        while (table.size() < pages) {
            table.push_back(free_.back());
            free_.pop_back();
        }
        return true;
    }

    // Takes back every page of `table`.
    void release(std::vector<PageId>& table) {
        free_.insert(free_.end(), table.rbegin(), table.rend());
        assert(free_.size() <= total_);
        table.clear();
    }

  private:
    std::uint32_t total_;
    std::vector<PageId> free_;
};

class SlotPool {
  public:
    explicit SlotPool(std::uint32_t slots) : total_(slots) {
        free_.reserve(slots);
        for (std::uint32_t slot = slots; slot > 0; --slot) {
            free_.push_back(RequestSlot(slot - 1));
        }
    }

    std::uint32_t total() const { return total_; }
    std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }

    std::optional<RequestSlot> take() {
        if (free_.empty()) {
            return std::nullopt;
        }
        const RequestSlot slot = free_.back();
        free_.pop_back();
        return slot;
    }

    void release(RequestSlot slot) {
        free_.push_back(slot);
        assert(free_.size() <= total_);
    }

  private:
    std::uint32_t total_;
    std::vector<RequestSlot> free_;
};

}  // namespace percheron::cache
