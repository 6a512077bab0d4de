// How a weight matrix lies in device memory for the decode class.
//
// W[n, k] is cut into tiles of 16 rows (the M of mma.m16n8k16) and blocks of 128 columns; rows and
// columns beyond n and k are zero.  A block's bytes are in the order in which the lanes of a warp
// need them as tensor-core operands, so that every load is 16 contiguous bytes a lane and a warp
// reads 512 contiguous bytes; its scales follow it.  One pass streams [tile][block] in order.
//
// Inside a 32-column step of a block, lane l = 4 g + q holds columns 8 q .. 8 q + 7 of rows g and
// g + 8: the first product takes columns 8 q + {0, 1, 2, 3}, the second 8 q + {4, 5, 6, 7}.  The
// order of k inside a product is free as long as weights and inputs agree; this one makes the
// inputs' operand 16 contiguous bytes of a row.
//
//   format      bytes a block   lay-out
//   bf16        4096            [step 4][product 2][lane 32][8 bf16]
//   fp8_block   2048 + 16       [step 4][lane 32][16 e4m3]; scale fp32 (of the 128x128 block) and
//                               12 bytes of padding
//   w4a16       1024 + 32       [step pair 2][lane 32][step 2][product 2][8 nibbles];
//                               scales [g 8][row g, row g + 8] bf16
//   nvfp4       1024 + 128      [step pair 2][lane 32][step 2][product 2][8 nibbles]; scales [q /
//   2][g 8][step 4], 16 bits each, see below
//
// A w4a16 word holds codes r = 0..3 of each 16-bit half h at bits 16 h + 4 r.  The lower eight bits
// of a half are a bf16's fraction and the lowest bit of its exponent, whose numbers are subnormal
// or as far apart as those: multiples of 2^-133.  So code 0, alone in its half, is the number code
// * 2^-133, code 1 is code * 2^-129, and codes 2 and 3 are the same of a word shifted right by 8.
//
// An nvfp4 word holds codes r = 0..3 (s e1 e0 m) of each half where they have s at bit 15 and e1 e0
// m at bits 8..6 of their half: the first as it is, the second shifted left by 4, the third rotated
// right by 6; of the fourth s, e0 and m shifted left by 6 and e1 right by 2.  Left shifts, which
// are products, leave the integer units alone.  Such a half is the bf16 code * 2^-126.  Its scales
// are unsigned (a negative one has turned its codes' signs, zero has made them zero) and have 5
// bits of exponent with a bias of 10 and 3 of fraction, none subnormal: that of row g at bits 4..11
// of 16, that of row g + 8 there when those are rotated by 8.
//
// NaN codes of e4m3 are not representable here (they would read as 480): whoever loads a matrix
// refuses them before packing.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "core/status.h"
#include "ops/weight_matrix.h"

namespace percheron::ops::cuda {

inline constexpr int tile_rows = 16;
inline constexpr int block_columns = 128;

constexpr int block_data_bytes(WeightFormat format) {
    return format == WeightFormat::bf16 ? 4096 : format == WeightFormat::fp8_block ? 2048 : 1024;
}
constexpr int block_scale_bytes(WeightFormat format) {
    return format == WeightFormat::bf16        ? 0
           : format == WeightFormat::fp8_block ? 16
           : format == WeightFormat::w4a16     ? 32
                                               : 128;
}
constexpr int block_bytes(WeightFormat format) {
    return block_data_bytes(format) + block_scale_bytes(format);
}

struct PackedMatrix {
    WeightFormat format = WeightFormat::bf16;
    int n = 0, k = 0;
    const std::uint8_t* data = nullptr;  // device memory, 16-byte aligned
    float global_scale = 1.0f;           // nvfp4: every product is multiplied by it; else 1

    int tiles() const { return (n + tile_rows - 1) / tile_rows; }
    int blocks() const { return (k + block_columns - 1) / block_columns; }
};

constexpr std::size_t packed_bytes(WeightFormat format, std::size_t n, std::size_t k) {
    return (n + tile_rows - 1) / tile_rows * ((k + block_columns - 1) / block_columns) *
           static_cast<std::size_t>(block_bytes(format));
}

// What a packed matrix's products are multiplied by: the kernel's nvfp4 scales carry 2^-19, so that
// they fit bf16 beside e2m1's 2^126.
inline float packed_global_scale(const WeightMatrix& stored) {
    return stored.format == WeightFormat::nvfp4 ? stored.global_scale * 0x1p19f : 1.0f;
}

// Packs `stored`, whose data and scales are device memory in the stored lay-out, into `packed`
// (packed_bytes() long, device memory, 16-byte aligned).  Asynchronous on `stream`.
// Errors: unsupported (format f32), internal (the launch failed).
Result<PackedMatrix> pack_matrix(const WeightMatrix& stored, void* packed, cudaStream_t stream);

}  // namespace percheron::ops::cuda
