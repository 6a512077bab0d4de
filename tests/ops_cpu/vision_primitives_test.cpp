// What only the vision tower uses, against the oracle, at random shapes and on every level.
#include <gtest/gtest.h>

#include "ops/reference/reference_primitives.h"
#include "ops/vision_stages.h"
#include "ops_cpu/random_data.h"

namespace percheron::ops {
namespace {

// Queries, keys and values of a picture, with their memory.
struct Heads {
    Heads(DType dtype, std::size_t heads, std::size_t dim, std::size_t patches)
        : memory(3 * heads * dim * patches * size_of(dtype)) {
        const std::size_t each = memory.size() / 3;
        view = {memory.data(), memory.data() + each, memory.data() + 2 * each, dtype, heads, dim,
                patches};
    }
    std::vector<std::byte> memory;
    PatchHeads view;
};

struct Picture {
    std::size_t heads, dim, patches;
    std::vector<float> rows;
    std::vector<float> query_norm, key_norm;
    std::vector<PatchPlace> places;
};

Picture random_picture(Random& random, std::size_t most_patches = 150) {
    Picture picture;
    picture.heads = random.between(1, 3);
    picture.dim = 4 * random.between(1, 20);
    picture.patches = random.between(1, most_patches);
    picture.rows = random.floats(picture.patches * 3 * picture.heads * picture.dim);
    picture.query_norm = random.floats(picture.dim);
    picture.key_norm = random.floats(picture.dim);
    for (std::size_t i = 0; i < picture.patches; ++i)
        picture.places.push_back({static_cast<std::uint32_t>(random.between(0, 200)),
                                  static_cast<std::uint32_t>(random.between(0, 200))});
    return picture;
}

class VisionPrimitivesTest : public testing::TestWithParam<std::string> {
  protected:
    VisionPrimitivesTest() : cpu(GetParam()), one(GetParam(), 1) {
        VisionShape shape;
        shape.patch_values = 64;
        shape.hidden = 80;
        shape.heads = 1;
        shape.intermediate = shape.out_hidden = shape.projection = 64;
        for (cpu::CpuPrimitives* ops : {&cpu.ops, &one.ops})
            EXPECT_TRUE(ops->prepare_vision(shape, 150, 600).ok());
    }

    // Stores the picture cut into slices of `slice` rows, then attends cut the same way.
    std::vector<float> attend(Primitives& ops, const Picture& picture, DType dtype,
                              std::size_t slice, Heads& heads) {
        const std::size_t width = picture.heads * picture.dim;
        std::vector<float> out(picture.patches * width);
        for (const bool storing : {true, false}) {
            for (std::size_t first = 0; first < picture.patches; first += slice) {
                const std::size_t count = std::min(slice, picture.patches - first);
                if (storing) {
                    ops.store_patch_heads(
                        {Rows<const float>(picture.rows.data() + first * 3 * width, count,
                                           3 * width),
                         picture.query_norm.data(), picture.key_norm.data(), 1e-5f, 10000.0f,
                         std::span(picture.places).subspan(first, count), first, heads.view});
                } else {
                    ops.patch_attention(
                        {heads.view, first, Rows<float>(out.data() + first * width, count, width)});
                }
            }
        }
        EXPECT_EQ(heads.view.dtype, dtype);
        return out;
    }

    Random random{31};
    CpuOps cpu, one;
    reference::ReferencePrimitives oracle;
};

TEST_P(VisionPrimitivesTest, PatchAttentionEqualsTheOracle) {
    for (int round = 0; round < 24; ++round) {
        const Picture picture = random_picture(random);
        const DType dtype = round % 2 == 0 ? DType::f32 : DType::bf16;
        Heads ours(dtype, picture.heads, picture.dim, picture.patches);
        Heads expected(dtype, picture.heads, picture.dim, picture.patches);
        const auto got = attend(cpu.ops, picture, dtype, picture.patches, ours);
        const auto want = attend(oracle, picture, dtype, picture.patches, expected);
        // A value on the edge of two bf16 may be rounded to either.
        EXPECT_TRUE(close(got, want, dtype == DType::f32 ? 2e-5 : 2e-2))
            << picture.heads << " x " << picture.dim << " over " << picture.patches;
    }
}

TEST_P(VisionPrimitivesTest, SlicesAndThreadsLeaveTheSameBits) {
    for (int round = 0; round < 12; ++round) {
        const Picture picture = random_picture(random);
        const DType dtype = round % 2 == 0 ? DType::f32 : DType::bf16;
        Heads whole(dtype, picture.heads, picture.dim, picture.patches);
        const auto expected = attend(cpu.ops, picture, dtype, picture.patches, whole);
        for (const std::size_t slice : {1, 7, 16, 33}) {
            Heads heads(dtype, picture.heads, picture.dim, picture.patches);
            EXPECT_TRUE(bits_equal(attend(one.ops, picture, dtype, slice, heads), expected));
            EXPECT_EQ(heads.memory, whole.memory);
        }
    }
}

// More patches than any panel of weights has rows.
TEST_P(VisionPrimitivesTest, LargePicturesAttendTheSame) {
    Picture picture = random_picture(random, 1);
    while (picture.patches < 500 || picture.heads > 1)
        picture = random_picture(random, 600);
    for (const DType dtype : {DType::f32, DType::bf16}) {
        Heads ours(dtype, picture.heads, picture.dim, picture.patches);
        Heads expected(dtype, picture.heads, picture.dim, picture.patches);
        const auto got = attend(cpu.ops, picture, dtype, 300, ours);
        const auto want = attend(oracle, picture, dtype, picture.patches, expected);
        EXPECT_TRUE(close(got, want, dtype == DType::f32 ? 5e-5 : 5e-2));
    }
}

TEST_P(VisionPrimitivesTest, BiasesAndGelu) {
    for (int round = 0; round < 10; ++round) {
        const std::size_t rows = random.between(1, 40), columns = random.between(1, 300);
        std::vector<float> in = random.floats(rows * columns, 3.0f);
        std::vector<float> residual = random.floats(rows * columns);
        const std::vector<float> bias = random.floats(columns);
        std::vector<float> out(in.size()), expected(in.size());
        for (const bool adding : {false, true}) {
            AddRows op{rows_of(in, columns), bias.data(),
                       adding ? Rows<const float>(rows_of(residual, columns)) : Rows<const float>(),
                       rows_of(out, columns)};
            cpu.ops.add_rows(op);
            op.output = rows_of(expected, columns);
            oracle.add_rows(op);
            EXPECT_TRUE(bits_equal(out, expected));
        }
        cpu.ops.gelu({rows_of(in, columns), rows_of(out, columns)});
        oracle.gelu({rows_of(in, columns), rows_of(expected, columns)});
        EXPECT_TRUE(close(out, expected, 1e-6));
    }
}

INSTANTIATE_TEST_SUITE_P(Every, VisionPrimitivesTest, testing::ValuesIn(levels()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace percheron::ops
