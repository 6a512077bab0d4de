// Rows of a cache as they are stored.
#include "ops/stored_rows.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace percheron::ops {
namespace {

constexpr std::size_t width = 24, rows = 4;

class Share {
  public:
    explicit Share(DType dtype)
        : dtype_(dtype), memory_(stored_rows_bytes(dtype, rows, width), std::byte{0xff}) {}
    StoredRow row(std::size_t index) {
        return stored_row(memory_.data(), dtype_, rows, width, index);
    }
    void store(std::size_t index, const std::array<float, width>& values) {
        store_row(row(index), dtype_, values);
    }
    std::array<float, width> load(std::size_t index) {
        std::array<float, width> values{};
        for (std::size_t i = 0; i < width; ++i) {
            values[i] = load_stored(row(index), dtype_, i);
        }
        return values;
    }
    std::vector<std::byte> bytes(std::size_t index) {
        const StoredRow stored = row(index);
        const auto* const first = static_cast<const std::byte*>(stored.values);
        std::vector<std::byte> result(first, first + width * size_of(dtype_));
        if (stored.scale != nullptr) result.push_back(std::byte{*stored.scale});
        return result;
    }
    const std::vector<std::byte>& memory() const { return memory_; }

  private:
    DType dtype_;
    std::vector<std::byte> memory_;
};

std::array<float, width> random_row(std::mt19937& random, float size) {
    std::normal_distribution<float> normal;
    std::array<float, width> values{};
    for (float& value : values) {
        value = size * normal(random);
    }
    return values;
}

// Of any size from 2^-100 to 2^100: the scale is the smallest that holds the row, every value is
// the nearest that code and scale can say, and bf16 holds it exactly.
TEST(StoredRows, Fp8ValuesAreTheNearestOfTheSmallestScaleThatHoldsTheRow) {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> sizes(-100.0f, 100.0f);
    for (int trial = 0; trial < 2000; ++trial) {
        const auto values = random_row(random, std::exp2(sizes(random)));
        Share share(DType::f8_e4m3);
        share.store(trial % rows, values);
        const auto loaded = share.load(trial % rows);
        float most = 0;
        for (const float value : values) {
            most = std::max(most, std::fabs(value));
        }
        const float scale = row_scale(*share.row(trial % rows).scale);
        int exponent = 0;
        ASSERT_EQ(std::frexp(scale, &exponent), 0.5f);
        ASSERT_LE(most, 448 * scale);
        ASSERT_GT(most, 448 * scale / 2);
        for (std::size_t i = 0; i < width; ++i) {
            ASSERT_LE(std::fabs(loaded[i] - values[i]),
                      std::max(std::fabs(values[i]) * 0x1p-4f, 0x1p-10f * scale));
            ASSERT_EQ(rounded_to_bf16(loaded[i]), loaded[i]);
            for (int code = 0; code < 0x7f; ++code) {
                const float other =
                    scale *
                    static_cast<float>(Float8E4M3::from_bits(static_cast<std::uint8_t>(code)));
                ASSERT_LE(std::fabs(std::fabs(values[i]) - std::fabs(loaded[i])),
                          std::fabs(std::fabs(values[i]) - other));
            }
            ASSERT_EQ(std::signbit(loaded[i]), std::signbit(values[i]));
        }
    }
}

// What stands beside a row, and where the row stands, has no part in its bytes; what was loaded is
// stored without a further loss.
TEST(StoredRows, BytesAreAFunctionOfTheRowAlone) {
    std::mt19937 random(6);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
        for (int trial = 0; trial < 300; ++trial) {
            const auto values = random_row(random, 3.0f);
            Share alone(dtype), among(dtype);
            alone.store(0, values);
            const auto before = alone.memory();
            for (std::size_t i = 0; i < rows; ++i) {
                among.store(i, i == 2 ? values : random_row(random, std::exp2(float(trial % 40))));
            }
            EXPECT_EQ(among.bytes(2), alone.bytes(0));
            alone.store(3, random_row(random, 100.0f));
            EXPECT_EQ(alone.bytes(0), among.bytes(2));
            alone.store(1, among.load(2));
            EXPECT_EQ(alone.load(1), alone.load(0));
        }
    }
}

TEST(StoredRows, Fp8AtTheEndsOfItsRange) {
    Share share(DType::f8_e4m3);
    std::array<float, width> values{};
    share.store(0, values);
    EXPECT_EQ(share.load(0), values);
    EXPECT_EQ(*share.row(0).scale, row_scale_bias + least_row_exponent);

    // 448 and its powers of two need no larger scale, the next float does.
    for (const int power : {-50, 0, 7, 60}) {
        values.fill(std::ldexp(448.0f, power));
        share.store(1, values);
        EXPECT_EQ(*share.row(1).scale, row_scale_bias + power);
        EXPECT_EQ(share.load(1), values);
        values[7] = std::nextafter(values[7], INFINITY);
        share.store(1, values);
        EXPECT_EQ(*share.row(1).scale, row_scale_bias + power + 1);
    }

    // Numbers too large for the largest scale saturate.
    values.fill(1.0f);
    values[0] = std::numeric_limits<float>::max();
    share.store(2, values);
    EXPECT_EQ(share.load(2)[0], std::ldexp(448.0f, largest_row_exponent));
    EXPECT_EQ(share.load(2)[1], 0.0f);
}

// A NaN or an infinity is never stored as a number, and does not touch another row.
TEST(StoredRows, Fp8RowsWithWhatIsNoNumberAreNaN) {
    std::array<float, width> ones{};
    ones.fill(1.0f);
    for (const float wrong : {std::nanf(""), INFINITY, -INFINITY}) {
        for (const std::size_t place : {std::size_t{0}, width / 2, width - 1}) {
            Share share(DType::f8_e4m3);
            std::array<float, width> values = ones;
            values[place] = wrong;
            for (std::size_t i = 0; i < rows; ++i) {
                share.store(i, i == 1 ? values : ones);
            }
            for (std::size_t i = 0; i < rows; ++i) {
                for (const float value : share.load(i)) {
                    EXPECT_EQ(std::isnan(value), i == 1);
                }
            }
        }
    }
}

TEST(StoredRows, TakeOneByteMoreARow) {
    EXPECT_EQ(stored_rows_bytes(DType::f8_e4m3, 64, 512), 64u * 513);
    EXPECT_EQ(stored_rows_bytes(DType::bf16, 64, 512), 64u * 1024);
    EXPECT_EQ(stored_rows_bytes(DType::f32, 64, 512), 64u * 2048);
}

}  // namespace
}  // namespace percheron::ops
