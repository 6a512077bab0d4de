#include "ops/cuda/device_error.h"
#include "ops/cuda/packed_matrix.h"

namespace percheron::ops::cuda {
namespace {

struct Stored {
    const void* data;
    const void* scales;
    int n, k;
};

// Column of element `i` (0..3) of product `product` of a lane's quarter q in a step.
__device__ int column_of(int block, int step, int product, int q, int i) {
    return block * block_columns + step * 32 + q * 8 + product * 4 + i;
}

// The eight elements of one lane of one product in the order of the operand's registers:
// register r holds row g + 8 (r & 1), columns 2 (r / 2) + {0, 1} of the lane's four.
struct OperandElement {
    int row, column;
};
__device__ OperandElement element_of(int tile, int block, int step, int product, int lane, int e) {
    const int r = e / 2;
    return {tile * tile_rows + lane / 4 + 8 * (r & 1),
            column_of(block, step, product, lane % 4, (r / 2) * 2 + (e & 1))};
}

__device__ std::uint32_t bf16_at(const Stored& m, OperandElement at) {
    if (at.row >= m.n || at.column >= m.k) return 0;
    return static_cast<const std::uint16_t*>(
        m.data)[static_cast<std::size_t>(at.row) * m.k + at.column];
}

__device__ std::uint32_t fp8_at(const Stored& m, OperandElement at) {
    if (at.row >= m.n || at.column >= m.k) return 0;
    return static_cast<const std::uint8_t*>(
        m.data)[static_cast<std::size_t>(at.row) * m.k + at.column];
}

template <bool is_int4>
__device__ std::uint32_t nibble_at(const Stored& m, OperandElement at) {
    if (at.row >= m.n || at.column >= m.k) return is_int4 ? 8 : 0;
    const std::size_t index = static_cast<std::size_t>(at.row) * m.k + at.column;
    return (static_cast<const std::uint8_t*>(m.data)[index / 2] >> (4 * (index & 1))) & 15u;
}

// A scale of nvfp4 as it is stored.
__device__ std::uint32_t scale_at(const Stored& m, int row, int group) {
    if (row >= m.n || group * 16 >= m.k) return 0;
    return static_cast<const std::uint8_t*>(
        m.scales)[static_cast<std::size_t>(row) * (m.k / 16) + group];
}

// The code that an unsigned scale other than zero makes of it.
__device__ std::uint32_t signed_by_scale(const Stored& m, OperandElement at, std::uint32_t code) {
    const std::uint32_t scale = scale_at(m, at.row, at.column / 16);
    return (scale & 0x7fu) == 0 ? 0u : code ^ (scale >> 7 << 3);
}

// An e2m1 code of operand register r and 16-bit half `half` at its place in a word.
__device__ std::uint32_t placed_e2m1(std::uint32_t code, int r, int half) {
    constexpr int field[4] = {6, 7, 8, 15};
    constexpr int away[4][4] = {{0, 0, 0, 0}, {-4, -4, -4, -4}, {6, 6, 6, 6}, {-6, -6, 2, -6}};
    std::uint32_t word = 0;
    for (int bit = 0; bit < 4; ++bit)
        word |= (code >> bit & 1u) << ((16 * half + field[bit] + away[r][bit]) % 32);
    return word;
}

// An e4m3 scale without its sign, as e5m3 with a bias of 10 and no subnormal numbers.
__device__ std::uint32_t wide_scale(std::uint32_t scale) {
    const std::uint32_t exponent = scale >> 3 & 15u, fraction = scale & 7u;
    if (exponent > 0) return (exponent + 3) << 3 | fraction;
    if (fraction == 0) return 0;
    const std::uint32_t leading = 31u - __clz(fraction);
    return (leading + 1) << 3 | (fraction << (3 - leading) & 7u);
}

// One thread writes what one lane reads of one step.
__global__ void pack_bf16(Stored m, int blocks, std::size_t count, uint4* out) {
    const std::size_t index = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    if (index >= count) return;
    const int lane = index % 32, product = index / 32 % 2, step = index / 64 % 4;
    const std::size_t where = index / 256;
    const int block = where % blocks, tile = where / blocks;
    std::uint32_t word[4];
    for (int r = 0; r < 4; ++r) {
        word[r] = bf16_at(m, element_of(tile, block, step, product, lane, 2 * r)) |
                  bf16_at(m, element_of(tile, block, step, product, lane, 2 * r + 1)) << 16;
    }
    out[index] = make_uint4(word[0], word[1], word[2], word[3]);
}

__global__ void pack_fp8(Stored m, int blocks, std::size_t count, std::uint8_t* out) {
    const std::size_t index = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    if (index >= count) return;
    const int lane = index % 32, step = index / 32 % 4;
    const std::size_t where = index / 128;
    const int block = where % blocks, tile = where / blocks;
    std::uint32_t word[4];
    for (int w = 0; w < 4; ++w) {
        // Two operand registers a word: the first in bytes 1 and 3, the second in bytes 0 and 2.
        const int product = w / 2, first = 4 * (w % 2);
        const auto at = [&](int e) {
            return fp8_at(m, element_of(tile, block, step, product, lane, first + e));
        };
        word[w] = at(2) | at(0) << 8 | at(3) << 16 | at(1) << 24;
    }
    std::uint8_t* const home =
        out + where * block_bytes(WeightFormat::fp8_block) + step * 512 + lane * 16;
    *reinterpret_cast<uint4*>(home) = make_uint4(word[0], word[1], word[2], word[3]);
    if (step == 0 && lane == 0) {
        const float scale =
            static_cast<const float*>(m.scales)[(tile * tile_rows / 128) * blocks + block];
        float* const scales = reinterpret_cast<float*>(home + 2048);
        for (int i = 0; i < 4; ++i)
            scales[i] = scale;
    }
}

template <bool is_int4>
__global__ void pack_nibbles(Stored m, int blocks, std::size_t count, std::uint8_t* out) {
    const std::size_t index = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    if (index >= count) return;
    const int lane = index % 32, pair = index / 32 % 2;
    const std::size_t where = index / 64;
    const int block = where % blocks, tile = where / blocks;
    const int g = lane / 4, q = lane % 4;
    std::uint32_t word[4];
    for (int w = 0; w < 4; ++w) {
        const int step = 2 * pair + w / 2, product = w % 2;
        word[w] = 0;
        for (int e = 0; e < 8; ++e) {
            const OperandElement at = element_of(tile, block, step, product, lane, e);
            const std::uint32_t code = nibble_at<is_int4>(m, at);
            const int r = e / 2, half = e & 1;
            word[w] |= is_int4 ? code << (16 * half + 4 * r)
                               : placed_e2m1(signed_by_scale(m, at, code), r, half);
        }
    }
    constexpr auto format = is_int4 ? WeightFormat::w4a16 : WeightFormat::nvfp4;
    std::uint8_t* const home = out + where * block_bytes(format);
    *reinterpret_cast<uint4*>(home + pair * 512 + lane * 16) =
        make_uint4(word[0], word[1], word[2], word[3]);
    std::uint8_t* const scales = home + block_data_bytes(format);
    if (is_int4) {
        if (pair == 0 && q < 2) {
            const int row = tile * tile_rows + g + 8 * q;
            reinterpret_cast<std::uint16_t*>(scales)[2 * g + q] =
                row < m.n ? static_cast<const std::uint16_t*>(
                                m.scales)[static_cast<std::size_t>(row) * blocks + block]
                          : std::uint16_t{0};
        }
    } else if (q < 2) {
        // q names the half of a step: scales of 16 columns each.
        for (int step = 2 * pair; step < 2 * pair + 2; ++step) {
            const int row = tile * tile_rows + g, group = block * 8 + 2 * step + q;
            const std::uint32_t low = wide_scale(scale_at(m, row, group));
            const std::uint32_t high = wide_scale(scale_at(m, row + 8, group));
            reinterpret_cast<std::uint16_t*>(scales)[(q * 8 + g) * 4 + step] =
                static_cast<std::uint16_t>(low << 4 | (high & 15u) << 12 | high >> 4);
        }
    }
}

}  // namespace

Result<PackedMatrix> pack_matrix(const WeightMatrix& stored, void* packed, cudaStream_t stream) {
    PackedMatrix result;
    result.format = stored.format;
    result.n = static_cast<int>(stored.n);
    result.k = static_cast<int>(stored.k);
    result.data = static_cast<const std::uint8_t*>(packed);
    result.global_scale = packed_global_scale(stored);
    const Stored source{stored.data, stored.scales, result.n, result.k};
    const int blocks = result.blocks();
    const std::size_t places = static_cast<std::size_t>(result.tiles()) * blocks;
    const auto grid = [](std::size_t count) { return static_cast<unsigned>((count + 255) / 256); };
    auto* const bytes = static_cast<std::uint8_t*>(packed);
    switch (stored.format) {
        case WeightFormat::bf16:
            pack_bf16<<<grid(places * 256), 256, 0, stream>>>(source, blocks, places * 256,
                                                              static_cast<uint4*>(packed));
            break;
        case WeightFormat::fp8_block:
            pack_fp8<<<grid(places * 128), 256, 0, stream>>>(source, blocks, places * 128, bytes);
            break;
        case WeightFormat::w4a16:
            if (stored.k % 128 != 0)
                return Error(ErrorCode::unsupported, "w4a16 needs k to be a multiple of 128");
            pack_nibbles<true>
                <<<grid(places * 64), 256, 0, stream>>>(source, blocks, places * 64, bytes);
            break;
        case WeightFormat::nvfp4:
            if (stored.k % 16 != 0)
                return Error(ErrorCode::unsupported, "nvfp4 needs k to be a multiple of 16");
            pack_nibbles<false>
                <<<grid(places * 64), 256, 0, stream>>>(source, blocks, places * 64, bytes);
            break;
        case WeightFormat::f32:
            return Error(ErrorCode::unsupported,
                         "the CUDA decode kernels take bf16, fp8, w4a16 and nvfp4 weights; store "
                         "this fp32 matrix as bf16");
    }
    PERCHERON_TRY(check(cudaGetLastError(), "packing a weight matrix"));
    return result;
}

}  // namespace percheron::ops::cuda
