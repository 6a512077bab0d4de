// What only a block drafter uses, against the oracle, at random shapes and on every level.
#include <algorithm>

#include <gtest/gtest.h>

#include "ops/drafter_stages.h"
#include "ops/reference/reference_primitives.h"
#include "ops_cpu/random_data.h"

namespace percheron::ops {
namespace {

// Blocks of several sequences with their contexts in pages of one memory.
struct Case {
    std::size_t heads = 0, kv_heads = 0, dim = 0, rows = 0;
    std::uint32_t window = 0;
    std::vector<std::vector<PageId>> tables;
    std::vector<DraftRows> blocks;
    std::vector<std::byte> memory;
    ContextPages pages;
    std::vector<float> query, key, value;
};

class DrafterPrimitivesTest : public testing::TestWithParam<std::string> {
  protected:
    DrafterPrimitivesTest() : cpu(GetParam()), one(GetParam(), 1) {
        DrafterShape shape;
        shape.hidden = 96;
        shape.taps = 1;
        shape.heads = 8;
        shape.kv_heads = 1;
        shape.head_dim = 160;
        shape.block = 16;
        shape.context_rows = shape.block_rows = 64;
        for (cpu::CpuPrimitives* ops : {&cpu.ops, &one.ops})
            EXPECT_TRUE(ops->prepare_drafter(shape).ok());
    }

    Case random_case(DType dtype) {
        Case c;
        c.kv_heads = random.between(1, 2);
        c.heads = c.kv_heads * random.between(1, 4);
        c.dim = 2 * random.between(1, 80);
        c.window =
            random.between(0, 2) == 0 ? 0 : static_cast<std::uint32_t>(random.between(1, 200));
        c.memory.assign(32 * 2 * page_tokens * c.kv_heads * c.dim * size_of(dtype),
                        std::byte{0xff});
        c.pages = {c.memory.data(), dtype, c.memory.size() / 32, c.kv_heads, c.dim};
        std::uint32_t page = 32;
        c.tables.reserve(3);
        for (int sequence = 0; sequence < 3; ++sequence) {
            const auto begin =
                static_cast<Position>(random.between(0, 1) * random.between(0, 9000));
            const auto end = begin + static_cast<Position>(random.between(0, 400));
            std::vector<PageId>& table = c.tables.emplace_back();
            for (Position p = begin / 64; p <= end / 64; ++p)
                table.push_back(PageId(--page));
            DraftRows block;
            block.first_row = static_cast<std::uint32_t>(c.rows);
            block.row_count = static_cast<std::uint32_t>(random.between(1, 16));
            block.first_position = end;
            block.context = {begin, end, table};
            c.rows += block.row_count;
            c.blocks.push_back(block);
        }
        c.query = random.floats(c.rows * c.heads * c.dim);
        c.key = random.floats(c.rows * c.kv_heads * c.dim);
        c.value = random.floats(c.rows * c.kv_heads * c.dim);
        return c;
    }

    // Fills the contexts, in parts of `part` rows.
    void fill(Primitives& ops, Case& c, std::size_t part, std::uint32_t seed) {
        Random values(seed);
        const std::size_t width = c.kv_heads * c.dim;
        for (const DraftRows& block : c.blocks) {
            const DraftContext& context = block.context;
            for (Position first = context.begin; first < context.end;
                 first += static_cast<Position>(part)) {
                DraftRows rows;
                rows.first_position = first;
                rows.row_count =
                    std::min<std::uint32_t>(static_cast<std::uint32_t>(part), context.end - first);
                rows.context = context;
                std::vector<float> keys, all_values;
                for (std::uint32_t i = 0; i < rows.row_count; ++i) {
                    const auto more_keys = values.floats(width);
                    const auto more_values = values.floats(width);
                    keys.insert(keys.end(), more_keys.begin(), more_keys.end());
                    all_values.insert(all_values.end(), more_values.begin(), more_values.end());
                }
                ops.store_context({{&rows, 1},
                                   Rows<const float>(keys.data(), rows.row_count, width),
                                   Rows<const float>(all_values.data(), rows.row_count, width),
                                   c.pages});
            }
        }
    }

    std::vector<float> attend(Primitives& ops, const Case& c, Arithmetic arithmetic) {
        const std::size_t width = c.heads * c.dim, kv_width = c.kv_heads * c.dim;
        std::vector<float> out(c.rows * width);
        ops.block_attention({c.blocks, Rows<const float>(c.query.data(), c.rows, width),
                             Rows<const float>(c.key.data(), c.rows, kv_width),
                             Rows<const float>(c.value.data(), c.rows, kv_width), c.pages, c.window,
                             arithmetic, Rows<float>(out.data(), c.rows, width)});
        return out;
    }

    Random random{17};
    CpuOps cpu, one;
    reference::ReferencePrimitives oracle;
};

TEST_P(DrafterPrimitivesTest, BlockAttentionEqualsTheOracle) {
    for (int round = 0; round < 30; ++round) {
        const DType dtype = round % 3 == 0   ? DType::f32
                            : round % 3 == 1 ? DType::bf16
                                             : DType::f8_e4m3;
        const Arithmetic arithmetic = round % 3 == 0 ? Arithmetic::fp32 : Arithmetic::standard;
        Case c = random_case(dtype);
        fill(oracle, c, 1000, 70 + round);
        const std::vector<std::byte> stored = c.memory;
        const auto want = attend(oracle, c, arithmetic);
        fill(cpu.ops, c, random.between(1, 100), 70 + round);
        EXPECT_EQ(c.memory, stored);
        const auto got = attend(cpu.ops, c, arithmetic);
        EXPECT_TRUE(close(got, want, 2e-5))
            << c.heads << " / " << c.kv_heads << " x " << c.dim << ", window " << c.window;
        EXPECT_EQ(attend(one.ops, c, arithmetic), got) << "threads";
        // A block alone is what it is among others.
        Case alone = c;
        alone.blocks = {c.blocks[1]};
        const auto by_itself = attend(cpu.ops, alone, arithmetic);
        const std::size_t width = c.heads * c.dim;
        const std::size_t first = c.blocks[1].first_row * width;
        const std::size_t count = c.blocks[1].row_count * width;
        EXPECT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(first),
                               got.begin() + static_cast<std::ptrdiff_t>(first + count),
                               by_itself.begin() + static_cast<std::ptrdiff_t>(first)));
    }
}

TEST_P(DrafterPrimitivesTest, HeadsAreTurnedAsByTheOracle) {
    for (int round = 0; round < 12; ++round) {
        const std::size_t dim = 2 * random.between(1, 70), heads = random.between(1, 4);
        DraftRows rows;
        rows.row_count = static_cast<std::uint32_t>(random.between(1, 90));
        rows.first_position = static_cast<Position>(round % 2 == 0 ? round : 1000000 + round);
        const std::size_t width = heads * dim;
        const auto in = random.floats(rows.row_count * width);
        const auto norm = random.floats(dim);
        std::vector<std::vector<float>> results;
        for (Primitives* ops :
             {static_cast<Primitives*>(&oracle), static_cast<Primitives*>(&cpu.ops)}) {
            std::vector<float> angles(rows.row_count * dim), out(in.size());
            ops->rope_angles(
                {{&rows, 1}, 10000.0f, Rows<float>(angles.data(), rows.row_count, dim)});
            ops->rotate_heads({Rows<const float>(in.data(), rows.row_count, width), dim,
                               norm.data(), 1e-5f,
                               Rows<const float>(angles.data(), rows.row_count, dim),
                               Rows<float>(out.data(), rows.row_count, width)});
            results.push_back(std::move(out));
        }
        EXPECT_TRUE(close(results[1], results[0], 2e-5)) << dim;
    }
}

TEST_P(DrafterPrimitivesTest, TheConvolutionStaysInItsBlock) {
    for (int round = 0; round < 16; ++round) {
        const std::size_t width = random.between(1, 9), groups = random.between(1, 8);
        const std::size_t taps = random.between(1, 4), channels = width * groups;
        std::vector<DraftRows> blocks(random.between(1, 4));
        std::uint32_t rows = 0;
        for (DraftRows& block : blocks) {
            block.first_row = rows;
            block.row_count = static_cast<std::uint32_t>(random.between(1, 16));
            rows += block.row_count;
        }
        const auto in = random.floats(rows * channels);
        const auto base = random.floats(taps * channels);
        const auto gates = random.floats(rows * taps * groups);
        const auto before = random.floats(rows * channels);
        std::vector<std::vector<float>> results;
        for (Primitives* ops :
             {static_cast<Primitives*>(&oracle), static_cast<Primitives*>(&cpu.ops)}) {
            std::vector<float> out = before;
            ops->block_conv({blocks, Rows<const float>(in.data(), rows, channels), base.data(),
                             Rows<const float>(gates.data(), rows, taps * groups), taps, width,
                             round % 2 == 0, Rows<float>(out.data(), rows, channels)});
            results.push_back(std::move(out));
        }
        EXPECT_TRUE(close(results[1], results[0], 2e-5));
    }
}

INSTANTIATE_TEST_SUITE_P(Every, DrafterPrimitivesTest, testing::ValuesIn(levels()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace percheron::ops
