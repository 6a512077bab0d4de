#include "draft/copy_proposer.h"

#include <algorithm>

namespace percheron::draft {
namespace {

constexpr std::size_t smallest_table = 256;

// Of the run that ends before `end`, for a table of 2^n entries.
std::size_t place_of(std::span<const TokenId> tokens, std::uint32_t end, std::uint32_t length,
                     std::size_t table) {
    std::uint64_t hash = 0x9e3779b97f4a7c15u;
    for (std::uint32_t i = end - length; i < end; ++i) {
        hash = (hash ^ static_cast<std::uint32_t>(to_int(tokens[i]))) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash & (table - 1);
}

}  // namespace

void CopyIndex::clear() {
    heads_.clear();
    previous_.clear();
}

void CopyIndex::link(std::uint32_t end, std::span<const TokenId> tokens, std::uint32_t shortest) {
    std::uint32_t& head = heads_[place_of(tokens, end, shortest, heads_.size())];
    previous_[end] = head;
    head = end;
}

void CopyIndex::grow(std::span<const TokenId> tokens, const CopyOptions& options) {
    const std::size_t size = tokens.size();
    // Positions that have a token behind them: the end itself is nobody's source yet.
    const std::size_t known = std::max<std::size_t>(previous_.size(), options.shortest);
    if (size <= known) {
        return;
    }
    previous_.resize(size, nowhere);
    std::size_t first = known;
    if (heads_.size() < 2 * size) {
        std::size_t table = std::max(smallest_table, heads_.size());
        while (table < 2 * size) {
            table *= 2;
        }
        heads_.assign(table, nowhere);
        first = options.shortest;
    }
    for (std::size_t end = first; end < size; ++end) {
        link(static_cast<std::uint32_t>(end), tokens, options.shortest);
    }
}

CopyIndex::Match CopyIndex::find(std::span<const TokenId> tokens,
                                 const CopyOptions& options) const {
    Match best;
    const auto end = static_cast<std::uint32_t>(tokens.size());
    if (heads_.empty() || end < options.shortest) {
        return best;
    }
    std::uint32_t place = heads_[place_of(tokens, end, options.shortest, heads_.size())];
    for (std::uint32_t looked = 0; place != nowhere && looked < options.looked_at; ++looked) {
        const std::uint32_t limit = std::min(place, options.longest);
        std::uint32_t agreed = 0;
        while (agreed < limit && tokens[place - 1 - agreed] == tokens[end - 1 - agreed]) {
            ++agreed;
        }
        if (agreed >= options.shortest && agreed > best.agreed) {
            best = {place, agreed};
        }
        place = previous_[place];
    }
    return best;
}

void copy_from(std::span<const TokenId> tokens, CopyIndex::Match match, std::uint32_t most,
               std::vector<TokenId>& drafts) {
    for (std::uint32_t i = 0; i < most; ++i) {
        const std::size_t at = std::size_t{match.source} + i;
        drafts.push_back(at < tokens.size() ? tokens[at] : drafts[at - tokens.size()]);
    }
}

Status CopyProposer::propose(ops::NumericClass, std::span<DraftSequence> sequences) {
    for (DraftSequence& sequence : sequences) {
        SlotIndex& index = indexes_[to_int(sequence.slot)];
        index.agreed = 0;
        if (sequence.most == 0) {
            continue;
        }
        index.grow(sequence.tokens, options_);
        const CopyIndex::Match match = index.find(sequence.tokens, options_);
        if (match.source != CopyIndex::nowhere) {
            index.agreed = match.agreed;
            copy_from(sequence.tokens, match, sequence.most, *sequence.drafts);
        }
    }
    return {};
}

}  // namespace percheron::draft
