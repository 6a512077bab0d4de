// Feature rows of images, kept by what the images are, within a budget.
//
// Whoever needs rows holds them (shared_ptr); held rows stay.  Rows that nobody holds stay too
// until their room is needed, the longest unused going first, so that an image that comes again
// costs nothing.  One thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "percheron/types.h"

namespace percheron::engine {

using ImageHash = std::array<std::uint8_t, 32>;
using FeatureRows = std::shared_ptr<const std::vector<float>>;  // [tokens][hidden]

class ImageFeatures {
  public:
    explicit ImageFeatures(Bytes budget) : budget_(budget) {}

    // Null: not here.
    FeatureRows find(const ImageHash& hash);
    // Gives up rows that nobody holds until `bytes` more fit; false: what is held leaves too
    // little.
    bool make_room(Bytes bytes);
    // Rows that make_room() was asked for.
    FeatureRows add(const ImageHash& hash, std::vector<float> rows);

    Bytes budget() const { return budget_; }
    Bytes bytes() const { return bytes_; }

  private:
    struct Entry {
        FeatureRows rows;
        std::uint64_t used = 0;
    };

    Bytes budget_;
    Bytes bytes_ = 0;
    std::uint64_t clock_ = 0;
    std::map<ImageHash, Entry> entries_;
};

}  // namespace percheron::engine
