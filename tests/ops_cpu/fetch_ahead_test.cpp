// What products bring into the second cache for the work behind them: all of it, and no result
// changes.
#include <gtest/gtest.h>

#include "ops_cpu/random_data.h"

namespace percheron::ops {
namespace {

using cpu::FetchAhead;

TEST(FetchAhead, PassesEveryRangeFromItsStartToItsEnd) {
    Random random(31);
    const std::vector<std::byte> memory(1 << 16);
    for (int round = 0; round < 200; ++round) {
        std::vector<FetchAhead::Range> ranges;
        for (std::size_t i = random.between(0, 6); i > 0; --i) {
            const std::size_t first = random.between(0, memory.size() - 5000);
            ranges.emplace_back(memory.data() + first, random.between(0, 5000));
        }
        FetchAhead ahead{ranges};
        for (const FetchAhead::Range& range : ranges) {
            for (std::size_t done = 0; done < range.size();) {
                ASSERT_FALSE(ahead.done());
                ASSERT_EQ(ahead.at(), range.data() + done);
                const std::size_t step = random.between(1, 1500);
                ahead.advance(step);
                done += step;
            }
        }
        EXPECT_TRUE(ahead.done());
    }
    EXPECT_TRUE(FetchAhead().done());
}

class FetchingProducts : public testing::TestWithParam<std::string> {};

TEST_P(FetchingProducts, ComputeTheSameBits) {
    Random random(32);
    const auto chosen = cpu::choose_level(GetParam());
    ASSERT_TRUE(chosen.ok());
    const cpu::Kernels& kernels = *chosen.value();
    const std::vector<std::byte> memory(1 << 20);
    for (const WeightFormat format :
         {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::w4a16}) {
        for (std::size_t rows = 1; rows <= 17; ++rows) {
            const std::size_t n = random.between(1, 200);
            const std::size_t k = storable_width(format, random.between(1, 500));
            const StoredMatrix weight = random_matrix(random, format, n, k);
            const std::size_t width = cpu::packed_width(k);
            std::vector<float> x(rows * width, 0.0f);
            for (std::size_t row = 0; row < rows; ++row)
                for (std::size_t i = 0; i < k; ++i)
                    x[row * width + i] = random.normal();
            const cpu::PackedRows packed{x.data(), width, rows};
            std::vector<float> panel(cpu::panel_room(k));
            std::vector<float> without(rows * n), with(rows * n);
            kernels.product(weight.view, 0, n, packed, without.data(), n, panel.data(), nullptr);
            const FetchAhead::Range ranges[] = {{memory.data(), random.between(1, memory.size())}};
            FetchAhead ahead{ranges};
            kernels.product(weight.view, 0, n, packed, with.data(), n, panel.data(), &ahead);
            ASSERT_TRUE(bits_equal(without, with))
                << name_of(format) << " rows " << rows << " n " << n << " k " << k;
            // The proof that something was fetched: FP8 products of a few rows move on.
            if (format == WeightFormat::fp8_block && rows <= 16) {
                EXPECT_TRUE(ahead.done() || ahead.at() != memory.data());
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Levels, FetchingProducts, testing::ValuesIn(levels()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace percheron::ops
