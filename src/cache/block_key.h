// What the files of the prefix cache call a block: one number for it and all before it, which
// nobody can give to another text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "cache/block_names.h"
#include "core/sha256.h"

namespace percheron::cache {

using BlockKey = Sha256Digest;

struct BlockKeyHash {
    std::size_t operator()(const BlockKey& key) const {
        std::size_t hash = 0;
        std::memcpy(&hash, key.data(), sizeof hash);
        return hash;
    }
};

// SHA-256 of the identity (TierOptions) and a salt: what stands before the first block.
inline BlockKey root_key(std::string_view identity, std::string_view salt) {
    Sha256 hash;
    const std::uint64_t length = identity.size();
    hash.add(std::as_bytes(std::span(&length, 1)));
    hash.add(identity);
    hash.add(salt);
    return hash.finish();
}

// SHA-256 of the key before and the block's name (block_names.h).
inline BlockKey block_key(const BlockKey& before, std::string_view name) {
    Sha256 hash;
    hash.add(std::as_bytes(std::span(before)));
    hash.add(name);
    return hash.finish();
}

// The keys of a text's blocks, worked out as far as they were asked for.
class BlockKeys {
  public:
    BlockKeys() = default;
    explicit BlockKeys(const BlockKey& root) : keys_{root} {}

    void extend(const PrefixText& text, std::uint32_t blocks) {
        while (keys_.size() <= blocks) {
            keys_.push_back(block_key(keys_.back(), block_name(text, keys_.size() - 1)));
        }
    }
    // Of the block that ends after `blocks` blocks; 0: of the root.
    const BlockKey& behind(std::uint32_t blocks) const { return keys_[blocks]; }
    bool rooted() const { return !keys_.empty(); }

  private:
    std::vector<BlockKey> keys_;
};

}  // namespace percheron::cache
