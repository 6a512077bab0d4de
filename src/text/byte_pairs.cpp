#include "text/byte_pairs.h"

#define XXH_INLINE_ALL
#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_map>

#include <xxhash.h>

namespace percheron {
namespace {

// Up to this many bytes a scan for the lowest rank beats a heap.
constexpr std::size_t short_piece = 48;

std::uint64_t hash_of(std::string_view bytes) {
    return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t hash_of(std::uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ (pair >> 32);
}

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
           static_cast<std::uint32_t>(right);
}

}  // namespace

Result<BytePairs> BytePairs::build(const std::vector<Entry>& vocabulary,
                                   const std::vector<Merge>& merges, bool ignore_merges) {
    BytePairs pairs;
    pairs.ignore_merges_ = ignore_merges;
    std::int32_t largest = -1;
    for (const Entry& entry : vocabulary)
        largest = std::max(largest, entry.id);
    constexpr std::int32_t most_tokens = 1 << 24;
    if (largest < 0 || largest >= most_tokens) {
        return Error(ErrorCode::corrupt, "the vocabulary is empty or has ids above 16,777,215");
    }
    std::vector<const Entry*> by_id(static_cast<std::size_t>(largest) + 1);
    for (const Entry& entry : vocabulary) {
        if (entry.id < 0 || by_id[entry.id] != nullptr) {
            return Error(ErrorCode::corrupt,
                         "the vocabulary gives id " + std::to_string(entry.id) + " to two tokens");
        }
        by_id[entry.id] = &entry;
    }
    pairs.token_slots_.resize(std::bit_ceil(by_id.size() * 2 + 2));
    for (std::size_t id = 0; id < by_id.size(); ++id) {
        if (by_id[id] != nullptr) {
            pairs.pool_ += by_id[id]->bytes;
            if (by_id[id]->encodable && !by_id[id]->bytes.empty()) {
                pairs.add_token(by_id[id]->bytes, static_cast<std::int32_t>(id));
            }
        }
        pairs.ends_.push_back(static_cast<std::uint32_t>(pairs.pool_.size()));
    }
    for (int byte = 0; byte < 256; ++byte) {
        const char c = static_cast<char>(byte);
        pairs.bytes_[byte] = pairs.find(std::string_view(&c, 1));
        if (pairs.bytes_[byte] < 0) {
            return Error(ErrorCode::corrupt,
                         "the vocabulary has no token for the byte " + std::to_string(byte));
        }
    }
    pairs.merge_slots_.resize(std::bit_ceil(merges.size() * 2 + 2));
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
        const Merge& merge = merges[rank];
        const std::int32_t left = pairs.find(merge.left);
        const std::int32_t right = pairs.find(merge.right);
        const std::int32_t joined = pairs.find(merge.left + merge.right);
        if (left < 0 || right < 0 || joined < 0) {
            return Error(ErrorCode::corrupt, "merge " + std::to_string(rank) +
                                                 " names a token that is not in the vocabulary");
        }
        // Of a pair that is listed twice the last rank counts, as in the reference reader.
        pairs.add_merge(left, right, {static_cast<std::uint32_t>(rank), joined});
    }
    pairs.own_encoding_ = std::make_unique<std::atomic<std::uint8_t>[]>(by_id.size());
    return pairs;
}

void BytePairs::add_token(std::string_view bytes, std::int32_t id) {
    const std::uint64_t hash = hash_of(bytes);
    std::size_t slot = hash & (token_slots_.size() - 1);
    while (token_slots_[slot].id >= 0)
        slot = (slot + 1) & (token_slots_.size() - 1);
    token_slots_[slot] = {static_cast<std::uint32_t>(hash >> 32), id};
}

std::int32_t BytePairs::find(std::string_view bytes) const {
    const std::uint64_t hash = hash_of(bytes);
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    for (std::size_t slot = hash & (token_slots_.size() - 1); token_slots_[slot].id >= 0;
         slot = (slot + 1) & (token_slots_.size() - 1)) {
        if (token_slots_[slot].tag == tag && bytes_of(token_slots_[slot].id) == bytes) {
            return token_slots_[slot].id;
        }
    }
    return -1;
}

void BytePairs::add_merge(std::int32_t left, std::int32_t right, Joined joined) {
    const std::uint64_t pair = pair_of(left, right);
    std::size_t slot = hash_of(pair) & (merge_slots_.size() - 1);
    while (merge_slots_[slot].pair != empty_pair && merge_slots_[slot].pair != pair) {
        slot = (slot + 1) & (merge_slots_.size() - 1);
    }
    merge_slots_[slot] = {pair, joined};
}

BytePairs::Joined BytePairs::join(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = pair_of(left, right);
    for (std::size_t slot = hash_of(pair) & (merge_slots_.size() - 1);
         merge_slots_[slot].pair != empty_pair; slot = (slot + 1) & (merge_slots_.size() - 1)) {
        if (merge_slots_[slot].pair == pair) return merge_slots_[slot].joined;
    }
    return {};
}

std::string_view BytePairs::bytes_of(std::int32_t id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= ends_.size()) return {};
    const std::size_t begin = id == 0 ? 0 : ends_[id - 1];
    return std::string_view(pool_).substr(begin, ends_[id] - begin);
}

bool BytePairs::is_own_encoding(std::int32_t id) const {
    const std::uint8_t known = own_encoding_[id].load(std::memory_order_relaxed);
    if (known != 0) return known == 1;
    std::vector<TokenId> ids;
    const std::string_view bytes = bytes_of(id);
    bytes.size() <= short_piece ? merge_short(bytes, ids) : merge_long(bytes, ids);
    const bool own = ids.size() == 1 && ids[0] == TokenId{id};
    own_encoding_[id].store(own ? 1 : 2, std::memory_order_relaxed);
    return own;
}

void BytePairs::encode(std::string_view piece, std::vector<TokenId>& ids) const {
    // Most pieces are a token as they stand.
    const std::int32_t whole = find(piece);
    if (whole >= 0 && (ignore_merges_ || is_own_encoding(whole))) {
        ids.push_back(TokenId{whole});
        return;
    }
    piece.size() <= short_piece ? merge_short(piece, ids) : merge_long(piece, ids);
}

void BytePairs::merge_short(std::string_view piece, std::vector<TokenId>& ids) const {
    std::int32_t tokens[short_piece];
    Joined joins[short_piece];
    std::size_t count = piece.size();
    for (std::size_t i = 0; i < count; ++i)
        tokens[i] = bytes_[static_cast<std::uint8_t>(piece[i])];
    for (std::size_t i = 0; i + 1 < count; ++i)
        joins[i] = join(tokens[i], tokens[i + 1]);
    while (count > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < count; ++i) {
            if (joins[i].rank < joins[best].rank) best = i;
        }
        if (joins[best].rank == no_rank) break;
        tokens[best] = joins[best].id;
        --count;
        std::copy(tokens + best + 2, tokens + count + 1, tokens + best + 1);
        if (best > 0) joins[best - 1] = join(tokens[best - 1], tokens[best]);
        if (best + 1 < count) {
            std::copy(joins + best + 2, joins + count, joins + best + 1);
            joins[best] = join(tokens[best], tokens[best + 1]);
        }
    }
    for (std::size_t i = 0; i < count; ++i)
        ids.push_back(TokenId{tokens[i]});
}

namespace {

// Where pairs of one rank stand, for every rank that waits: the lowest rank comes out first, with
// its places in order.  A heap of ranks and not of places, because a piece of many megabytes has
// many places and few ranks.
class WaitingPairs {
  public:
    void add(std::uint32_t rank, std::int32_t place) {
        const auto link = static_cast<std::int32_t>(links_.size());
        links_.push_back({place, -1});
        const auto [entry, fresh] = lists_.try_emplace(rank, List{link, link});
        if (fresh) {
            ranks_.push(rank);
            return;
        }
        links_[entry->second.last].next = link;
        entry->second.last = link;
    }

    bool empty() const { return ranks_.empty(); }
    std::uint32_t lowest() const { return ranks_.top(); }

    // Takes the lowest rank out and writes its places to `places`, the leftmost first.
    void take(std::vector<std::int32_t>& places) {
        places.clear();
        const auto entry = lists_.find(ranks_.top());
        for (std::int32_t at = entry->second.first; at >= 0; at = links_[at].next)
            places.push_back(links_[at].place);
        lists_.erase(entry);
        ranks_.pop();
        if (lists_.empty()) links_.clear();
        if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
    }

  private:
    struct Link {
        std::int32_t place;
        std::int32_t next;  // of the same rank; -1: none
    };
    struct List {
        std::int32_t first, last;
    };
    std::vector<Link> links_;
    std::unordered_map<std::uint32_t, List> lists_;
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ranks_;
};

}  // namespace

void BytePairs::merge_long(std::string_view piece, std::vector<TokenId>& ids) const {
    struct Symbol {
        std::int32_t token;  // -1: joined to the one before
        std::int32_t previous;
        std::int32_t next;  // -1 at the end
    };
    const auto count = static_cast<std::int32_t>(piece.size());
    std::vector<Symbol> symbols(piece.size());
    for (std::int32_t i = 0; i < count; ++i) {
        symbols[i] = {bytes_[static_cast<std::uint8_t>(piece[i])], i - 1,
                      i + 1 < count ? i + 1 : -1};
    }
    WaitingPairs waiting;
    const auto propose = [&](std::int32_t left, std::int32_t right) {
        if (left < 0 || right < 0) return;
        const Joined joined = join(symbols[left].token, symbols[right].token);
        if (joined.rank != no_rank) waiting.add(joined.rank, left);
    };
    for (std::int32_t i = 0; i + 1 < count; ++i)
        propose(i, i + 1);
    std::vector<std::int32_t> places;
    while (!waiting.empty()) {
        const std::uint32_t rank = waiting.lowest();
        waiting.take(places);
        for (std::size_t i = 0; i < places.size(); ++i) {
            const std::int32_t at = places[i];
            Symbol& left = symbols[at];
            if (left.token < 0 || left.next < 0) continue;
            // A neighbour may have changed since: the pair it has now was proposed on its own.
            const Joined joined = join(left.token, symbols[left.next].token);
            if (joined.rank != rank) continue;
            Symbol& right = symbols[left.next];
            left.token = joined.id;
            left.next = right.next;
            right.token = -1;
            if (left.next >= 0) symbols[left.next].previous = at;
            propose(left.previous, at);
            propose(at, left.next);
            // In sound merges a pair ranks behind those that make its tokens; if not, it goes
            // first.
            if (!waiting.empty() && waiting.lowest() < rank) {
                for (++i; i < places.size(); ++i)
                    waiting.add(rank, places[i]);
            }
        }
    }
    for (std::int32_t i = 0; i >= 0; i = symbols[i].next)
        ids.push_back(TokenId{symbols[i].token});
}

}  // namespace percheron
