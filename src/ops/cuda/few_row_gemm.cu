#include "ops/cuda/few_row_gemm.h"

#include <algorithm>

#include "ops/cuda/device_error.h"
#include "ops/cuda/weight_stream.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = warps * 32;

struct Segment {
    const std::uint8_t* weight[2];  // gate and up, or the same matrix twice
    float scale[2];
    const __nv_bfloat16* x;
    void* y;
    int x_stride, y_stride;
    int n, k, blocks, tiles, slices;
    int first_unit;
    bool y_is_bf16;
};

struct Launch {
    Segment segments[largest_product_count];
    int segment_count;
    int units;
    int rows;
    float limit;
};

// How many bytes of weights a warp keeps under way decides how close the reads come to the memory's
// rate; the rest of the shared memory is the slices' sums.
template <WeightFormat format, int n_tiles, int m_tiles>
struct Shape {
    static constexpr int slot_bytes = block_bytes(format) * m_tiles;
    static constexpr int blocks_per_multiprocessor = n_tiles >= 4 || slot_bytes > 4100 ? 1 : 2;
    static constexpr int sums_bytes = warps * m_tiles * n_tiles * 512;
    static constexpr int sum_buffers = n_tiles >= 4 ? 1 : 2;
    static constexpr int ring_budget =
        (blocks_per_multiprocessor == 2 ? 108 * 1024 : 208 * 1024) - sum_buffers * sums_bytes;
    static constexpr int depth_that_fits = ring_budget / (warps * slot_bytes);
    static constexpr int depth = depth_that_fits > 8 ? 8 : depth_that_fits;
    static constexpr int shared_bytes = warps * depth * slot_bytes + sum_buffers * sums_bytes;
    static_assert(depth >= 2);
};

// Walks the blocks of this warp's slices, unit after unit: the copying side runs `depth` blocks
// ahead of the computing side.
template <bool swiglu, int m_tiles>
struct UnitWalk {
    int segment = 0;
    int slice = 0, group = 0;  // of this warp in the unit
    int first_block = 0, end_block = 0;
    int tile[m_tiles];

    __device__ void enter(const Launch& launch, int unit, int warp) {
        while (segment + 1 < launch.segment_count &&
               unit >= launch.segments[segment + 1].first_unit)
            ++segment;
        const Segment& s = launch.segments[segment];
        slice = warp % s.slices;
        group = warp / s.slices;
        first_block = slice * s.blocks / s.slices;
        end_block = (slice + 1) * s.blocks / s.slices;
        const int local = (unit - s.first_unit) * (warps / s.slices) + group;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
            // Tiles past the end repeat the last one; their results are not stored.
            tile[m] = min(swiglu ? local : local * m_tiles + m, s.tiles - 1);
        }
    }
};

template <WeightFormat format, int n_tiles, int m_tiles, bool swiglu>
__global__ void __launch_bounds__(threads, Shape<format, n_tiles,
                                                 m_tiles>::blocks_per_multiprocessor)
    few_row_kernel(const __grid_constant__ Launch launch) {
    using Sizes = Shape<format, n_tiles, m_tiles>;
    constexpr int block_size = block_bytes(format);
    // Steps of x held in registers ahead of use.
    constexpr int ahead = n_tiles == 1 ? 4 : n_tiles == 2 ? 2 : 1;

    extern __shared__ __align__(16) std::uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    std::uint8_t* const ring = shared + warp * Sizes::depth * Sizes::slot_bytes;
    float* const sums =
        reinterpret_cast<float*>(shared + warps * Sizes::depth * Sizes::slot_bytes);

    // ---- the copying side
    UnitWalk<swiglu, m_tiles> copying;
    int copy_unit = blockIdx.x, copy_block_index = 0, copy_slot = 0;
    const std::uint8_t* copy_base[m_tiles];
    const auto enter_copy_unit = [&] {
        // A slice may be empty (fewer blocks than slices never happens: slice_count sees to it).
        copying.enter(launch, copy_unit, warp);
        const Segment& s = launch.segments[copying.segment];
        copy_block_index = copying.first_block;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
            copy_base[m] = s.weight[swiglu ? m : 0] +
                           static_cast<std::size_t>(copying.tile[m]) * s.blocks * block_size;
    };
    const auto copy_next = [&] {
        if (copy_unit < launch.units) {
#pragma unroll
            for (int m = 0; m < m_tiles; ++m)
                copy_block<format>(ring + copy_slot * Sizes::slot_bytes + m * block_size,
                                   copy_base[m] +
                                       static_cast<std::size_t>(copy_block_index) * block_size,
                                   lane);
            if (++copy_block_index == copying.end_block) {
                copy_unit += gridDim.x;
                if (copy_unit < launch.units) enter_copy_unit();
            }
            if (++copy_slot == Sizes::depth) copy_slot = 0;
        }
        end_copy_group();
    };
    if (copy_unit < launch.units) enter_copy_unit();
#pragma unroll 1
    for (int i = 0; i < Sizes::depth - 1; ++i)
        copy_next();

    wait_for_previous_kernel();
    let_next_kernel_start();

    // ---- the computing side
    UnitWalk<swiglu, m_tiles> walk;
    int slot_index = 0, parity = 0;
    const int first_row = blockIdx.y * 8 * n_tiles;
    for (int unit = blockIdx.x; unit < launch.units; unit += gridDim.x) {
        walk.enter(launch, unit, warp);
        const Segment& s = launch.segments[walk.segment];
        const auto load_x = [&](int column, uint4 (&x)[n_tiles]) {
            const int at = column + (lane % 4) * 8;
#pragma unroll
            for (int t = 0; t < n_tiles; ++t) {
                const int row = first_row + t * 8 + lane / 4;
                x[t] = make_uint4(0, 0, 0, 0);
                if (row < launch.rows && at < s.k)
                    x[t] = load_16(s.x + static_cast<std::size_t>(row) * s.x_stride + at);
            }
        };
        float sum[m_tiles][n_tiles][4] = {};
        uint4 x[ahead][n_tiles];
#pragma unroll
        for (int j = 0; j < ahead; ++j)
            load_x(walk.first_block * block_columns + j * 32, x[j]);

#pragma unroll 1
        for (int block = walk.first_block; block < walk.end_block; ++block) {
            wait_for_copies<Sizes::depth - 2>();
            __syncwarp();
            copy_next();
            const std::uint8_t* const slot = ring + slot_index * Sizes::slot_bytes;
            if (++slot_index == Sizes::depth) slot_index = 0;

            float block_sum[m_tiles][n_tiles][4] = {};
            auto& target = scales_block_sums(format) ? block_sum : sum;
#pragma unroll
            for (int part = 0; part < 4 / ahead; ++part) {
                uint4 next[ahead][n_tiles];
                const int column = block * block_columns + (part + 1) * ahead * 32;
                if (part + 1 < 4 / ahead || block + 1 < walk.end_block) {
#pragma unroll
                    for (int j = 0; j < ahead; ++j)
                        load_x(column + j * 32, next[j]);
                }
#pragma unroll
                for (int j = 0; j < ahead; ++j) {
#pragma unroll
                    for (int m = 0; m < m_tiles; ++m) {
                        std::uint32_t a[2][4];
                        load_step<format>(slot + m * block_size, part * ahead + j, lane, a);
#pragma unroll
                        for (int t = 0; t < n_tiles; ++t)
                            multiply_add(target[m][t], a[0], x[j][t].x, x[j][t].y);
#pragma unroll
                        for (int t = 0; t < n_tiles; ++t)
                            multiply_add(target[m][t], a[1], x[j][t].z, x[j][t].w);
                    }
                }
#pragma unroll
                for (int j = 0; j < ahead; ++j) {
#pragma unroll
                    for (int t = 0; t < n_tiles; ++t)
                        x[j][t] = next[j][t];
                }
            }
            if constexpr (scales_block_sums(format)) {
#pragma unroll
                for (int m = 0; m < m_tiles; ++m)
                    add_scaled(sum[m], block_sum[m],
                               block_scales<format>(slot + m * block_size, lane));
            }
        }

        // ---- the slices' sums, in order
        float* const buffer = sums + parity * (Sizes::sums_bytes / 4);
        if (Sizes::sum_buffers == 1) __syncthreads();
        parity = (parity + 1) % Sizes::sum_buffers;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int t = 0; t < n_tiles; ++t)
                *reinterpret_cast<float4*>(buffer + ((warp * m_tiles + m) * n_tiles + t) * 128 +
                                           lane * 4) =
                    make_float4(sum[m][t][0], sum[m][t][1], sum[m][t][2], sum[m][t][3]);
        }
        __syncthreads();
        const int groups = warps / s.slices;
        constexpr int outputs = (swiglu ? 1 : m_tiles) * n_tiles * 128;
        for (int e = threadIdx.x; e < groups * outputs; e += threads) {
            const int group = e / outputs, inside = e % outputs;
            const int m = inside / (n_tiles * 128), t = inside / 128 % n_tiles;
            const int element = inside % 128;
            const int of_lane = element / 4, i = element % 4;
            const auto total = [&](int of_m) {
                float result = 0.0f;
                for (int slice = 0; slice < s.slices; ++slice)
                    result += buffer[(((group * s.slices + slice) * m_tiles + of_m) * n_tiles + t) *
                                         128 +
                                     element];
                return result * s.scale[swiglu ? of_m : 0];
            };
            const int local = (unit - s.first_unit) * groups + group;
            const int tile = swiglu ? local : local * m_tiles + m;
            const int out = tile * tile_rows + of_lane / 4 + 8 * (i / 2);
            const int row = first_row + t * 8 + (of_lane % 4) * 2 + (i & 1);
            if (out >= s.n || row >= launch.rows) continue;
            const std::size_t at = static_cast<std::size_t>(row) * s.y_stride + out;
            if constexpr (swiglu) {
                const float gate = fminf(total(0), launch.limit);
                const float up = fminf(fmaxf(total(1), -launch.limit), launch.limit);
                static_cast<__nv_bfloat16*>(s.y)[at] =
                    __float2bfloat16_rn(gate * sigmoid(gate) * up);
            } else if (s.y_is_bf16) {
                static_cast<__nv_bfloat16*>(s.y)[at] = __float2bfloat16_rn(total(m));
            } else {
                static_cast<float*>(s.y)[at] = total(m);
            }
        }
    }
}

template <WeightFormat format, int n_tiles, int m_tiles, bool swiglu>
Status launch_kernel(const Launch& launch, const LaunchContext& context) {
    using Sizes = Shape<format, n_tiles, m_tiles>;
    const auto kernel = few_row_kernel<format, n_tiles, m_tiles, swiglu>;
    static const cudaError_t configured = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::shared_bytes);
    PERCHERON_TRY(check(configured, "reserving shared memory for the few-row product"));
    const int resident = context.multiprocessors * Sizes::blocks_per_multiprocessor;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(std::min(launch.units, resident), (launch.rows + 8 * n_tiles - 1) /
                                                                (8 * n_tiles));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = Sizes::shared_bytes;
    config.stream = context.stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = context.dependent ? 1 : 0;
    return check(cudaLaunchKernelEx(&config, kernel, launch), "launching the few-row product");
}

template <WeightFormat format>
Status choose_kernel(Launch& launch, bool swiglu, const LaunchContext& context) {
    // More rows share a read of the weights, and more tiles share a read of the rows.  Neither
    // changes a bit of the result.
    const int groups = (launch.rows + 7) / 8;
    const int m_tiles = groups > 2 ? 2 : 1;
    int units = 0;
    for (int i = 0; i < launch.segment_count; ++i) {
        Segment& s = launch.segments[i];
        s.first_unit = units;
        const int per_unit = (warps / s.slices) * (swiglu ? 1 : m_tiles);
        units += (s.tiles + per_unit - 1) / per_unit;
    }
    launch.units = units;
    if (swiglu) {
        if (groups <= 1) return launch_kernel<format, 1, 2, true>(launch, context);
        if (groups <= 2) return launch_kernel<format, 2, 2, true>(launch, context);
        if (groups <= 4) return launch_kernel<format, 4, 2, true>(launch, context);
        return launch_kernel<format, 8, 2, true>(launch, context);
    }
    if (groups <= 1) return launch_kernel<format, 1, 1, false>(launch, context);
    if (groups <= 2) return launch_kernel<format, 2, 1, false>(launch, context);
    if (groups <= 4) return launch_kernel<format, 4, 2, false>(launch, context);
    return launch_kernel<format, 8, 2, false>(launch, context);
}

}  // namespace

Status few_row_gemm(std::span<const FewRowProduct> products, int rows, float swiglu_limit,
                    const LaunchContext& context) {
    if (products.empty() || products.size() > largest_product_count || rows < 1)
        return Error(ErrorCode::invalid_argument,
                     "a few-row product takes 1 to 8 matrices and at least one row");
    const WeightFormat format = products[0].weight.format;
    const bool swiglu = products[0].up.data != nullptr;
    Launch launch = {};
    launch.segment_count = static_cast<int>(products.size());
    launch.rows = rows;
    launch.limit = swiglu_limit;
    for (std::size_t i = 0; i < products.size(); ++i) {
        const FewRowProduct& product = products[i];
        const PackedMatrix& weight = product.weight;
        if (weight.format != format || (product.up.data != nullptr) != swiglu)
            return Error(ErrorCode::invalid_argument,
                         "the matrices of one few-row product must share format and kind");
        if (swiglu && (product.up.format != format || product.up.n != weight.n ||
                       product.up.k != weight.k))
            return Error(ErrorCode::invalid_argument, "gate and up must share format and shape");
        if (weight.k % 8 != 0 || product.x_stride % 8 != 0)
            return Error(ErrorCode::invalid_argument,
                         "a few-row product needs k and the stride of x in multiples of 8");
        Segment& s = launch.segments[i];
        s.weight[0] = weight.data;
        s.weight[1] = swiglu ? product.up.data : weight.data;
        s.scale[0] = weight.global_scale;
        s.scale[1] = swiglu ? product.up.global_scale : weight.global_scale;
        s.x = product.x;
        s.x_stride = product.x_stride;
        s.y = product.y;
        s.y_stride = product.y_stride;
        s.n = weight.n;
        s.k = weight.k;
        s.blocks = weight.blocks();
        s.tiles = weight.tiles();
        s.slices = slice_count(weight.k);
        s.y_is_bf16 = product.y_is_bf16;
    }
    switch (format) {
        case WeightFormat::bf16:
            return choose_kernel<WeightFormat::bf16>(launch, swiglu, context);
        case WeightFormat::fp8_block:
            return choose_kernel<WeightFormat::fp8_block>(launch, swiglu, context);
        case WeightFormat::w4a16:
            return choose_kernel<WeightFormat::w4a16>(launch, swiglu, context);
        case WeightFormat::nvfp4:
            return choose_kernel<WeightFormat::nvfp4>(launch, swiglu, context);
        case WeightFormat::f32:
            break;
    }
    return Error(ErrorCode::unsupported, "the few-row product has no kernel for this format");
}

}  // namespace percheron::ops::cuda
