// A drafter's context pages: a window is never exceeded, nothing is lost or given twice, and
// checkpoints give back what was saved.
#include "draft/context_cache.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "ops/reference/reference_backend.h"

namespace percheron::draft {
namespace {

class ContextCacheTest : public testing::Test {
  protected:
    std::unique_ptr<ContextCache> cache(std::uint32_t window, std::uint32_t pages,
                                        std::uint32_t slots) {
        ContextShape shape{3, 2, 4, DType::bf16, window};
        return ContextCache::create(shape, pages, slots, *backend_).value();
    }

    // Position p of a text is worth `text + p` in a mirror of the pages' content.
    void write(ContextCache& cache, RequestSlot slot, Position first, Position end,
               std::uint64_t text) {
        const Position from = cache.extend(slot, first, end);
        const ops::DraftContext context = cache.context(slot);
        ASSERT_EQ(context.end, end);
        for (Position p = from; p < end; ++p) {
            content_[{to_int(context.page_of(p)), p % 64}] = text + p;
        }
    }
    // Whether a block at the context's end finds what its text has there.
    bool holds(const ContextCache& cache, RequestSlot slot, std::uint64_t text) {
        const ops::DraftContext context = cache.context(slot);
        for (Position p = context.begin; p < context.end; ++p) {
            if (content_[{to_int(context.page_of(p)), p % 64}] != text + p) return false;
        }
        return true;
    }

    std::unique_ptr<ops::Backend> backend_ =
        ops::reference::make_reference_backend(ops::Arithmetic::standard);
    std::map<std::pair<std::uint32_t, Position>, std::uint64_t> content_;
};

TEST_F(ContextCacheTest, AWindowHoldsWhatABlockSeesAndNoPageMore) {
    std::mt19937 random(3);
    for (const std::uint32_t window : {1u, 2u, 24u, 63u, 64u, 65u, 66u, 200u, 2048u}) {
        const ContextShape shape{1, 1, 4, DType::bf16, window};
        EXPECT_LE(shape.pages_a_slot() * 64, window + 2 * 64u);
        const auto cache = this->cache(window, shape.pages_a_slot(), 1);
        for (int trial = 0; trial < 3; ++trial) {
            cache->clear(RequestSlot(0));
            EXPECT_EQ(cache->free_pages(), shape.pages_a_slot());
            Position end = 0;
            while (end < 3 * window + 500) {
                // Chunks on the grid, then rounds.
                const Position rows = end % 64 == 0 && random() % 2 == 0 ? 64 * (1 + random() % 8)
                                                                         : 1 + random() % 16;
                cache->begin_step();
                write(*cache, RequestSlot(0), end, end + rows, 1000000u * trial);
                end += rows;
                const ops::DraftContext context = cache->context(RequestSlot(0));
                EXPECT_EQ(context.begin, end < window ? 0 : (end - window + 1) / 64 * 64);
                EXPECT_LE(context.pages.size(), shape.pages_a_slot());
                if (end % 8 == 0) {
                    EXPECT_TRUE(holds(*cache, RequestSlot(0), 1000000u * trial));
                }
            }
            EXPECT_TRUE(holds(*cache, RequestSlot(0), 1000000u * trial));
        }
    }
}

TEST_F(ContextCacheTest, AGapLosesWhatWasBefore) {
    const auto cache = this->cache(0, 8, 1);
    write(*cache, RequestSlot(0), 0, 100, 0);
    write(*cache, RequestSlot(0), 130, 140, 0);
    EXPECT_EQ(cache->context(RequestSlot(0)).begin, 130u);
    EXPECT_TRUE(holds(*cache, RequestSlot(0), 0));
    write(*cache, RequestSlot(0), 140, 300, 0);
    EXPECT_EQ(cache->context(RequestSlot(0)).begin, 130u);
    EXPECT_TRUE(holds(*cache, RequestSlot(0), 0));
    cache->clear(RequestSlot(0));
    EXPECT_EQ(cache->free_pages(), 8u);
}

// Many slots and checkpoints over few pages: whoever has a context has its own text's, whoever was
// seen this step keeps it, and at the end every page is free.
TEST_F(ContextCacheTest, CheckpointsGiveBackWhatWasSaved) {
    constexpr std::uint32_t slots = 4, checkpoints = 6, pages = 40;
    for (const std::uint32_t window : {0u, 100u}) {
        const auto cache = this->cache(window, pages, slots);
        std::mt19937 random(9);
        struct Line {
            std::uint64_t text = 0;
            Position end = 0;
        };
        std::vector<Line> lines(slots);
        std::map<std::uint32_t, Line> saved;
        std::size_t resumed = 0, lost = 0;
        for (int step = 0; step < 3000; ++step) {
            cache->begin_step();
            const std::uint32_t s = random() % slots;
            const RequestSlot slot{s};
            Line& line = lines[s];
            if (line.end > 600 || random() % 40 == 0) {
                cache->clear(slot);
                line = {10000u * (1 + random() % 1000), 0};
                if (!saved.empty() && random() % 2 == 0) {
                    auto from = saved.begin();
                    std::advance(from, random() % saved.size());
                    line = from->second;
                    cache->restore(slot, line.end, CheckpointId(from->first));
                    const ops::DraftContext context = cache->context(slot);
                    EXPECT_EQ(context.end, line.end);
                    (context.begin < context.end ? resumed : lost) += 1;
                    // Beyond the checkpoint the text is another.
                    line.text = from->second.text;
                }
            }
            const Position rows = line.end % 64 == 0 ? 64 * (1 + random() % 3) : 1 + random() % 9;
            write(*cache, slot, line.end, line.end + rows, line.text);
            line.end += rows;
            EXPECT_TRUE(holds(*cache, slot, line.text));
            EXPECT_LT(cache->context(slot).begin, line.end);
            if (line.end % 64 == 0 && random() % 2 == 0) {
                const std::uint32_t id = random() % checkpoints;
                cache->save(slot, line.end, CheckpointId(id));
                saved[id] = line;
            }
        }
        EXPECT_GT(resumed, 50u) << window;
        EXPECT_GT(window == 0 ? lost : 1u, 0u);
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            cache->clear(RequestSlot(slot));
        }
        // A save of a slot without context takes a checkpoint's pages away, as forgetting it does.
        for (std::uint32_t id = 0; id < checkpoints; ++id) {
            if (id % 2 == 0) {
                cache->save(RequestSlot(0), 64, CheckpointId(id));
            } else {
                cache->forget(CheckpointId(id));
            }
            cache->forget(CheckpointId(id));
        }
        EXPECT_EQ(cache->free_pages(), pages);
    }
}

TEST_F(ContextCacheTest, WhoFindsNoPageGoesWithoutAndOthersKeepTheirs) {
    const auto cache = this->cache(0, 4, 2);
    cache->begin_step();
    write(*cache, RequestSlot(0), 0, 192, 0);
    EXPECT_EQ(cache->extend(RequestSlot(1), 0, 128), 128u);
    EXPECT_EQ(cache->context(RequestSlot(1)).begin, 128u);
    EXPECT_TRUE(holds(*cache, RequestSlot(0), 0));
    // In a later step the one that is not seen gives its pages up.
    cache->begin_step();
    EXPECT_EQ(cache->extend(RequestSlot(1), 128, 256), 128u);
    EXPECT_EQ(cache->extend(RequestSlot(1), 256, 320), 256u);
    EXPECT_EQ(cache->context(RequestSlot(0)).pages.size(), 0u);
}

}  // namespace
}  // namespace percheron::draft
