#include <algorithm>

#include <cooperative_groups.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/select_tokens.h"
#include "ops/cuda/stored_rows.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int dim = 128;
constexpr int pool = 4;
constexpr int page_pools = 16;
constexpr int most_heads = 32;
constexpr int score_warps = 8;
constexpr int pools_of_block = 256;
constexpr int select_threads = 1024;
constexpr int select_warps = select_threads / 32;

struct RowView {
    const std::uint32_t* pages;
    int visible, candidates;
};

__device__ RowView row_view(const TokenSelection& op, int row) {
    const DeviceSequence& s = op.batch.sequences[op.batch.sequence_of_row[row]];
    RowView view;
    view.pages = op.batch.pages + s.first_page;
    view.visible =
        static_cast<int>(s.first_position + (op.batch.first_row + row - s.first_row) + 1);
    view.candidates = view.visible / pool;
    return view;
}

// A lane's share of eight pooled keys: eight columns of one key, four times; of fp8 the scales of
// the two keys whose scores the lane gets.
template <bool is_fp8>
struct PooledKeys {
    uint4 columns[4];

    __device__ void load(const char* page, int first, int g, int q) {
        const char* const key = page + ((first + g) * dim + q * 8) * 2;
#pragma unroll
        for (int step = 0; step < 4; ++step)
            columns[step] = load_16(key + step * 64);
    }
    __device__ uint4 of(int step) const {
        return columns[step];
    }
    __device__ float scaled(float sum, int /*column*/) const {
        return sum;
    }
};

template <>
struct PooledKeys<true> {
    uint2 codes[4];
    std::uint32_t scales;

    __device__ void load(const char* page, int first, int g, int q) {
        const char* const key = page + (first + g) * dim + q * 8;
#pragma unroll
        for (int step = 0; step < 4; ++step)
            codes[step] = load_8(key + step * 32);
        scales = load_2(page + page_pools * dim + first + 2 * q);
    }
    __device__ uint4 of(int step) const {
        const uint2 low = widen_4(codes[step].x), high = widen_4(codes[step].y);
        return make_uint4(low.x, low.y, high.x, high.y);
    }
    __device__ float scaled(float sum, int column) const {
        return sum * scale_value((scales >> (8 * column)) & 255u);
    }
};

// Scores of eight pools at a time a warp: heads are the tensor core's rows, pools its columns.
template <bool is_fp8>
__global__ void __launch_bounds__(score_warps * 32)
    score_kernel(const __grid_constant__ TokenSelection op) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int row = blockIdx.y;
    const RowView view = row_view(op, row);
    const int first = blockIdx.x * pools_of_block;
    if (view.candidates <= op.topk / pool || first >= view.candidates) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;

    // The query as operand: tiles of 16 heads, steps of 32 columns (see packed_matrix.h).
    std::uint32_t a[2][4][2][4];
    float weight[2][2];
    const __nv_bfloat16* const query = op.query + static_cast<std::size_t>(row) * op.query_stride;
    const float head_scale = rsqrtf(static_cast<float>(op.heads));
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int high = 0; high < 2; ++high) {
            const int head = tile * 16 + high * 8 + g;
            const bool there = head < op.heads;
            weight[tile][high] =
                there
                    ? op.head_weight[static_cast<std::size_t>(row) * op.head_weight_stride + head] *
                          head_scale
                    : 0.0f;
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                const uint4 part = there ? load_16(query + head * dim + step * 32 + q * 8)
                                         : make_uint4(0, 0, 0, 0);
                a[tile][step][0][high] = part.x;
                a[tile][step][0][2 + high] = part.y;
                a[tile][step][1][high] = part.z;
                a[tile][step][1][2 + high] = part.w;
            }
        }
    }

    float* const scores = op.scores + static_cast<std::size_t>(row) * op.most_pools;
    const int end = min(first + pools_of_block, view.candidates);
    const auto load_keys = [&](int base, PooledKeys<is_fp8>& keys) {
        const std::size_t page = view.pages[base / page_pools];
        // Pools past the last candidate lie in the same page; what they score is not stored.
        keys.load(static_cast<const char*>(op.pages.pooled) + page * op.pages.pooled_page_bytes,
                  base % page_pools, g, q);
    };
    PooledKeys<is_fp8> next;
    if (first + warp * 8 < end) load_keys(first + warp * 8, next);
    for (int base = first + warp * 8; base < end; base += score_warps * 8) {
        float sum[2][1][4] = {};
        const PooledKeys<is_fp8> keys = next;
        if (base + score_warps * 8 < end) load_keys(base + score_warps * 8, next);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const uint4 b = keys.of(step);
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                multiply_add(sum[tile][0], a[tile][step][0], b.x, b.y);
                multiply_add(sum[tile][0], a[tile][step][1], b.z, b.w);
            }
        }
        constexpr float dim_scale = 0.08838834764831845f;  // 128^-1/2
        float score[2];
#pragma unroll
        for (int column = 0; column < 2; ++column) {
            score[column] = 0.0f;
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
                for (int high = 0; high < 2; ++high)
                    score[column] =
                        fmaf(weight[tile][high],
                             fmaxf(keys.scaled(sum[tile][0][2 * high + column], column) * dim_scale,
                                   0.0f),
                             score[column]);
            }
#pragma unroll
            for (int offset = 4; offset <= 16; offset *= 2)
                score[column] += __shfl_xor_sync(full_warp, score[column], offset);
        }
        if (g == 0) {
            if (base + 2 * q < end) scores[base + 2 * q] = score[0];
            if (base + 2 * q + 1 < end) scores[base + 2 * q + 1] = score[1];
        }
    }
}

// A float's bits as an unsigned number of the same order; -0 counts as +0, so that they tie.
__device__ std::uint32_t ordered(float value) {
    const std::uint32_t bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// What the blocks that share a row show each other.
struct SelectShared {
    int histogram[2][256];  // of every other pass
    int total[256];
    int above[select_warps], equal[select_warps];
    int block_above, block_equal;
    std::uint32_t prefix;
    int wanted;
};

// The blocks of a cluster, or a block alone.
template <int blocks>
struct RowBlocks {
    __device__ static int rank() {
        if constexpr (blocks == 1) return 0;
#if __CUDA_ARCH__ >= 900
        return static_cast<int>(cooperative_groups::this_cluster().block_rank());
#else
        return 0;
#endif
    }
    __device__ static void meet() {
#if __CUDA_ARCH__ >= 900
        if constexpr (blocks > 1) {
            cooperative_groups::this_cluster().sync();
            return;
        }
#endif
        __syncthreads();
    }
    __device__ static const SelectShared& of(SelectShared& own, int other) {
#if __CUDA_ARCH__ >= 900
        if constexpr (blocks > 1)
            return *cooperative_groups::this_cluster().map_shared_rank(&own, other);
#endif
        return own;
    }
};

// One block a row, or a cluster for many candidates, each block with a run of them in shared
// memory. Four passes of a radix search find the smallest taken score and how many of the equal
// ones are taken; then every warp writes its run of the candidates, in order.
template <int blocks>
__global__ void __launch_bounds__(select_threads)
    select_kernel(const __grid_constant__ TokenSelection op, int block_run) {
    using Blocks = RowBlocks<blocks>;
    extern __shared__ std::uint32_t keys[];  // [block_run]
    __shared__ SelectShared shared;
    if (threadIdx.x < 512) (&shared.histogram[0][0])[threadIdx.x] = 0;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int row = blockIdx.y, block = Blocks::rank();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const RowView view = row_view(op, row);
    std::uint32_t* const positions =
        op.positions + static_cast<std::size_t>(row) * op.positions_stride;
    const int taken = min(view.candidates, op.topk / pool);
    const int tail = view.visible - view.candidates * pool;
    if (block == 0) {
        if (threadIdx.x == 0) op.counts[row] = taken * pool + tail;
        if (threadIdx.x < tail)
            positions[taken * pool + threadIdx.x] = view.candidates * pool + threadIdx.x;
    }
    if (taken == view.candidates) {
        if (block == 0) {
            for (int i = threadIdx.x; i < taken * pool; i += select_threads)
                positions[i] = i;
        }
        return;
    }

    const float* const scores = op.scores + static_cast<std::size_t>(row) * op.most_pools;
    const int block_first = block * block_run;
    const int own = max(min(block_run, view.candidates - block_first), 0);
    constexpr int ahead = 8;  // loads under way at a time
    for (int base = 0; base < own; base += ahead * select_threads) {
        float score[ahead];
#pragma unroll
        for (int j = 0; j < ahead; ++j) {
            const int i = base + j * select_threads + static_cast<int>(threadIdx.x);
            score[j] = i < own ? scores[block_first + i] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < ahead; ++j) {
            const int i = base + j * select_threads + static_cast<int>(threadIdx.x);
            if (i < own) keys[i] = ordered(score[j]);
        }
    }
    __syncthreads();

    std::uint32_t prefix = 0, mask = 0;
    int wanted = taken;
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
        const int shift = 24 - 8 * pass;
        int* const histogram = shared.histogram[pass % 2];
        for (int i = threadIdx.x; i < own; i += select_threads) {
            const std::uint32_t key = keys[i];
            if ((key & mask) == prefix) atomicAdd(&histogram[(key >> shift) & 255u], 1);
        }
        Blocks::meet();
        if (threadIdx.x < 256) {
            int total = 0;
            for (int other = 0; other < blocks; ++other)
                total += Blocks::of(shared, other).histogram[pass % 2][threadIdx.x];
            shared.total[threadIdx.x] = total;
            // Read by the others before they met.
            shared.histogram[(pass + 1) % 2][threadIdx.x] = 0;
        }
        __syncthreads();
        if (warp == 0) {
            // Bins from the top, eight a lane: the bin in which the wanted-th largest lies.
            int of_lane = 0;
            for (int j = 0; j < 8; ++j)
                of_lane += shared.total[255 - (lane * 8 + j)];
            int before = of_lane;
            for (int offset = 1; offset < 32; offset *= 2) {
                const int other = __shfl_up_sync(full_warp, before, offset);
                if (lane >= offset) before += other;
            }
            before -= of_lane;
            if (before < wanted && wanted <= before + of_lane) {
                int bin = 255 - lane * 8;
                while (before + shared.total[bin] < wanted) {
                    before += shared.total[bin];
                    --bin;
                }
                shared.prefix = prefix | static_cast<std::uint32_t>(bin) << shift;
                shared.wanted = wanted - before;
            }
        }
        __syncthreads();
        prefix = shared.prefix;
        wanted = shared.wanted;
        mask |= 255u << shift;
    }

    // Taken: every score above the threshold, and the first `wanted` equal to it.
    const int run = (own + select_warps * 32 - 1) / (select_warps * 32) * 32;
    const int first = warp * run, end = min(first + run, own);
    int above = 0, equal = 0;
    for (int i = first + lane; i < first + run; i += 32) {
        const std::uint32_t key = i < end ? keys[i] : 0u;
        above += __popc(__ballot_sync(full_warp, i < end && key > prefix));
        equal += __popc(__ballot_sync(full_warp, i < end && key == prefix));
    }
    if (lane == 0) {
        shared.above[warp] = above;
        shared.equal[warp] = equal;
    }
    __syncthreads();
    int above_before = 0, equal_before = 0;
    for (int w = 0; w < warp; ++w) {
        above_before += shared.above[w];
        equal_before += shared.equal[w];
    }
    if (threadIdx.x == select_threads - 1) {
        shared.block_above = above_before + above;
        shared.block_equal = equal_before + equal;
    }
    Blocks::meet();
    for (int other = 0; other < block; ++other) {
        above_before += Blocks::of(shared, other).block_above;
        equal_before += Blocks::of(shared, other).block_equal;
    }
    for (int i = first + lane; i < first + run; i += 32) {
        const std::uint32_t key = i < end ? keys[i] : 0u;
        const bool is_above = i < end && key > prefix, is_equal = i < end && key == prefix;
        const std::uint32_t all_above = __ballot_sync(full_warp, is_above);
        const std::uint32_t all_equal = __ballot_sync(full_warp, is_equal);
        const std::uint32_t lower = (1u << lane) - 1u;
        const int equal_rank = equal_before + __popc(all_equal & lower);
        if (is_above || (is_equal && equal_rank < wanted)) {
            const int place = above_before + __popc(all_above & lower) + min(equal_rank, wanted);
            const std::uint32_t token = static_cast<std::uint32_t>(block_first + i) * pool;
            *reinterpret_cast<uint4*>(positions + place * pool) =
                make_uint4(token, token + 1, token + 2, token + 3);
        }
        above_before += __popc(all_above);
        equal_before += __popc(all_equal);
    }
    // Nobody leaves while another may still read its shared memory.
    if constexpr (blocks > 1) Blocks::meet();
}

template <int blocks>
Status launch_select(const TokenSelection& op, const LaunchContext& context) {
    const int run = (op.most_pools + blocks - 1) / blocks;
    return launch("launching the token selection", select_kernel<blocks>,
                  {dim3(blocks, op.batch.rows), select_threads,
                   static_cast<std::size_t>(run) * sizeof(std::uint32_t), blocks},
                  context, op, run);
}

}  // namespace

Status check_selection(const TokenSelection& op) {
    if (op.heads > most_heads ||
        (op.pages.pooled_dtype != DType::bf16 && op.pages.pooled_dtype != DType::f8_e4m3))
        return Error(ErrorCode::unsupported,
                     "the CUDA indexer takes at most 32 heads and bf16 or fp8 pooled keys");
    if (op.positions_stride % 4 != 0)
        return Error(ErrorCode::invalid_argument,
                     "selected positions need rows of a multiple of 4");
    return {};
}

Status take_best_pools(const TokenSelection& op, const LaunchContext& context) {
    // Rows in plenty keep the device busy by themselves, and small clusters meet more cheaply: as
    // few blocks a row as leave room for two on a multiprocessor.
    constexpr int plenty = 64, most_of_two_blocks = 16384;
    if (op.batch.rows > plenty) {
        if (op.most_pools <= most_of_two_blocks) return launch_select<1>(op, context);
        if (op.most_pools <= 2 * most_of_two_blocks) return launch_select<2>(op, context);
        if (op.most_pools <= 4 * most_of_two_blocks) return launch_select<4>(op, context);
    }
    // Below this a block alone is done before a cluster has met.
    constexpr int most_of_one_block = 8192;
    return op.most_pools > most_of_one_block ? launch_select<8>(op, context)
                                             : launch_select<1>(op, context);
}

Status select_tokens(const TokenSelection& op, const LaunchContext& context) {
    PERCHERON_TRY(check_selection(op));
    if (op.most_pools > op.topk / pool) {
        const bool is_fp8 = op.pages.pooled_dtype == DType::f8_e4m3;
        PERCHERON_TRY(
            launch("launching the index scores", is_fp8 ? score_kernel<true> : score_kernel<false>,
                   {dim3((op.most_pools + pools_of_block - 1) / pools_of_block, op.batch.rows),
                    score_warps * 32, 0},
                   context, op));
    }
    return take_best_pools(op, context);
}

}  // namespace percheron::ops::cuda
