// One warp's pass over its slices of packed weight tiles: a ring of asynchronous copies in shared
// memory, and the products of a block from there.  Warps never wait for each other here.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/cuda/packed_matrix.h"
#include "ops/cuda/row_parts.h"

namespace percheron::ops::cuda {

inline constexpr int largest_ring_depth = 8;

// A warp's ring of slots, filled and read in turn.  On sm_90 and later one lane starts a bulk copy
// a slot and everybody waits on the slot's barrier; before, every lane copies its pieces.
class WarpRing {
  public:
    // `slots`: depth * slot_bytes, 16-byte aligned; `barriers`: depth, this warp's own.  `once`:
    // nobody reads these bytes again soon, so that they need not push out of the second-level cache
    // what is needed again in every layer: rows, and above all the kernels' code.
    __device__ WarpRing(std::uint8_t* slots, std::uint64_t* barriers, int slot_bytes, int depth,
                        int lane, bool once)
        : slots_(static_cast<std::uint32_t>(__cvta_generic_to_shared(slots))),
          barriers_(static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers))),
          slot_bytes_(slot_bytes),
          depth_(depth),
          lane_(lane) {
#if __CUDA_ARCH__ >= 900
        if (once)
            asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
        else
            asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy_));
        if (lane == 0) {
            for (int i = 0; i < depth; ++i)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + 8 * i));
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        }
        __syncwarp();
#endif
    }

    // Starts filling slot `slot` with `parts` runs of `bytes` each.  What the slot held must have
    // been read by every lane (__syncwarp between).
    template <int parts>
    __device__ void fill(int slot, const std::uint8_t* const (&from)[parts], int bytes) {
        const std::uint32_t to = slots_ + slot * slot_bytes_;
#if __CUDA_ARCH__ >= 900
        if (lane_ == 0) {
            const std::uint32_t barrier = barriers_ + 8 * slot;
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                         "r"(parts * bytes)
                         : "memory");
#pragma unroll
            for (int part = 0; part < parts; ++part)
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                    ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to + part * bytes),
                    "l"(from[part]), "r"(bytes), "r"(barrier), "l"(policy_)
                    : "memory");
        }
#else
#pragma unroll
        for (int part = 0; part < parts; ++part) {
            for (int i = lane_ * 16; i < bytes; i += 512)
                asm volatile(
                    "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + part * bytes + i),
                    "l"(from[part] + i)
                    : "memory");
        }
        end_copy_group();
#endif
    }
    // Stands for a fill that has nothing left to copy.
    __device__ void fill_nothing() {
#if __CUDA_ARCH__ < 900
        end_copy_group();
#endif
    }

    // Waits until slot `slot`, in its `phase`-th (mod 2) use, is filled.
    __device__ void wait(int slot, int phase) {
#if __CUDA_ARCH__ >= 900
        wait_for_barrier(barriers_ + 8 * slot, phase);
#else
        switch (depth_) {
            case 2:
                wait_for_copies<1>();
                break;
            case 3:
                wait_for_copies<2>();
                break;
            case 4:
                wait_for_copies<3>();
                break;
            default:
                wait_for_copies<4>();  // at least five slots: all but the newest four
        }
        __syncwarp();
#endif
    }

  private:
    std::uint32_t slots_, barriers_;
    int slot_bytes_, depth_, lane_;
    std::uint64_t policy_ = 0;
};

// A constant that stays in a register, for instructions that take one immediate only.
template <std::uint32_t value>
__device__ inline std::uint32_t in_register() {
    std::uint32_t result;
    asm volatile("mov.u32 %0, %1;" : "=r"(result) : "n"(value));
    return result;
}

// What the unpacking of 4-bit codes keeps at hand (packed_matrix.h).
struct UnpackConstants {
    std::uint32_t low = in_register<0x000f000fu>();
    std::uint32_t high = in_register<0x00f000f0u>();
    std::uint32_t code = in_register<0x81c081c0u>();
    std::uint32_t scale = in_register<0x0ff00ff0u>();
};

// (a & b) | c in one instruction.
__device__ inline std::uint32_t and_or(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    std::uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

__device__ inline std::uint32_t rotated(std::uint32_t word, int bits) {
    return __funnelshift_r(word, word, bits);
}

// Two e4m3 values at bits 15..8 and 31..24 of `word`, as bf16 times 2^-120.
__device__ inline std::uint32_t small_fp8(std::uint32_t word) {
    return (word & 0x80008000u) | ((word >> 4) & 0x07f007f0u);
}

// The 4-bit codes of two steps, and an nvfp4 block's scales, as they were read for the first of
// them.
struct BlockCodes {
    uint4 pair;
    uint2 scales;
};

// The operand registers of one step (32 columns: two products) of a block.  `slot` is this lane's:
// the block's first byte plus 16 a lane.  Steps come in order: `codes` keeps what 4-bit formats
// read for the next ones.  w4a16 codes are subnormal numbers and still 8 too high, see
// few_row_gemm.h.
template <WeightFormat format>
__device__ inline void load_step(const std::uint8_t* slot, int step, int lane,
                                 const UnpackConstants& constants, BlockCodes& codes,
                                 std::uint32_t (&a)[2][4]) {
    if constexpr (format == WeightFormat::bf16) {
#pragma unroll
        for (int product = 0; product < 2; ++product) {
            const uint4 word = *reinterpret_cast<const uint4*>(slot + step * 1024 + product * 512);
            a[product][0] = word.x, a[product][1] = word.y;
            a[product][2] = word.z, a[product][3] = word.w;
        }
    } else if constexpr (format == WeightFormat::fp8_block) {
        const uint4 word = *reinterpret_cast<const uint4*>(slot + step * 512);
        const std::uint32_t words[4] = {word.x, word.y, word.z, word.w};
        constexpr std::uint32_t two_to_120 = 0x7b807b80u;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            a[w / 2][2 * (w % 2)] = multiply_bf16x2(small_fp8(words[w]), two_to_120);
            a[w / 2][2 * (w % 2) + 1] = multiply_bf16x2(small_fp8(words[w] << 8), two_to_120);
        }
    } else {
        if (step % 2 == 0) codes.pair = *reinterpret_cast<const uint4*>(slot + (step / 2) * 512);
        const std::uint32_t words[2] = {step % 2 == 0 ? codes.pair.x : codes.pair.z,
                                        step % 2 == 0 ? codes.pair.y : codes.pair.w};
        if constexpr (format == WeightFormat::w4a16) {
#pragma unroll
            for (int product = 0; product < 2; ++product) {
                const std::uint32_t word = words[product], upper = word >> 8;
                a[product][0] = word & constants.low;
                a[product][1] = word & constants.high;
                a[product][2] = upper & constants.low;
                a[product][3] = upper & constants.high;
            }
        } else {
            if (step == 0)
                codes.scales = *reinterpret_cast<const uint2*>(
                    slot + 1024 - lane * 16 + ((lane % 4) / 2) * 64 + (lane / 4) * 8);
            // Times 2^107: beside e2m1's 2^-126 a factor 2^-19 is left.
            constexpr std::uint32_t exponent = 0x70007000u;
            const std::uint32_t both = __byte_perm(step < 2 ? codes.scales.x : codes.scales.y, 0,
                                                   step % 2 == 0 ? 0x1010 : 0x3232);
            const std::uint32_t scale[2] = {and_or(both, constants.scale, exponent),
                                            and_or(rotated(both, 8), constants.scale, exponent)};
#pragma unroll
            for (int product = 0; product < 2; ++product) {
                const std::uint32_t word = words[product];
                const std::uint32_t value[4] = {
                    word & constants.code, (word << 4) & constants.code,
                    rotated(word, 6) & constants.code,
                    and_or(word << 6, 0x80c080c0u, (word >> 2) & 0x01000100u)};
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    a[product][r] = multiply_bf16x2(value[r], scale[r & 1]);
            }
        }
    }
}

// Formats whose scales are constant over a block keep the block's sum apart and add it times the
// scale: the products stay exact and the scale costs little.
constexpr bool scales_block_sums(WeightFormat format) {
    return format == WeightFormat::fp8_block || format == WeightFormat::w4a16;
}

// The block's scales of rows g and g + 8; `slot` is this lane's.
template <WeightFormat format>
__device__ inline float2 block_scales(const std::uint8_t* slot, int lane) {
    if constexpr (format == WeightFormat::fp8_block) {
        const float scale = *reinterpret_cast<const float*>(slot + 2048 - lane * 16);
        return {scale, scale};
    } else {
        const std::uint32_t pair =
            *reinterpret_cast<const std::uint32_t*>(slot + 1024 - lane * 16 + (lane / 4) * 4);
        return {bf16_low(pair), bf16_high(pair)};
    }
}

// bias += -8 x for every row of a w4a16 tile, of the columns of half a step: what its codes are too
// high.  Those of rows g stand for multiples of 2^-133, those of rows g + 8 for multiples of
// 2^-129.
__device__ inline void add_bias(float (&bias)[4], std::uint32_t x0, std::uint32_t x1) {
    constexpr std::uint32_t low = 0x80088008u, high = 0x80808080u;
    constexpr std::uint32_t minus_eight[4] = {low, high, low, high};
    multiply_add(bias, minus_eight, x0, x1);
}

__device__ inline uint4 raised(uint4 x) {
    constexpr std::uint32_t factor = 0x5f805f80u;  // raised_by, twice
    static_assert(raised_by == 0x1p64f);
    return make_uint4(multiply_bf16x2(x.x, factor), multiply_bf16x2(x.y, factor),
                      multiply_bf16x2(x.z, factor), multiply_bf16x2(x.w, factor));
}

template <int n_tiles>
__device__ inline void add(float (&sum)[n_tiles][4], const float (&other)[n_tiles][4]) {
#pragma unroll
    for (int t = 0; t < n_tiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            sum[t][i] += other[t][i];
    }
}

template <int n_tiles>
__device__ inline void add_scaled(float (&sum)[n_tiles][4], float (&block)[n_tiles][4],
                                  float2 scale) {
#pragma unroll
    for (int t = 0; t < n_tiles; ++t) {
        sum[t][0] = fmaf(block[t][0], scale.x, sum[t][0]);
        sum[t][1] = fmaf(block[t][1], scale.x, sum[t][1]);
        sum[t][2] = fmaf(block[t][2], scale.y, sum[t][2]);
        sum[t][3] = fmaf(block[t][3], scale.y, sum[t][3]);
    }
}

}  // namespace percheron::ops::cuda
