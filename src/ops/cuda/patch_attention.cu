#include "ops/cuda/device.cuh"
#include "ops/cuda/patch_attention.h"

namespace percheron::ops::cuda {
namespace {

constexpr int dim = patch_head_dim;
constexpr int store_threads = 128;  // a warp a head of a row
constexpr int warps = 8;
constexpr int threads = warps * 32;
constexpr int queries = 16;  // of a block
constexpr int group_keys = 32;
constexpr int steps = dim / 32;
constexpr int value_tiles = dim / 8;

// One head of one row: a lane has channels `lane` and `lane` + 32, which turn together.
__global__ void __launch_bounds__(store_threads)
    store_kernel(const __grid_constant__ PatchHeadRows op) {
    static_assert(dim == 64);
    const int lane = threadIdx.x % 32;
    const int heads = static_cast<int>(op.heads.heads);
    const int item = static_cast<int>(blockIdx.x * store_threads + threadIdx.x) / 32;
    if (item >= op.rows * heads) return;
    const int row = item / heads, head = item % heads;
    const std::size_t width = static_cast<std::size_t>(heads) * dim, patches = op.heads.patches;
    const std::size_t patch = op.first + row;
    const auto at = [&](int part, int channel) {
        const std::size_t column = part * width + static_cast<std::size_t>(head) * dim + channel;
        return op.projected[row * 3 * width + column] + op.bias[column];
    };
    // Half of the angles are of the patch's row, half of its column.
    const PatchPlace place = op.places[row];
    const float exponent = -4.0f * static_cast<float>(lane % 16) / static_cast<float>(dim);
    const float angle =
        static_cast<float>(lane < 16 ? place.y : place.x) * powf(op.theta, exponent);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        const float* const norm = part == 0 ? op.query_norm : op.key_norm;
        float low = at(part, lane), high = at(part, lane + 32);
        const float scale = 1.0f / sqrtf(warp_sum(low * low + high * high) / dim + op.eps);
        low *= scale * norm[lane];
        high *= scale * norm[lane + 32];
        auto* const to = static_cast<__nv_bfloat16*>(part == 0 ? op.heads.query : op.heads.key) +
                         (static_cast<std::size_t>(head) * patches + patch) * dim;
        to[lane] = __float2bfloat16_rn(low * cosine - high * sine);
        to[lane + 32] = __float2bfloat16_rn(high * cosine + low * sine);
    }
    auto* const value = static_cast<__nv_bfloat16*>(op.heads.value) +
                        static_cast<std::size_t>(head) * dim * patches + patch;
    value[lane * patches] = __float2bfloat16_rn(at(2, lane));
    value[(lane + 32) * patches] = __float2bfloat16_rn(at(2, lane + 32));
}

// Two weights as the upper and the lower 8 bits of their mantissas.
__device__ void split(float a, float b, std::uint32_t& upper, std::uint32_t& lower) {
    const __nv_bfloat162 high = __floats2bfloat162_rn(a, b);
    const __nv_bfloat162 low = __floats2bfloat162_rn(a - __low2float(high), b - __high2float(high));
    upper = *reinterpret_cast<const std::uint32_t*>(&high);
    lower = *reinterpret_cast<const std::uint32_t*>(&low);
}

__device__ float most_of_four_lanes(float value) {
    value = fmaxf(value, __shfl_xor_sync(full_warp, value, 1));
    return fmaxf(value, __shfl_xor_sync(full_warp, value, 2));
}
__device__ float sum_of_four_lanes(float value) {
    value += __shfl_xor_sync(full_warp, value, 1);
    return value + __shfl_xor_sync(full_warp, value, 2);
}

// A block has 16 queries of one head, a warp every eighth group of 32 keys.  Lane 4 g + q has
// queries g and g + 8 and, of a group, keys 8 q .. 8 q + 7: column c of the t-th tile of scores is
// key 8 (c / 2) + 2 t + c % 2.
__global__ void __launch_bounds__(threads) attend_kernel(const __grid_constant__ PatchQueries op) {
    __shared__ float parts[warps][queries][dim];
    __shared__ float most[warps][queries], total[warps][queries];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int head = blockIdx.y, first_query = blockIdx.x * queries;
    const int patches = static_cast<int>(op.heads.patches);
    const std::size_t of_head = static_cast<std::size_t>(head) * patches * dim;
    const auto* const query = static_cast<const __nv_bfloat16*>(op.heads.query) + of_head;
    const auto* const key = static_cast<const __nv_bfloat16*>(op.heads.key) + of_head;
    const auto* const value = static_cast<const __nv_bfloat16*>(op.heads.value) + of_head;

    // Queries past the end repeat the last one; their results are not stored.
    std::uint32_t a[steps][2][4];
#pragma unroll
    for (int step = 0; step < steps; ++step) {
        uint4 rows[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = min(first_query + g + 8 * half, op.rows - 1);
            rows[half] = load_16(query + (op.first + row) * dim + step * 32 + q * 8);
        }
        a[step][0][0] = rows[0].x, a[step][0][1] = rows[1].x;
        a[step][0][2] = rows[0].y, a[step][0][3] = rows[1].y;
        a[step][1][0] = rows[0].z, a[step][1][1] = rows[1].z;
        a[step][1][2] = rows[0].w, a[step][1][3] = rows[1].w;
    }
    float own_most[2] = {-INFINITY, -INFINITY}, own_total[2] = {};
    float out[value_tiles][4] = {};
    const float scale = 1.0f / sqrtf(static_cast<float>(dim));
    for (int base = warp * group_keys; base < patches; base += warps * group_keys) {
        float score[4][4] = {};
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const int row = min(base + 8 * (g / 2) + 2 * t + g % 2, patches - 1);
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                const uint4 k =
                    load_16(key + static_cast<std::size_t>(row) * dim + step * 32 + q * 8);
                multiply_add(score[t], a[step][0], k.x, k.y);
                multiply_add(score[t], a[step][1], k.z, k.w);
            }
        }
        const int own_key = base + 8 * q;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = -INFINITY;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& s = score[t][2 * half + i];
                    s = own_key + 2 * t + i < patches ? s * scale : -INFINITY;
                    top = fmaxf(top, s);
                }
            }
            // Every group has a key, so that this is no infinity.
            top = fmaxf(own_most[half], most_of_four_lanes(top));
            const float shrink = expf(own_most[half] - top);
            own_most[half] = top;
            own_total[half] *= shrink;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& s = score[t][2 * half + i];
                    s = expf(s - top);
                    own_total[half] += s;
                }
            }
#pragma unroll
            for (int n = 0; n < value_tiles; ++n) {
                out[n][2 * half] *= shrink;
                out[n][2 * half + 1] *= shrink;
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            std::uint32_t upper[4], lower[4];
#pragma unroll
            for (int r = 0; r < 4; ++r)
                split(score[2 * j + r / 2][r % 2 * 2], score[2 * j + r / 2][r % 2 * 2 + 1],
                      upper[r], lower[r]);
            const int four = own_key + 4 * j;
#pragma unroll
            for (int n = 0; n < value_tiles; ++n) {
                uint2 v = make_uint2(0, 0);
                if (four < patches)
                    v = *reinterpret_cast<const uint2*>(
                        value + static_cast<std::size_t>(8 * n + g) * patches + four);
                multiply_add(out[n], upper, v.x, v.y);
                multiply_add(out[n], lower, v.x, v.y);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        const float sum = sum_of_four_lanes(own_total[half]);
        if (q == 0) {
            most[warp][row] = own_most[half];
            total[warp][row] = sum;
        }
#pragma unroll
        for (int n = 0; n < value_tiles; ++n)
            *reinterpret_cast<float2*>(&parts[warp][row][8 * n + 2 * q]) =
                make_float2(out[n][2 * half], out[n][2 * half + 1]);
    }
    __syncthreads();

    // ---- the warps' parts, in order
    const std::size_t width = op.heads.heads * dim;
    for (int i = threadIdx.x; i < queries * dim; i += threads) {
        const int row = i / dim, channel = i % dim;
        if (first_query + row >= op.rows) continue;
        float top = most[0][row];
#pragma unroll
        for (int w = 1; w < warps; ++w)
            top = fmaxf(top, most[w][row]);
        float sum = 0.0f, weight = 0.0f;
#pragma unroll
        for (int w = 0; w < warps; ++w) {
            const float share = expf(most[w][row] - top);
            weight = fmaf(share, total[w][row], weight);
            sum = fmaf(share, parts[w][row][channel], sum);
        }
        op.out[(first_query + row) * width + static_cast<std::size_t>(head) * dim + channel] =
            __float2bfloat16_rn(sum / weight);
    }
}

}  // namespace

Status store_patch_heads(const PatchHeadRows& op, const LaunchContext& context) {
    const int items = op.rows * static_cast<int>(op.heads.heads);
    constexpr int each = store_threads / 32;
    return launch("launching the storing of patches", store_kernel,
                  {dim3((items + each - 1) / each), store_threads, 0}, context, op);
}

Status patch_attention(const PatchQueries& op, const LaunchContext& context) {
    return launch("launching the attention of patches", attend_kernel,
                  {dim3((op.rows + queries - 1) / queries, static_cast<unsigned>(op.heads.heads)),
                   threads, 0},
                  context, op);
}

}  // namespace percheron::ops::cuda
