// Vocabulary and merges of a byte-level BPE: the ids of one piece of text.
//
// A piece starts as one token a byte.  While any adjacent pair has a merge, the pair of lowest rank
// is joined, the leftmost of equals.  O(n log n) in the length of the piece.
//
// Thread-safe once built.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron {

class BytePairs {
  public:
    struct Entry {
        std::string bytes;
        std::int32_t id = 0;
        bool encodable = true;  // false: `bytes` stand for it when decoding only
    };
    struct Merge {
        std::string left;
        std::string right;
    };

    // `merges` in order of rank.  Errors: corrupt.
    static Result<BytePairs> build(const std::vector<Entry>& vocabulary,
                                   const std::vector<Merge>& merges, bool ignore_merges);

    void encode(std::string_view piece, std::vector<TokenId>& ids) const;
    std::string_view bytes_of(std::int32_t id) const;
    TokenId byte_token(std::uint8_t byte) const { return TokenId{bytes_[byte]}; }
    std::uint32_t size() const { return static_cast<std::uint32_t>(ends_.size()); }

  private:
    struct Joined {
        std::uint32_t rank = no_rank;
        std::int32_t id = 0;
    };
    struct MergeSlot {
        std::uint64_t pair = empty_pair;
        Joined joined;
    };
    struct TokenSlot {
        std::uint32_t tag = 0;
        std::int32_t id = -1;
    };
    static constexpr std::uint32_t no_rank = 0xffffffffu;
    static constexpr std::uint64_t empty_pair = ~std::uint64_t{0};

    std::int32_t find(std::string_view bytes) const;  // -1: no such token
    Joined join(std::int32_t left, std::int32_t right) const;
    void add_token(std::string_view bytes, std::int32_t id);
    void add_merge(std::int32_t left, std::int32_t right, Joined joined);
    bool is_own_encoding(std::int32_t id) const;
    void merge_short(std::string_view piece, std::vector<TokenId>& ids) const;
    void merge_long(std::string_view piece, std::vector<TokenId>& ids) const;

    bool ignore_merges_ = false;
    std::string pool_;                 // all tokens' bytes, by id
    std::vector<std::uint32_t> ends_;  // of each id's bytes in the pool
    std::vector<TokenSlot> token_slots_;
    std::vector<MergeSlot> merge_slots_;
    std::array<std::int32_t, 256> bytes_{};
    // Whether a token's bytes, as a piece, merge to that token: 0 unknown, 1 yes, 2 no.
    std::unique_ptr<std::atomic<std::uint8_t>[]> own_encoding_;
};

}  // namespace percheron
