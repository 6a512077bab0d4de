// Drafts from the sequence's own text: what stood behind the last few tokens the time before.
// Edited code, tool loops and answers that quote their question repeat themselves at length; the
// look-up costs no step of any network.
//
// Every run of `shortest` tokens is a key; positions with equal keys are chained, newest first.
// Of the newest `looked_at` places with the key of the text's end, the one that agrees with the end
// for the most tokens wins, the newer on ties; what stands behind it is proposed, going on into the
// draft itself where the text repeats with a short period.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "draft/proposer.h"

namespace percheron::draft {

struct CopyOptions {
    std::uint32_t shortest = 3;   // tokens that must agree
    std::uint32_t longest = 32;   // agreement beyond this counts no more
    std::uint32_t looked_at = 8;  // places compared
};

// The index of one text, grown as the text grows.
class CopyIndex {
  public:
    static constexpr std::uint32_t nowhere = 0xffffffffu;

    // Where a copy would start, and how many tokens before it agree with the text's end.
    struct Match {
        std::uint32_t source = nowhere;
        std::uint32_t agreed = 0;
    };

    void clear();
    // Takes in what `tokens` has beyond what was seen; what was seen must not have changed.
    void grow(std::span<const TokenId> tokens, const CopyOptions& options);
    Match find(std::span<const TokenId> tokens, const CopyOptions& options) const;

    // Of an index over so many tokens, at most.
    static constexpr Bytes bytes(std::uint64_t tokens) {
        return tokens * 6 * sizeof(std::uint32_t);
    }

  private:
    void link(std::uint32_t end, std::span<const TokenId> tokens, std::uint32_t shortest);

    // A run's position is that of the token behind it.
    std::vector<std::uint32_t> heads_;     // by hash of a run: its newest position
    std::vector<std::uint32_t> previous_;  // by position: the one before with the same hash
};

// The continuation of `match`: up to `most` tokens.
void copy_from(std::span<const TokenId> tokens, CopyIndex::Match match, std::uint32_t most,
               std::vector<TokenId>& drafts);

class CopyProposer final : public Proposer {
  public:
    CopyProposer(std::uint32_t slots, CopyOptions options) : options_(options), indexes_(slots) {}

    std::string_view name() const override { return "copy"; }
    void begin(RequestSlot slot) override { indexes_[to_int(slot)].clear(); }
    Status propose(ops::NumericClass step_class, std::span<DraftSequence> sequences) override;

    std::uint32_t strength(RequestSlot slot) const override {
        const std::uint32_t tokens = agreed(slot);
        return tokens < 6 ? 0 : tokens < 16 ? 1 : 2;
    }

    // How many tokens agreed where the slot's latest draft was copied from; 0: there was none.
    std::uint32_t agreed(RequestSlot slot) const { return indexes_[to_int(slot)].agreed; }

  private:
    struct SlotIndex : CopyIndex {
        std::uint32_t agreed = 0;
        void clear() {
            CopyIndex::clear();
            agreed = 0;
        }
    };

    CopyOptions options_;
    std::vector<SlotIndex> indexes_;
};

}  // namespace percheron::draft
