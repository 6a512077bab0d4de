#include <algorithm>

#include "ops/cuda/few_row_gemm.h"
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
    int n, tiles;
    int first_unit;
    bool y_is_bf16;
};

struct Launch {
    Segment segments[largest_product_count];
    int segment_count;
    int units;
    int rows;
    int blocks;       // of k
    int slices_log2;  // slices of k; the warps of a block are slices x groups of tiles
    float limit;
};

// How many bytes of weights a warp keeps under way decides how close the reads come to the memory's
// rate; the rest of the shared memory is the slices' sums.
template <WeightFormat format, int n_tiles, int m_tiles>
struct Shape {
    static constexpr int slot_bytes = block_bytes(format) * m_tiles;
    static constexpr int blocks_per_multiprocessor = n_tiles >= 4 || slot_bytes > 4200   ? 1
                                                     : n_tiles == 1 && slot_bytes < 2400 ? 3
                                                                                         : 2;
    static constexpr int sums_bytes = warps * m_tiles * n_tiles * 512;
    static constexpr int sum_buffers = n_tiles >= 4 ? 1 : 2;
    static constexpr int ring_budget =
        216 * 1024 / blocks_per_multiprocessor - sum_buffers * sums_bytes;
    static constexpr int depth_that_fits = ring_budget / (warps * slot_bytes);
    static constexpr int depth = depth_that_fits > 8 ? 8 : depth_that_fits;
    static constexpr int shared_bytes = warps * depth * slot_bytes + sum_buffers * sums_bytes;
    static_assert(depth >= 2);
};

// The segment of a unit; units only grow, so the search goes on from the last one.
__device__ inline int segment_of(const Launch& launch, int segment, int unit) {
    while (segment + 1 < launch.segment_count && unit >= launch.segments[segment + 1].first_unit)
        ++segment;
    return segment;
}

template <int slices>
__device__ inline float sum_of_slices(const float* first, int stride) {
    float part[slices];
#pragma unroll
    for (int s = 0; s < slices; ++s)
        part[s] = first[s * stride];
    float result = part[0];
#pragma unroll
    for (int s = 1; s < slices; ++s)
        result += part[s];
    return result;
}

__device__ inline float sum_of_slices(int slices_log2, const float* first, int stride) {
    switch (slices_log2) {
        case 0:
            return first[0];
        case 1:
            return sum_of_slices<2>(first, stride);
        case 2:
            return sum_of_slices<4>(first, stride);
        default:
            return sum_of_slices<8>(first, stride);
    }
}

template <WeightFormat format, int n_tiles, int m_tiles, bool swiglu>
__global__ void __launch_bounds__(threads,
                                  Shape<format, n_tiles, m_tiles>::blocks_per_multiprocessor)
    few_row_kernel(const __grid_constant__ Launch launch) {
    using Sizes = Shape<format, n_tiles, m_tiles>;
    constexpr int block_size = block_bytes(format);

    extern __shared__ __align__(16) std::uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    std::uint8_t* const ring = shared + warp * Sizes::depth * Sizes::slot_bytes;
    float* const sums = reinterpret_cast<float*>(shared + warps * Sizes::depth * Sizes::slot_bytes);

    // This warp's place in every unit: a slice of k, and a group of tiles.
    const int slices = 1 << launch.slices_log2;
    const int groups = warps >> launch.slices_log2;
    const int slice = warp & (slices - 1), group = warp >> launch.slices_log2;
    const int first_block = slice * launch.blocks >> launch.slices_log2;
    const int block_count = ((slice + 1) * launch.blocks >> launch.slices_log2) - first_block;

    // ---- the copying side: runs `depth` blocks ahead of the computing side, through all units
    int copy_unit = blockIdx.x, copy_segment = 0, copy_left = 0;
    const std::uint8_t* copy_from[m_tiles];
    std::uint8_t* const lane_ring = ring + lane * 16;
    std::uint8_t* const lane_ring_end = lane_ring + Sizes::depth * Sizes::slot_bytes;
    std::uint8_t* copy_to = lane_ring;
    const auto copy_next = [&] {
        if (copy_unit < launch.units) {
            if (copy_left == 0) {
                copy_segment = segment_of(launch, copy_segment, copy_unit);
                const Segment& s = launch.segments[copy_segment];
                const int local = (copy_unit - s.first_unit) * groups + group;
#pragma unroll
                for (int m = 0; m < m_tiles; ++m) {
                    // Tiles past the end repeat the last one; their results are not stored.
                    const int tile = min(swiglu ? local : local * m_tiles + m, s.tiles - 1);
                    copy_from[m] = s.weight[swiglu ? m : 0] +
                                   (static_cast<std::size_t>(tile) * launch.blocks + first_block) *
                                       block_size +
                                   lane * 16;
                }
                copy_left = block_count;
            }
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                copy_block<format>(copy_to + m * block_size, copy_from[m], lane);
                copy_from[m] += block_size;
            }
            copy_to += Sizes::slot_bytes;
            if (copy_to == lane_ring_end) copy_to = lane_ring;
            if (--copy_left == 0) copy_unit += gridDim.x;
        }
        end_copy_group();
    };
#pragma unroll 1
    for (int i = 0; i < Sizes::depth - 1; ++i)
        copy_next();

    wait_for_previous_kernel();
    let_next_kernel_start();

    // ---- the computing side
    int segment = 0, parity = 0;
    const std::uint8_t* slot = lane_ring;
    const UnpackConstants constants;
    const int first_row = blockIdx.y * 8 * n_tiles;
    for (int unit = blockIdx.x; unit < launch.units; unit += gridDim.x) {
        segment = segment_of(launch, segment, unit);
        const Segment& s = launch.segments[segment];
        const __nv_bfloat16* x_at[n_tiles];
#pragma unroll
        for (int t = 0; t < n_tiles; ++t) {
            // Rows past the end repeat the last one; their results are not stored.
            const int row = min(first_row + t * 8 + lane / 4, launch.rows - 1);
            x_at[t] = s.x + static_cast<std::size_t>(row) * s.x_stride +
                      first_block * block_columns + (lane % 4) * 8;
        }
        const auto load_x = [&](int step, uint4(&x)[n_tiles]) {
#pragma unroll
            for (int t = 0; t < n_tiles; ++t)
                x[t] = load_16(x_at[t] + step * 32);
        };
        float sum[m_tiles][n_tiles][4] = {};
        uint4 x_next[n_tiles];
        if constexpr (n_tiles > 1) load_x(0, x_next);

#pragma unroll 1
        for (int left = block_count; left > 0; --left) {
            uint4 x[4][n_tiles];
            if constexpr (n_tiles == 1) {
#pragma unroll
                for (int step = 0; step < 4; ++step)
                    load_x(step, x[step]);
            }
            wait_for_copies<Sizes::depth - 2>();
            __syncwarp();
            copy_next();

            float block_sum[m_tiles][n_tiles][4] = {};
            auto& target = scales_block_sums(format) ? block_sum : sum;
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                if constexpr (n_tiles > 1) {
#pragma unroll
                    for (int t = 0; t < n_tiles; ++t)
                        x[step][t] = x_next[t];
                    if (step < 3 || left > 1) load_x(step + 1, x_next);
                }
#pragma unroll
                for (int m = 0; m < m_tiles; ++m) {
                    std::uint32_t a[2][4];
                    load_step<format>(slot + m * block_size, step, lane, constants, a);
#pragma unroll
                    for (int t = 0; t < n_tiles; ++t)
                        multiply_add(target[m][t], a[0], x[step][t].x, x[step][t].y);
#pragma unroll
                    for (int t = 0; t < n_tiles; ++t)
                        multiply_add(target[m][t], a[1], x[step][t].z, x[step][t].w);
                }
            }
            if constexpr (scales_block_sums(format)) {
#pragma unroll
                for (int m = 0; m < m_tiles; ++m)
                    add_scaled(sum[m], block_sum[m],
                               block_scales<format>(slot + m * block_size, lane));
            }
            slot += Sizes::slot_bytes;
            if (slot == lane_ring_end) slot = lane_ring;
#pragma unroll
            for (int t = 0; t < n_tiles; ++t)
                x_at[t] += block_columns;
        }

        // ---- the slices' sums, in order
        float* const buffer = sums + parity * (Sizes::sums_bytes / 4);
        if (Sizes::sum_buffers == 1) __syncthreads();
        parity = (parity + 1) % Sizes::sum_buffers;
        constexpr int warp_sums = m_tiles * n_tiles * 128;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int t = 0; t < n_tiles; ++t)
                *reinterpret_cast<float4*>(buffer + warp * warp_sums + (m * n_tiles + t) * 128 +
                                           lane * 4) =
                    make_float4(sum[m][t][0], sum[m][t][1], sum[m][t][2], sum[m][t][3]);
        }
        __syncthreads();
        constexpr int outputs = (swiglu ? 1 : m_tiles) * n_tiles * 128;
        for (int e = threadIdx.x; e < groups * outputs; e += threads) {
            const int of_group = e / outputs, inside = e % outputs;
            const int m = inside / (n_tiles * 128), t = inside / 128 % n_tiles;
            const int of_lane = inside % 128 / 4, i = inside % 4;
            const int local = (unit - s.first_unit) * groups + of_group;
            const int tile = swiglu ? local : local * m_tiles + m;
            const int out = tile * tile_rows + of_lane / 4 + 8 * (i / 2);
            const int row = first_row + t * 8 + (of_lane % 4) * 2 + (i & 1);
            if (out >= s.n || row >= launch.rows) continue;
            const float* const first =
                buffer + (of_group << launch.slices_log2) * warp_sums + inside;
            const float total = sum_of_slices(launch.slices_log2, first, warp_sums) * s.scale[0];
            const std::size_t at = static_cast<std::size_t>(row) * s.y_stride + out;
            if constexpr (swiglu) {
                const float other =
                    sum_of_slices(launch.slices_log2, first + n_tiles * 128, warp_sums) *
                    s.scale[1];
                const float gate = fminf(total, launch.limit);
                const float up = fminf(fmaxf(other, -launch.limit), launch.limit);
                static_cast<__nv_bfloat16*>(s.y)[at] =
                    __float2bfloat16_rn(gate * sigmoid(gate) * up);
            } else if (s.y_is_bf16) {
                static_cast<__nv_bfloat16*>(s.y)[at] = __float2bfloat16_rn(total);
            } else {
                static_cast<float*>(s.y)[at] = total;
            }
        }
    }
}

template <WeightFormat format, int n_tiles, int m_tiles, bool swiglu>
Status launch_kernel(Launch& launch, const LaunchContext& context) {
    using Sizes = Shape<format, n_tiles, m_tiles>;
    int units = 0;
    for (int i = 0; i < launch.segment_count; ++i) {
        Segment& s = launch.segments[i];
        s.first_unit = units;
        const int per_unit = (warps >> launch.slices_log2) * (swiglu ? 1 : m_tiles);
        units += (s.tiles + per_unit - 1) / per_unit;
    }
    launch.units = units;
    const int resident = context.multiprocessors * Sizes::blocks_per_multiprocessor;
    const int row_groups = (launch.rows + 8 * n_tiles - 1) / (8 * n_tiles);
    return cuda::launch("launching the few-row product",
                        few_row_kernel<format, n_tiles, m_tiles, swiglu>,
                        {dim3(std::min(units, resident), row_groups), threads, Sizes::shared_bytes},
                        context, launch);
}

// More rows share a read of the weights, and more tiles share a read of the rows.  Neither changes
// a bit of the result.
template <WeightFormat format>
Status choose_kernel(Launch& launch, bool swiglu, const LaunchContext& context) {
    const int groups = (launch.rows + 7) / 8;
    if (swiglu) {
        if (groups <= 1) return launch_kernel<format, 1, 2, true>(launch, context);
        if (groups <= 2) return launch_kernel<format, 2, 2, true>(launch, context);
        if (groups <= 4) return launch_kernel<format, 4, 2, true>(launch, context);
        return launch_kernel<format, 8, 2, true>(launch, context);
    }
    if (groups > 4) return launch_kernel<format, 8, 2, false>(launch, context);
    if (groups > 2) return launch_kernel<format, 4, 2, false>(launch, context);
    if (groups > 1) return launch_kernel<format, 2, 1, false>(launch, context);
    // Two tiles a unit where there are enough units: less work between them.
    int tiles = 0;
    for (int i = 0; i < launch.segment_count; ++i)
        tiles += launch.segments[i].tiles;
    const int of_slices = tiles * (1 << launch.slices_log2) / warps;
    if (format != WeightFormat::bf16 && of_slices >= 12 * context.multiprocessors)
        return launch_kernel<format, 1, 2, false>(launch, context);
    return launch_kernel<format, 1, 1, false>(launch, context);
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
    launch.blocks = products[0].weight.blocks();
    const int slices = slice_count(products[0].weight.k);
    launch.slices_log2 = slices == 8 ? 3 : slices == 4 ? 2 : slices == 2 ? 1 : 0;
    for (std::size_t i = 0; i < products.size(); ++i) {
        const FewRowProduct& product = products[i];
        const PackedMatrix& weight = product.weight;
        if (weight.format != format || (product.up.data != nullptr) != swiglu)
            return Error(ErrorCode::invalid_argument,
                         "the matrices of one few-row product must share format and kind");
        if (swiglu &&
            (product.up.format != format || product.up.n != weight.n || product.up.k != weight.k))
            return Error(ErrorCode::invalid_argument, "gate and up must share format and shape");
        if (weight.k != products[0].weight.k)
            return Error(ErrorCode::invalid_argument,
                         "the matrices of one few-row product must share k");
        if (product.x_stride % 8 != 0 || product.x_stride < weight.blocks() * block_columns)
            return Error(ErrorCode::invalid_argument,
                         "a few-row product needs rows of x padded to a multiple of 128 columns");
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
        s.tiles = weight.tiles();
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
