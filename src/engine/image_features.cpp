#include "engine/image_features.h"

#include <utility>

namespace percheron::engine {

FeatureRows ImageFeatures::find(const ImageHash& hash) {
    const auto found = entries_.find(hash);
    if (found == entries_.end()) return nullptr;
    found->second.used = ++clock_;
    return found->second.rows;
}

bool ImageFeatures::make_room(Bytes bytes) {
    while (bytes_ + bytes > budget_) {
        auto oldest = entries_.end();
        for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
            const bool held = entry->second.rows.use_count() > 1;
            if (!held && (oldest == entries_.end() || entry->second.used < oldest->second.used)) {
                oldest = entry;
            }
        }
        if (oldest == entries_.end()) return false;
        bytes_ -= oldest->second.rows->size() * sizeof(float);
        entries_.erase(oldest);
    }
    return true;
}

FeatureRows ImageFeatures::add(const ImageHash& hash, std::vector<float> rows) {
    Entry& entry = entries_[hash];
    if (entry.rows) bytes_ -= entry.rows->size() * sizeof(float);
    bytes_ += rows.size() * sizeof(float);
    entry.rows = std::make_shared<const std::vector<float>>(std::move(rows));
    entry.used = ++clock_;
    return entry.rows;
}

}  // namespace percheron::engine
