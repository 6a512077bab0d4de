// The prefix cache alone, against what each page and each checkpoint really holds: C1 to C8 of
// docs/SCHEDULER.md in random lives.
#include "cache/prefix_cache.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace percheron::cache {
namespace {

constexpr std::uint32_t block_tokens = ops::page_tokens;

// A prompt of few different blocks, so that prompts meet, part and meet again.
struct Prompt {
    std::vector<TokenId> tokens;
    std::vector<ImageSpan> images;
    std::string salt;

    PrefixText text() const { return {tokens, images, salt}; }
    std::uint32_t whole_blocks() const {
        return static_cast<std::uint32_t>(tokens.size()) / block_tokens;
    }
    // All that the numbers after `blocks` blocks depend on, in another way than the tree's.
    std::uint64_t content(std::uint32_t blocks) const {
        std::uint64_t hash = salt.size() + 1;
        const auto mix = [&hash](std::uint64_t value) {
            hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        };
        for (std::uint32_t i = 0; i < blocks * block_tokens; ++i) {
            mix(static_cast<std::uint64_t>(to_int(tokens[i])));
            for (const ImageSpan& image : images) {
                if (i >= image.first && i < image.first + image.count) {
                    mix(1000 + i - image.first);
                    mix(image.content_hash[0]);
                }
            }
        }
        return hash;
    }
};

Prompt random_prompt(std::mt19937& random, std::uint32_t most_blocks) {
    Prompt prompt;
    prompt.salt = random() % 5 == 0 ? "salted" : "";
    const std::uint32_t blocks = random() % (most_blocks + 1);
    for (std::uint32_t block = 0; block < blocks; ++block) {
        const int kind = random() % 4 == 0 ? 1 : 0;
        for (std::uint32_t i = 0; i < block_tokens; ++i) {
            prompt.tokens.push_back(TokenId(i == 17 ? kind : 5));
        }
    }
    for (std::uint32_t i = random() % block_tokens + (blocks == 0 ? 1 : 0); i > 0; --i) {
        prompt.tokens.push_back(TokenId(7));
    }
    const auto length = static_cast<std::uint32_t>(prompt.tokens.size());
    if (random() % 3 == 0 && length > 10) {
        ImageSpan image;
        image.first = random() % 4 == 0 ? static_cast<std::uint32_t>(random()) % (length - 5) : 3;
        image.count = random() % 3 == 0 ? length - image.first : 5;
        image.content_hash[0] = static_cast<std::uint8_t>(random() % 2);
        prompt.images.push_back(image);
    }
    return prompt;
}

struct Reader {
    Prompt prompt;
    std::vector<PageId> table;
    PrefixPlace place;
    std::uint32_t computed = 0;  // blocks
};

// Plays scheduler and memory: what a page or a checkpoint holds is written down when a sequence
// computes it, and compared whenever somebody is to read it.
class Life {
  public:
    Life(unsigned seed, std::uint32_t pages, std::uint32_t checkpoints)
        : random_(seed), cache_(pages, checkpoints), readers_(5), checkpoints_(checkpoints) {}

    void run(int operations) {
        for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
            Reader& reader = readers_[random_() % readers_.size()];
            if (reader.table.empty()) {
                start(reader);
            } else if (random_() % 8 == 0) {
                cache_.release(reader.table);
                reader = {};
            } else {
                compute(reader);
            }
            check();
        }
        for (Reader& reader : readers_) {
            cache_.release(reader.table);
        }
        ASSERT_EQ(cache_.available(), cache_.pages().total());
        ASSERT_EQ(cache_.blocks(), cache_.pages().idle());
        // Everything that is left can go, and takes its checkpoints along.
        std::vector<PageId> all;
        ASSERT_TRUE(cache_.grow(all, cache_.pages().total()));
        ASSERT_EQ(cache_.blocks(), 0u);
        ASSERT_EQ(cache_.checkpoints(), 0u);
    }

    std::uint64_t hits = 0, parted = 0, shared = 0, refused = 0, evicted = 0, unsaved = 0;

  private:
    void start(Reader& reader) {
        reader.prompt = random_prompt(random_, 12);
        const auto length = static_cast<std::uint32_t>(reader.prompt.tokens.size());
        const std::uint32_t most = (length - 1) / block_tokens;
        const PrefixHit hit = cache_.find(reader.prompt.text(), most);
        ASSERT_LE(hit.blocks(), most);
        ASSERT_LE(hit.blocks(), hit.matched);
        reader.place = cache_.attach(hit, reader.table);
        reader.computed = hit.blocks();
        ASSERT_EQ(reader.table.size(), hit.blocks());
        if (hit.block != nullptr) {
            ++hits;
            parted += hit.matched > hit.blocks() ? 1 : 0;
            ASSERT_EQ(saved_.at(hit.block->checkpoint->id), reader.prompt.content(hit.blocks()));
        }
        check_pages(reader);
        const std::uint32_t needed = (length + block_tokens - 1) / block_tokens;
        const std::uint32_t available = cache_.available();
        const bool fits = needed - hit.blocks() <= available;
        const std::uint32_t blocks = cache_.blocks();
        ASSERT_EQ(cache_.grow(reader.table, needed), fits);
        evicted += blocks - cache_.blocks();
        if (!fits) {
            ++refused;
            cache_.release(reader.table);
            reader = {};
            return;
        }
        for (std::uint32_t block = hit.blocks(); block < needed; ++block) {
            written_[reader.table[block]] = 0;  // not complete
        }
    }

    void compute(Reader& reader) {
        const std::uint32_t whole = reader.prompt.whole_blocks();
        const std::uint32_t until =
            std::min(whole, reader.computed + 1 + static_cast<std::uint32_t>(random_() % 4));
        for (; reader.computed < until; ++reader.computed) {
            written_[reader.table[reader.computed]] = reader.prompt.content(reader.computed + 1);
        }
        const std::vector<PageId> before = reader.table;
        const std::uint32_t blocks = cache_.blocks();
        reader.place =
            cache_.publish(reader.place, reader.prompt.text(), reader.table, reader.computed);
        ASSERT_EQ(reader.place.blocks(), checkpoints_ == 0 ? 0 : reader.computed);
        ASSERT_GE(cache_.blocks(), blocks);
        shared += before != reader.table ? 1 : 0;
        check_pages(reader);
        if (random_() % 2 == 0) {
            const auto kind = static_cast<CheckpointKind>(random_() % 3);
            const bool there = reader.place.block != nullptr && reader.place.block->checkpoint;
            const std::uint32_t held = cache_.checkpoints();
            const auto id = cache_.add_checkpoint(reader.place, kind);
            ASSERT_FALSE(there && id);
            if (id) {
                saved_[*id] = reader.prompt.content(reader.computed);
            } else if (!there && reader.place.block != nullptr) {
                ++unsaved;
                ASSERT_EQ(held, checkpoints_);
                ASSERT_EQ(kind, CheckpointKind::between);
            }
        } else if (random_() % 10 == 0) {
            cache_.drop_checkpoint(reader.place);
        }
    }

    // Every page that holds a computed block of this reader holds that block's content.
    void check_pages(const Reader& reader) {
        for (std::uint32_t block = 0; block < reader.computed; ++block) {
            ASSERT_EQ(written_.at(reader.table[block]), reader.prompt.content(block + 1));
        }
    }

    void check() {
        std::map<PageId, std::uint32_t> held;
        for (const Reader& reader : readers_) {
            for (const PageId page : reader.table)
                ++held[page];
            check_pages(reader);
        }
        std::uint32_t read = 0;
        for (std::uint32_t page = 0; page < cache_.pages().total(); ++page) {
            const auto found = held.find(PageId(page));
            const std::uint32_t expected = found == held.end() ? 0 : found->second;
            ASSERT_EQ(cache_.pages().readers(PageId(page)), expected);
            read += expected > 0 ? 1 : 0;
        }
        ASSERT_EQ(read + cache_.available(), cache_.pages().total());
        ASSERT_LE(cache_.checkpoints(), checkpoints_);
        if (checkpoints_ == 0) {
            ASSERT_EQ(cache_.blocks(), 0u);
        }
    }

    std::mt19937 random_;
    PrefixCache cache_;
    std::vector<Reader> readers_;
    std::uint32_t checkpoints_;
    std::map<PageId, std::uint64_t> written_;
    std::map<CheckpointId, std::uint64_t> saved_;
};

TEST(PrefixCache, GivesOnlyWhatWasComputedForTheSamePrefix) {
    std::uint64_t hits = 0, parted = 0, shared = 0, refused = 0, evicted = 0, unsaved = 0;
    for (unsigned seed = 0; seed < 300 && !HasFatalFailure(); ++seed) {
        SCOPED_TRACE("life " + std::to_string(seed));
        const std::uint32_t pages = seed % 3 == 0 ? 30 : 14 + seed % 90;
        const std::uint32_t checkpoints = seed % 10 == 9 ? 0 : 1 + seed % 12;
        Life life(seed, pages, checkpoints);
        life.run(250);
        if (checkpoints == 0) {
            EXPECT_EQ(life.hits, 0u);
        }
        hits += life.hits;
        parted += life.parted;
        shared += life.shared;
        refused += life.refused;
        evicted += life.evicted;
        unsaved += life.unsaved;
    }
    EXPECT_GT(hits, 2000u);
    EXPECT_GT(parted, 300u);
    EXPECT_GT(shared, 300u);
    EXPECT_GT(refused, 300u);
    EXPECT_GT(evicted, 3000u);
    EXPECT_GT(unsaved, 300u);
}

// A prompt of `blocks` blocks, all alike up to `parting`, of its own behind it.
Prompt plain(std::uint32_t blocks, int which = 0, std::uint32_t parting = 0) {
    Prompt prompt;
    for (std::uint32_t i = 0; i < blocks * block_tokens; ++i) {
        prompt.tokens.push_back(TokenId(i / block_tokens < parting ? 1 : 10 + which));
    }
    return prompt;
}

// Computes a prompt and leaves checkpoints at the given depths.
void leave(PrefixCache& cache, const Prompt& prompt,
           const std::vector<std::pair<std::uint32_t, CheckpointKind>>& checkpoints) {
    std::vector<PageId> table;
    PrefixPlace place = cache.attach(cache.find(prompt.text(), prompt.whole_blocks()), table);
    ASSERT_TRUE(cache.grow(table, prompt.whole_blocks()));
    for (const auto& [depth, kind] : checkpoints) {
        place = cache.publish(place, prompt.text(), table, depth);
        cache.add_checkpoint(place, kind);
    }
    cache.publish(place, prompt.text(), table, prompt.whole_blocks());
    cache.release(table);
}

std::uint32_t hit(PrefixCache& cache, const Prompt& prompt) {
    return cache.find(prompt.text(), prompt.whole_blocks()).blocks();
}

// C4: leaves go first, the longest unused conversation before the others.
TEST(PrefixCache, GivesUpTheLongestUnusedPagesFromTheirEnds) {
    PrefixCache cache(40, 20);
    using enum CheckpointKind;
    for (int which = 0; which < 4; ++which) {
        leave(cache, plain(10, which), {{3, between}, {6, between}, {10, turn_end}});
    }
    EXPECT_EQ(hit(cache, plain(10, 1)), 10u);  // used again: 0 is the oldest now, then 2
    std::vector<PageId> table;
    ASSERT_TRUE(cache.grow(table, 1));
    EXPECT_EQ(cache.blocks(), 39u);
    EXPECT_EQ(hit(cache, plain(10, 0)), 6u);
    ASSERT_TRUE(cache.grow(table, 11));
    EXPECT_EQ(hit(cache, plain(10, 2)), 0u);
    EXPECT_EQ(hit(cache, plain(10, 1)), 10u);
    EXPECT_EQ(hit(cache, plain(10, 3)), 10u);
    // Pages that somebody reads stay, whatever is asked for.
    std::vector<PageId> read;
    cache.attach(cache.find(plain(10, 3).text(), 10), read);
    ASSERT_FALSE(cache.grow(table, 31));
    ASSERT_TRUE(cache.grow(table, 30));
    EXPECT_EQ(cache.blocks(), 10u);
    EXPECT_EQ(hit(cache, plain(10, 3)), 10u);
}

// C8: gaps grow with the distance from the end; anchors and the newest ends stay.
TEST(PrefixCache, ThinsCheckpointsInBetweenGeometrically) {
    using enum CheckpointKind;
    PrefixCache cache(2000, 16);
    const Prompt prompt = plain(1024);
    std::vector<std::pair<std::uint32_t, CheckpointKind>> made = {{5, anchor}};
    for (std::uint32_t depth = 8; depth < 1024; depth += 8) {
        made.emplace_back(depth, between);
    }
    made.emplace_back(1023, turn_end);
    leave(cache, prompt, made);
    EXPECT_EQ(cache.checkpoints(), 16u);
    EXPECT_EQ(hit(cache, prompt), 1023u);
    // Whoever parts from it at any depth loses no more than in proportion to the distance.
    for (std::uint32_t parting = 6; parting < 1023; ++parting) {
        Prompt other = prompt;
        other.tokens[parting * block_tokens + 20] = TokenId(99);
        const std::uint32_t found = hit(cache, other);
        ASSERT_GE(found, 5u);
        ASSERT_LE(parting - found, 8 + (1024 - parting) * 6 / 10) << parting;
    }
}

TEST(PrefixCache, KeepsAnchorsAndTheEndsOfLiveConversations) {
    using enum CheckpointKind;
    PrefixCache cache(1000, 8);
    // A shared system prompt of four blocks, twenty conversations, the first of them alive.
    for (int turn = 0; turn < 20; ++turn) {
        leave(cache, plain(10, turn, 4), {{4, anchor}, {7, between}, {10, turn_end}});
        EXPECT_EQ(hit(cache, plain(10, turn, 4)), 10u);
        EXPECT_EQ(hit(cache, plain(10, 0, 4)), 10u);
        EXPECT_EQ(hit(cache, plain(10, 1000 + turn, 4)), 4u);
    }
    EXPECT_EQ(hit(cache, plain(10, 5, 4)), 4u);
    EXPECT_EQ(hit(cache, plain(10, 19, 4)), 10u);
    EXPECT_LE(cache.checkpoints(), 8u);
    // A longer turn of a conversation takes the place of its earlier end, not of the others'.
    for (std::uint32_t length = 11; length < 40; ++length) {
        Prompt longer = plain(10, 19, 4);
        longer.tokens.resize(length * block_tokens, TokenId(3));
        leave(cache, longer, {{length, turn_end}});
        EXPECT_EQ(hit(cache, longer), length);
        EXPECT_EQ(hit(cache, plain(10, 0, 4)), 10u);
        EXPECT_EQ(hit(cache, plain(10, 18, 4)), 10u);
    }
}

// C2: what a name is made of.
TEST(PrefixCache, NamesBlocksByAllTheyDependOn) {
    using enum CheckpointKind;
    const auto with_image = [](std::uint32_t first, std::uint32_t count, std::uint8_t hash,
                               std::uint8_t last_byte = 0) {
        Prompt prompt = plain(4);
        ImageSpan image{first, count, {}};
        image.content_hash[0] = hash;
        image.content_hash[31] = last_byte;
        prompt.images.push_back(image);
        return prompt;
    };
    PrefixCache cache(100, 10);
    leave(cache, with_image(100, 60, 1), {{1, turn_end}, {2, turn_end}, {3, turn_end}});
    EXPECT_EQ(hit(cache, with_image(100, 60, 1)), 3u);
    EXPECT_EQ(hit(cache, with_image(100, 60, 2)), 1u);     // another picture
    EXPECT_EQ(hit(cache, with_image(100, 60, 1, 1)), 1u);  // in any byte of its hash
    EXPECT_EQ(hit(cache, with_image(100, 59, 1)), 2u);     // that ends sooner
    EXPECT_EQ(hit(cache, with_image(101, 59, 1)), 1u);     // or begins later
    EXPECT_EQ(hit(cache, with_image(10, 150, 1)), 0u);     // other rows of it
    EXPECT_EQ(hit(cache, plain(4)), 1u);                   // none
    Prompt salted = with_image(100, 60, 1);
    salted.salt = "x";
    EXPECT_EQ(hit(cache, salted), 0u);
    leave(cache, salted, {{3, turn_end}});
    EXPECT_EQ(hit(cache, salted), 3u);
    salted.salt = "y";
    EXPECT_EQ(hit(cache, salted), 0u);
    // Any one id.
    std::mt19937 random(5);
    for (int i = 0; i < 200; ++i) {
        Prompt other = with_image(100, 60, 1);
        const auto at = static_cast<std::uint32_t>(random() % (3 * block_tokens));
        other.tokens[at] = TokenId(77);
        EXPECT_EQ(hit(cache, other), at / block_tokens);
    }
}

}  // namespace
}  // namespace percheron::cache
