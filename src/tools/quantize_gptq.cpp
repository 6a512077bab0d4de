#include "tools/quantize_gptq.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "tools/quantize_formats.h"

namespace percheron::tools {
namespace {

// Rows that are rounded side by side, one a lane.
constexpr std::size_t lanes = 16;
using Lanes = std::array<float, lanes>;

// A format as the search sees it: a group's size, its candidates by number, and its values.
struct Int4 {
    static constexpr std::size_t group = 128;
    using Scale = BFloat16;
    // An octave has 128 bfloat16 values: every eighth, then finer around the best.
    static constexpr int coarse = 16;
    static constexpr int step = 8;

    // The candidates of a group whose largest magnitude is `largest`, as bits of the scale.
    int first(float largest) const { return BFloat16(largest / 14.0f).bits; }
    int last(float largest) const { return BFloat16(largest / 7.0f).bits; }
    static constexpr int least = 0x0080;  // the smallest normal bfloat16
    static constexpr int most = 0x7f7f;
    static constexpr int of_zeros = 0x3f80;
    static Scale scale(int bits) { return BFloat16::from_bits(static_cast<std::uint16_t>(bits)); }
    float value(Scale scale) const { return static_cast<float>(scale); }
    static float nearest(float quotient) { return nearest_int4(quotient); }
};

struct Fp4 {
    static constexpr std::size_t group = 16;
    using Scale = Float8E4M3;
    static constexpr int coarse = 12;
    static constexpr int step = 1;

    float global_scale = 1;
    int first(float largest) const {
        return std::max(Float8E4M3(largest / (6.0f * global_scale)).bits - 8, 1);
    }
    int last(float largest) const { return first(largest) + coarse - 1; }
    static constexpr int least = 1;
    static constexpr int most = 0x7e;
    static constexpr int of_zeros = 1;
    static Scale scale(int bits) { return Float8E4M3::from_bits(static_cast<std::uint8_t>(bits)); }
    float value(Scale scale) const { return static_cast<float>(scale) * global_scale; }
    static float nearest(float quotient) { return nearest_e2m1(quotient); }
};

// Rounds one tile of rows.
template <class Format>
class Tile {
  public:
    Tile(const Format& format, const HessianFactor& factor)
        : format_(format),
          factor_(factor),
          columns_(factor.columns()),
          weights_(columns_),
          errors_(columns_) {}

    // store(lane, group of the stored order, scale) and store_value(lane, column, quotient).
    template <class StoreScale, class StoreValue>
    void round(Rows<const float> weights, StoreScale&& store_scale, StoreValue&& store_value) {
        rows_ = weights.rows;
        for (std::size_t place = 0; place < columns_; ++place) {
            for (std::size_t lane = 0; lane < lanes; ++lane) {
                weights_[place][lane] =
                    lane < rows_ ? weights.row(lane)[factor_.order[place]] : 0.0f;
            }
        }
        for (std::size_t first = 0; first < columns_; first += Format::group) {
            carry(first);
            const std::array<int, lanes> chosen = search();
            std::array<float, lanes> scales;
            for (std::size_t lane = 0; lane < lanes; ++lane) {
                const auto scale = Format::scale(chosen[lane]);
                scales[lane] = format_.value(scale);
                if (lane < rows_) store_scale(lane, factor_.order[first] / Format::group, scale);
            }
            std::array<Lanes, Format::group> quotients;
            (void)walk(scales, &quotients);
            for (std::size_t j = 0; j < Format::group; ++j) {
                for (std::size_t lane = 0; lane < lanes; ++lane) {
                    const float value = quotients[j][lane] * scales[lane];
                    errors_[first + j][lane] = weights_[first + j][lane] - value;
                    if (lane < rows_)
                        store_value(lane, factor_.order[first + j], quotients[j][lane]);
                }
            }
        }
    }

  private:
    // base = the group's weights and what the groups before left over; within = the group's U,
    // transposed.
    void carry(std::size_t first) {
        first_ = first;
        for (std::size_t j = 0; j < Format::group; ++j)
            base_[j] = weights_[first + j];
        for (std::size_t i = 0; i < first; ++i) {
            const float* const feedback = &factor_.feedback[i * columns_ + first];
            const Lanes error = errors_[i];
            for (std::size_t j = 0; j < Format::group; ++j) {
                for (std::size_t lane = 0; lane < lanes; ++lane)
                    base_[j][lane] += error[lane] * feedback[j];
            }
        }
        for (std::size_t i = 0; i < Format::group; ++i) {
            for (std::size_t j = 0; j < Format::group; ++j)
                within_[j][i] = factor_.feedback[(first + i) * columns_ + first + j];
        }
    }

    // Rounds the group with the scales given; the error of every lane.
    Lanes walk(const Lanes& scales, std::array<Lanes, Format::group>* quotients) {
        Lanes inverse;
        for (std::size_t lane = 0; lane < lanes; ++lane)
            inverse[lane] = 1.0f / scales[lane];
        Lanes loss{};
        for (std::size_t j = 0; j < Format::group; ++j) {
            Lanes value = base_[j];
            for (std::size_t i = 0; i < j; ++i) {
                const float feedback = within_[j][i];
                for (std::size_t lane = 0; lane < lanes; ++lane)
                    value[lane] += trial_[i][lane] * feedback;
            }
            const float importance = factor_.importance[first_ + j];
            for (std::size_t lane = 0; lane < lanes; ++lane) {
                const float quotient = Format::nearest(value[lane] * inverse[lane]);
                const float rounded = quotient * scales[lane];
                const float off = value[lane] - rounded;
                loss[lane] += importance * off * off;
                trial_[j][lane] = weights_[first_ + j][lane] - rounded;
                if (quotients != nullptr) (*quotients)[j][lane] = quotient;
            }
        }
        return loss;
    }

    // The number of the best candidate, a lane each.
    std::array<int, lanes> search() {
        std::array<int, lanes> first, last, best;
        Lanes largest{};
        Lanes smallest;
        for (const Lanes& column : base_) {
            for (std::size_t lane = 0; lane < lanes; ++lane)
                largest[lane] = std::max(largest[lane], std::fabs(column[lane]));
        }
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            last[lane] = std::clamp(format_.last(largest[lane]), Format::least, Format::most);
            first[lane] = std::clamp(format_.first(largest[lane]), Format::least, last[lane]);
            best[lane] = last[lane];
            smallest[lane] = std::numeric_limits<float>::infinity();
        }
        const auto attempt = [&](auto candidate) {
            std::array<int, lanes> numbers;
            Lanes scales;
            for (std::size_t lane = 0; lane < lanes; ++lane) {
                numbers[lane] = std::clamp(candidate(lane), first[lane], last[lane]);
                scales[lane] = format_.value(Format::scale(numbers[lane]));
            }
            const Lanes loss = walk(scales, nullptr);
            for (std::size_t lane = 0; lane < lanes; ++lane) {
                const bool better = loss[lane] < smallest[lane] ||
                                    (loss[lane] == smallest[lane] && numbers[lane] < best[lane]);
                if (better) {
                    smallest[lane] = loss[lane];
                    best[lane] = numbers[lane];
                }
            }
        };
        for (int i = 0; i < Format::coarse; ++i)
            attempt([&](std::size_t lane) { return last[lane] - i * Format::step; });
        for (int step = Format::step / 2; step > 0; step /= 2) {
            const std::array<int, lanes> centre = best;
            attempt([&](std::size_t lane) { return centre[lane] - step; });
            attempt([&](std::size_t lane) { return centre[lane] + step; });
        }
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            // Zeros, or so close to it that they become zeros.
            if (format_.last(largest[lane]) < Format::least) best[lane] = Format::of_zeros;
        }
        return best;
    }

    const Format& format_;
    const HessianFactor& factor_;
    std::size_t columns_;
    std::size_t rows_ = 0;
    std::size_t first_ = 0;
    std::vector<Lanes> weights_, errors_;  // [place]
    std::array<Lanes, Format::group> base_;
    std::array<Lanes, Format::group> trial_;
    std::array<std::array<float, Format::group>, Format::group> within_;
};

template <class Format, class StoreScale, class StoreValue>
void solve(const Format& format, Rows<const float> weights, const HessianFactor& factor,
           ThreadPool& pool, const StoreScale& store_scale, const StoreValue& store_value) {
    assert(weights.columns == factor.columns() && weights.columns % Format::group == 0);
    pool.parallel_for((weights.rows + lanes - 1) / lanes, [&](std::size_t tile, std::size_t) {
        const std::size_t first = tile * lanes;
        Tile<Format> rows(format, factor);
        rows.round(
            weights.slice(first, std::min(lanes, weights.rows - first)),
            [&](std::size_t lane, std::size_t group, auto scale) {
                store_scale(first + lane, group, scale);
            },
            [&](std::size_t lane, std::size_t column, float quotient) {
                store_value(first + lane, column, quotient);
            });
    });
}

}  // namespace

void solve_w4a16(Rows<const float> weights, const HessianFactor& factor, ThreadPool& pool,
                 std::span<std::uint32_t> words, std::span<BFloat16> scales) {
    const std::size_t k = weights.columns;
    assert(words.size() == weights.rows * k / 8 && scales.size() == weights.rows * k / 128);
    std::fill(words.begin(), words.end(), 0u);
    solve(
        Int4{}, weights, factor, pool,
        [&](std::size_t row, std::size_t group, BFloat16 scale) {
            scales[row * (k / 128) + group] = scale;
        },
        [&](std::size_t row, std::size_t column, float quotient) {
            const auto nibble = static_cast<std::uint32_t>(static_cast<int>(quotient) + 8);
            words[row * (k / 8) + column / 8] |= nibble << (4 * (column % 8));
        });
}

void solve_nvfp4(Rows<const float> weights, const HessianFactor& factor, float global_scale,
                 ThreadPool& pool, std::span<std::uint8_t> codes, std::span<Float8E4M3> scales) {
    const std::size_t k = weights.columns;
    assert(codes.size() == weights.rows * k / 2 && scales.size() == weights.rows * k / 16);
    std::fill(codes.begin(), codes.end(), std::uint8_t{0});
    solve(
        Fp4{global_scale}, weights, factor, pool,
        [&](std::size_t row, std::size_t group, Float8E4M3 scale) {
            scales[row * (k / 16) + group] = scale;
        },
        [&](std::size_t row, std::size_t column, float quotient) {
            const unsigned code = code_e2m1(quotient);
            codes[row * (k / 2) + column / 2] |=
                static_cast<std::uint8_t>(code << (4 * (column % 2)));
        });
}

}  // namespace percheron::tools
