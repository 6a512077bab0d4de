#include "checkpoint/trellis.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "checkpoint/float16.h"

namespace percheron::checkpoint {
namespace {

constexpr std::size_t tile_side = 16;
constexpr std::size_t tile_codes = tile_side * tile_side;
constexpr std::size_t states = 65536;
constexpr std::size_t block_values = trellis_block * trellis_block;

float value_of(TrellisCodebook codebook, std::uint32_t state) {
    if (codebook == TrellisCodebook::mul1) {
        const std::uint32_t x = state * mul1_multiplier;
        const std::uint32_t sum = (x & 255) + ((x >> 8) & 255) + (x >> 16 & 255) + (x >> 24);
        const double factor = half_to_float(0x1eee);
        const double offset = half_to_float(0xc931);
        return rounded_to_half((1024 + sum) * factor + offset);
    }
    std::uint32_t x =
        codebook == TrellisCodebook::mcg ? state * mcg_multiplier : state * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return rounded_to_half(static_cast<double>(half_to_float(x & 0xffffu)) +
                           static_cast<double>(half_to_float(x >> 16)));
}

using Codebook = std::array<float, states>;

std::unique_ptr<const Codebook> make_codebook(TrellisCodebook codebook) {
    auto values = std::make_unique<Codebook>();
    for (std::uint32_t state = 0; state < states; ++state)
        (*values)[state] = value_of(codebook, state);
    return values;
}

const Codebook& values_of(TrellisCodebook codebook) {
    static const std::unique_ptr<const Codebook> tables[] = {
        make_codebook(TrellisCodebook::three_instructions), make_codebook(TrellisCodebook::mcg),
        make_codebook(TrellisCodebook::mul1)};
    return *tables[static_cast<std::size_t>(codebook)];
}

// Where code t ends in the ring, in bits.
constexpr std::size_t end_of_code(std::size_t t, unsigned half_bits) {
    return (t / 2) * half_bits + (t % 2 == 1 ? half_bits : half_bits / 2);
}

// Place of code t in a row-major tile.
constexpr std::size_t place_of_code(std::size_t t) {
    const std::size_t lane = t / 8;
    const std::size_t j = t % 8;
    const std::size_t row = 2 * (lane % 4) + j % 2 + 8 * (j / 2 % 2);
    const std::size_t column = lane / 4 + 8 * (j / 4);
    return row * tile_side + column;
}

// x[0], x[step], ... x[127 step] times H, for `lanes` neighbours of each at once.
void transform(double* x, std::size_t step, std::size_t lanes) {
    for (std::size_t half = 1; half < trellis_block; half *= 2) {
        for (std::size_t first = 0; first < trellis_block; first += 2 * half) {
            for (std::size_t i = first; i < first + half; ++i) {
                double* low = x + i * step;
                double* high = x + (i + half) * step;
                for (std::size_t lane = 0; lane < lanes; ++lane) {
                    const double sum = low[lane] + high[lane];
                    high[lane] = low[lane] - high[lane];
                    low[lane] = sum;
                }
            }
        }
    }
}

}  // namespace

unsigned trellis_half_bits(std::size_t tile_words, TrellisCodebook codebook) {
    if (tile_words % 8 != 0 || tile_words < 16 || tile_words > 128) return 0;
    const auto half_bits = static_cast<unsigned>(tile_words / 8);
    const bool half = half_bits % 2 == 1;
    if (half && (codebook != TrellisCodebook::mul1 || half_bits > 7)) return 0;
    return half_bits;
}

void decode_tile(std::span<const std::byte> tile, unsigned half_bits, TrellisCodebook codebook,
                 float* values) {
    const Codebook& table = values_of(codebook);
    // The ring, with its first word behind its last one.
    std::uint32_t ring[4 * 16 + 1];
    const std::size_t words = 4 * half_bits;
    std::memcpy(ring, tile.data(), words * sizeof(ring[0]));
    ring[words] = ring[0];
    const std::size_t bits = words * 32;
    for (std::size_t t = 0; t < tile_codes; ++t) {
        const std::size_t first = (end_of_code(t, half_bits) + bits - 16) % bits;
        const std::uint64_t pair =
            std::uint64_t{ring[first / 32]} << 32 | std::uint64_t{ring[first / 32 + 1]};
        values[place_of_code(t)] = table[(pair >> (48 - first % 32)) & 0xffffu];
    }
}

void decode_rows(const TrellisMatrix& matrix, std::size_t first, std::size_t rows, std::size_t k,
                 float* out) {
    const std::size_t tiles_across = matrix.output_scales.size() / tile_side;
    const std::size_t tile_bytes = 16 * matrix.half_bits;
    std::vector<double> block(block_values);
    float tile[tile_codes];
    constexpr std::size_t tiles = trellis_block / tile_side;
    for (std::size_t output = first / trellis_block * trellis_block; output < first + rows;
         output += trellis_block) {
        for (std::size_t input = 0; input < k; input += trellis_block) {
            for (std::size_t at = 0; at < tiles * tiles; ++at) {
                const std::size_t down = at / tiles;
                const std::size_t across = at % tiles;
                const std::size_t index =
                    (input / tile_side + down) * tiles_across + output / tile_side + across;
                decode_tile(matrix.trellis.subspan(index * tile_bytes, tile_bytes),
                            matrix.half_bits, matrix.codebook, tile);
                for (std::size_t i = 0; i < tile_codes; ++i) {
                    block[(down * tile_side + i / tile_side) * trellis_block + across * tile_side +
                          i % tile_side] = static_cast<double>(tile[i]);
                }
            }
            transform(block.data(), trellis_block, trellis_block);
            for (std::size_t i = 0; i < trellis_block; ++i)
                transform(block.data() + i * trellis_block, 1, 1);
            const std::size_t columns = std::min(trellis_block, k - input);
            const std::size_t from = std::max(first, output);
            const std::size_t to = std::min(first + rows, output + trellis_block);
            for (std::size_t o = from; o < to; ++o) {
                for (std::size_t i = 0; i < columns; ++i) {
                    const double scale = static_cast<double>(matrix.input_scales[input + i]) *
                                         static_cast<double>(matrix.output_scales[o]);
                    const double sum = block[i * trellis_block + o - output] / trellis_block;
                    out[(o - first) * k + input + i] = static_cast<float>(scale * sum);
                }
            }
        }
    }
}

}  // namespace percheron::checkpoint
