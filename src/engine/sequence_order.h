// Who goes first (S10 of docs/SCHEDULER.md): by priority, then by arrival.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/sequence.h"

namespace percheron::engine {

using Sequences = std::vector<std::unique_ptr<Sequence>>;

inline bool goes_before(const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

inline void insert_in_order(Sequences& list, std::unique_ptr<Sequence> sequence) {
    const auto place = std::upper_bound(list.begin(), list.end(), sequence, goes_before);
    list.insert(place, std::move(sequence));
}

// Takes one out; null: it is not in the list.
inline std::unique_ptr<Sequence> take_from(Sequences& list, const Sequence& sequence) {
    const auto place = std::find_if(list.begin(), list.end(),
                                    [&](const auto& held) { return held.get() == &sequence; });
    if (place == list.end()) return nullptr;
    std::unique_ptr<Sequence> taken = std::move(*place);
    list.erase(place);
    return taken;
}

}  // namespace percheron::engine
