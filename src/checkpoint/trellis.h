// EXL3: a matrix as paths through a trellis, in a rotated basis.
//
// W [n, k] is stored transposed, padded with zeros to k' and n', the next multiples of 128, rotated
// and in tiles.  With Q [k', n'] the values of the codes, u [k'] and v [n'] the scales of inputs
// and outputs, and H the 128 x 128 Hadamard matrix in Sylvester's order, H[a][b] = (-1)^popcount(a
// & b),
//
//   W[o][i] = u[i] v[o] / 128 * sum over a and b of H[i % 128][a] Q[i - i % 128 + a][o - o % 128 +
//   b]
//                                                   H[b][o % 128]
//
// Q's values are binary16 of magnitude below 8, so the sum is exact in double whatever its order;
// its product with u v is rounded to double, then to float.
//
//   STEM.trellis  I16 [k'/16, n'/16, 16 b]: tiles of 256 codes of b bits; b is 1 to 8, or 1.5, 2.5
//   or
//                 3.5, which only the codebook mul1 has
//   STEM.suh      F16 [k'], or STEM.su I16 [k'/16]: signs, bit i of a word set where element i is
//   -1 STEM.svh      F16 [n'], or STEM.sv I16 [n'/16] STEM.mcg      I32, at most one of the two:
//   which codebook; its value is the multiplier below STEM.mul1     I32
//
// A tile's words, taken as little-endian 32-bit numbers, are a ring of 256 b bits, the highest bit
// of a word first.  The state of code t is the 16 bits that end where code t ends, at bit (t + 1)
// b; of half bits, the even codes have one bit less than the odd ones.  Code t = 8 l + j of a tile
// lies in row 2 (l % 4) + j % 2 + 8 (j / 2 % 2) and column l / 4 + 8 (j / 4).
//
// A state s becomes a value by 32-bit arithmetic:
//   3inst   x = 89226354 s + 64248484
//   mcg     x = 0xCBAC1FED s              both: y = (x & 0x8fff8fff) ^ 0x3b603b60, the sum of the
//   two
//                                         binary16 in y, rounded to binary16
//   mul1    x = 0x83DCD12D s              the sum of x's four bytes, less 510, times about 1/147.7:
//   with
//                                         m = 0x1eee and c = 0xc931 as binary16, (1024 + sum) m + c
//                                         rounded once to binary16
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace percheron::checkpoint {

enum class TrellisCodebook : std::uint8_t { three_instructions, mcg, mul1 };

inline constexpr std::uint32_t mcg_multiplier = 0xCBAC1FEDu;
inline constexpr std::uint32_t mul1_multiplier = 0x83DCD12Du;
// Side of the rotated blocks, and what a matrix is padded to.
inline constexpr std::size_t trellis_block = 128;

struct TrellisMatrix {
    std::span<const std::byte> trellis;  // the stored tensor, at any address
    unsigned half_bits = 0;              // twice the bits of a code: 2 to 16
    TrellisCodebook codebook = TrellisCodebook::three_instructions;
    std::vector<float> input_scales;   // u
    std::vector<float> output_scales;  // v
};

// Whether tiles of so many 16-bit words exist with this codebook; if so twice the bits of a code,
// else 0.
unsigned trellis_half_bits(std::size_t tile_words, TrellisCodebook codebook);

// The 256 values of a tile, row-major; `tile` are its stored bytes.
void decode_tile(std::span<const std::byte> tile, unsigned half_bits, TrellisCodebook codebook,
                 float* values);

// Rows [first, first + rows) of W, the first k columns of each, to out[rows][k].
void decode_rows(const TrellisMatrix& matrix, std::size_t first, std::size_t rows, std::size_t k,
                 float* out);

}  // namespace percheron::checkpoint
