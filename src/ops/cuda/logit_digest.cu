#include <utility>

#include <cooperative_groups.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/logit_digest.h"

namespace percheron::ops::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int row_blocks = 8;  // of a cluster, each with a run of the vocabulary
constexpr int threads = 1024, warps = threads / 32;
// The largest logits are found by their distance from the best: bins of a sixteenth.
constexpr int bins = 512;
constexpr float bins_of_one = 16.0f;
constexpr int sort_room = 1024;
constexpr int most_shared_bytes = 200 * 1024;

// What a pass over a run of the vocabulary tells.
struct RunSummary {
    float largest, smallest;
    float best_logit;
    std::uint32_t best;
    bool finite;
};

struct DigestShared {
    RunSummary runs[row_blocks];  // written by the cluster's blocks
    // Read by them.
    double total, distant, plain_total, noisy_best;
    int histogram[bins];
    // Written by them in the first block.
    int sort_count, noisy_count;
    LogitDigest::Entry noisy[LogitDigest::noisy_room];
    std::uint64_t sort_keys[sort_room];
    // A block's own.
    RunSummary of_warp[warps];
    double sums[3][warps];
    int bin_sums[bins];
    int last_bin;
};

__host__ __device__ constexpr int run_of(int vocabulary) {
    return (vocabulary + row_blocks - 1) / row_blocks;
}

constexpr std::size_t shared_bytes_of(int vocabulary) {
    // The run's logits and how far their noise can reach.
    return static_cast<std::size_t>(run_of(vocabulary)) * 5 + 16;
}

#if __CUDA_ARCH__ >= 900

__device__ bool is_before(float a, std::uint32_t a_id, float b, std::uint32_t b_id) {
    return a > b || (a == b && a_id < b_id);
}

__device__ void join(RunSummary& summary, const RunSummary& other) {
    summary.largest = fmaxf(summary.largest, other.largest);
    summary.smallest = fminf(summary.smallest, other.smallest);
    summary.finite &= other.finite;
    if (other.best != LogitDigest::nobody &&
        (summary.best == LogitDigest::nobody ||
         is_before(other.best_logit, other.best, summary.best_logit, summary.best))) {
        summary.best = other.best;
        summary.best_logit = other.best_logit;
    }
}

__device__ RunSummary of_lane(const RunSummary& summary, int distance) {
    RunSummary other;
    other.largest = __shfl_xor_sync(full_warp, summary.largest, distance);
    other.smallest = __shfl_xor_sync(full_warp, summary.smallest, distance);
    other.best_logit = __shfl_xor_sync(full_warp, summary.best_logit, distance);
    other.best = __shfl_xor_sync(full_warp, summary.best, distance);
    other.finite = __shfl_xor_sync(full_warp, static_cast<int>(summary.finite), distance) != 0;
    return other;
}

// Words 0 and 1 of Philox4x32-10 (core/philox.h).
__device__ std::uint64_t noise_word(const DigestRequest& request, std::uint32_t token) {
    std::uint32_t c0 = token, c1 = request.position, c2 = request.choice, c3 = 0;
    auto k0 = static_cast<std::uint32_t>(request.seed);
    auto k1 = static_cast<std::uint32_t>(request.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c0;
        const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
        c1 = static_cast<std::uint32_t>(product1);
        c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
        c3 = static_cast<std::uint32_t>(product0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return std::uint64_t{c0} << 32 | c1;
}

__device__ double noise_of(std::uint64_t word) {
    return -log(-log((static_cast<double>(word >> 12) + 0.5) * 0x1p-52));
}

// Noise is at most (leading ones + 1) ln 2, see sampling/coupled_noise.h.
__device__ std::uint8_t leading_ones(std::uint64_t word) {
    return static_cast<std::uint8_t>(min(52, __clzll(static_cast<long long>(~word))));
}
constexpr float ln2 = 0.693147181f;

__device__ double largest_of(double value, double (&of_warp)[warps]) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = fmax(value, __shfl_xor_sync(full_warp, value, offset));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; warp < warps; ++warp)
        value = fmax(value, of_warp[warp]);
    return value;
}

// In a fixed order; of the first thread.
__device__ double sum_of(double value, double (&of_warp)[warps]) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(full_warp, value, offset);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    double total = 0;
    if (threadIdx.x == 0) {
        for (int warp = 0; warp < warps; ++warp)
            total += of_warp[warp];
    }
    return total;
}

#endif

// A cluster a row.
__global__ void __launch_bounds__(threads)
    digest_kernel([[maybe_unused]] const __grid_constant__ LogitDigestion op) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float logits[];  // this block's run, then reaches
    __shared__ DigestShared shared;
    const cg::cluster_group cluster = cg::this_cluster();
    const int rank = static_cast<int>(cluster.block_rank());
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int row = static_cast<int>(blockIdx.y);
    const int run = run_of(op.vocabulary), first = rank * run;
    const int count = max(min(run, op.vocabulary - first), 0);
    auto* const reaches = reinterpret_cast<std::uint8_t*>(logits + run);
    DigestShared& front = *cluster.map_shared_rank(&shared, 0);
    auto started = cluster.barrier_arrive();
    if (thread < bins) shared.histogram[thread] = 0;
    if (thread == 0) shared.sort_count = shared.noisy_count = 0;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const DigestRequest request = op.requests[row];
    const auto is_excluded = [&](int i) {
        const int v = first + i;
        return (op.excluded[v / 32] >> (v % 32) & 1u) != 0;
    };

    // ---- largest, smallest, finite, best
    RunSummary summary = {-INFINITY, INFINITY, -INFINITY, LogitDigest::nobody, true};
    const float* const row_logits =
        op.logits + static_cast<std::size_t>(row) * op.vocabulary + first;
#pragma unroll 4
    for (int i = thread; i < count; i += threads) {
        // Both zeros are alike.
        const float logit = row_logits[i] + 0.0f;
        // What is not to be chosen is kept as NaN; nothing else is, once the row is known to be
        // finite.
        const bool excluded = is_excluded(i);
        logits[i] = excluded ? NAN : logit;
        summary.finite &= isfinite(logit);
        summary.largest = fmaxf(summary.largest, logit);
        summary.smallest = fminf(summary.smallest, logit);
        if (!excluded && (summary.best == LogitDigest::nobody || logit > summary.best_logit)) {
            summary.best = static_cast<std::uint32_t>(first + i);
            summary.best_logit = logit;
        }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        join(summary, of_lane(summary, distance));
    if (lane == 0) shared.of_warp[warp] = summary;
    __syncthreads();
    if (warp == 0) {
        summary = shared.of_warp[lane];
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            join(summary, of_lane(summary, distance));
    }
    cluster.barrier_wait(std::move(started));
    if (thread < row_blocks) cluster.map_shared_rank(&shared, thread)->runs[rank] = summary;
    cluster.sync();
    RunSummary all = shared.runs[0];
    for (int other = 1; other < row_blocks; ++other)
        join(all, shared.runs[other]);
    LogitDigest& digest = op.digests[row];
    if (rank == 0 && thread == 0) {
        digest.largest = all.largest;
        digest.smallest = all.smallest;
        digest.finite = all.finite ? 1 : 0;
        digest.best = all.finite ? all.best : LogitDigest::nobody;
        digest.best_logit = all.best_logit;
        digest.total = digest.total_error = digest.plain_total = 0;
        digest.top_count = digest.noisy_count = 0;
    }
    const bool chooses = all.finite && all.best != LogitDigest::nobody;
    const bool wants_top = chooses && (request.wants & DigestRequest::top) != 0;
    const bool wants_total = chooses && (request.wants & DigestRequest::total) != 0;
    const bool wants_noisy = chooses && (request.wants & DigestRequest::noisy) != 0;
    const bool wants_plain = all.finite && (request.wants & DigestRequest::plain_total) != 0;
    const double temperature = request.temperature == 0.0f ? 1.0 : double{request.temperature};
    const double inverse = 1.0 / temperature;

    // ---- sums of this run, and what its noise reaches
    if (wants_top) {
        for (int i = thread; i < count; i += threads) {
            const float distance = (all.best_logit - logits[i]) * bins_of_one;
            if (distance < static_cast<float>(bins))
                atomicAdd(&shared.histogram[static_cast<int>(distance)], 1);
        }
    }
    if (wants_total || wants_plain) {
        const double best = all.best_logit / temperature;
        double near = 0, plain = 0;
        // Double precision is slow: most ids are so unlikely that single will do.
        float distant = 0;
        const auto inverse_single = static_cast<float>(inverse);
        for (int i = thread; i < count; i += threads) {
            const float x = (logits[i] - all.best_logit) * inverse_single;
            if (wants_total && x == x) {
                if (x > -4.0f)
                    near += exp(logits[i] / temperature - best);
                else
                    distant += __expf(x);
            }
            if (wants_plain) plain += exp(double{row_logits[i]} - all.largest);
        }
        near = sum_of(near, shared.sums[0]);
        const double all_distant = sum_of(distant, shared.sums[1]);
        plain = sum_of(plain, shared.sums[2]);
        if (thread == 0) {
            shared.total = near;
            shared.distant = all_distant;
            shared.plain_total = plain;
        }
    }
    double noisy_best = -INFINITY;
    if (wants_noisy) {
        const double least = all.best_logit / temperature + noise_of(noise_word(request, all.best));
        // Most ids are ruled out in single precision, with a hair for its roundings.
        const float slack = 1e-3f + 1e-6f * static_cast<float>(fabs(all.best_logit * inverse));
        const auto inverse_single = static_cast<float>(inverse);
        auto threshold = static_cast<float>(least) - slack;
        for (int i = thread; i < count; i += threads) {
            const float logit = logits[i];
            if (logit != logit) continue;
            const std::uint64_t word = noise_word(request, static_cast<std::uint32_t>(first + i));
            const std::uint8_t ones = leading_ones(word);
            reaches[i] = ones;
            if (fmaf(logit, inverse_single, (ones + 1) * ln2) < threshold) continue;
            noisy_best = fmax(noisy_best, logit / temperature + noise_of(word));
            threshold = fmaxf(threshold, static_cast<float>(noisy_best) - slack);
        }
        noisy_best = fmax(largest_of(noisy_best, shared.sums[0]), least);
        if (thread == 0) shared.noisy_best = noisy_best;
    }
    if (!(wants_top || wants_total || wants_plain || wants_noisy)) return;
    cluster.sync();

    // ---- the sums of all, and the few that matter to the first block
    if (rank == 0 && thread == 0 && (wants_total || wants_plain)) {
        double total = 0, distant = 0, plain = 0;
        for (int other = 0; other < row_blocks; ++other) {
            const DigestShared& of = *cluster.map_shared_rank(&shared, other);
            total += of.total;
            distant += of.distant;
            plain += of.plain_total;
        }
        if (wants_total) {
            digest.total = total + distant;
            digest.total_error = 2e-5 * distant + 1e-11 * total;
        }
        if (wants_plain) digest.plain_total = plain;
    }
    if (wants_noisy) {
        for (int other = 0; other < row_blocks; ++other)
            noisy_best = fmax(noisy_best, cluster.map_shared_rank(&shared, other)->noisy_best);
        const double least = noisy_best - LogitDigest::noisy_margin;
        const float slack = 1e-3f + 1e-6f * static_cast<float>(fabs(all.best_logit * inverse));
        const auto inverse_single = static_cast<float>(inverse);
        const float threshold = static_cast<float>(least) - slack;
        for (int i = thread; i < count; i += threads) {
            const float logit = logits[i];
            if (logit != logit || fmaf(logit, inverse_single, (reaches[i] + 1) * ln2) < threshold)
                continue;
            const auto id = static_cast<std::uint32_t>(first + i);
            if (logit / temperature + noise_of(noise_word(request, id)) < least) continue;
            const int place = atomicAdd(&front.noisy_count, 1);
            if (place < static_cast<int>(LogitDigest::noisy_room)) front.noisy[place] = {logit, id};
        }
    }
    if (wants_top) {
        if (thread < bins) {
            int sum = 0;
            for (int other = 0; other < row_blocks; ++other)
                sum += cluster.map_shared_rank(&shared, other)->histogram[thread];
            shared.bin_sums[thread] = sum;
        }
        __syncthreads();
        if (warp == 0) {
            // The first bin with which there are enough, or the last before there are too many.
            constexpr int of_a_lane = bins / 32;
            int own = 0;
            for (int bin = lane * of_a_lane; bin < (lane + 1) * of_a_lane; ++bin)
                own += shared.bin_sums[bin];
            int before = own;
#pragma unroll
            for (int offset = 1; offset < 32; offset *= 2) {
                const int other = __shfl_up_sync(full_warp, before, offset);
                if (lane >= offset) before += other;
            }
            before -= own;
            constexpr int enough = LogitDigest::top_room;
            int last = -1;  // bins below it are taken whatever comes
            for (int bin = lane * of_a_lane; bin < (lane + 1) * of_a_lane; ++bin) {
                if (before >= enough) break;
                before += shared.bin_sums[bin];
                if (before > sort_room) break;
                last = bin;
            }
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2)
                last = max(last, __shfl_xor_sync(full_warp, last, offset));
            if (lane == 0) shared.last_bin = last;
        }
        __syncthreads();
        const int last_bin = shared.last_bin;
        for (int i = thread; i < count; i += threads) {
            const float distance = (all.best_logit - logits[i]) * bins_of_one;
            if (!(distance < static_cast<float>(bins)) || static_cast<int>(distance) > last_bin)
                continue;
            const int place = atomicAdd(&front.sort_count, 1);
            const std::uint32_t bits = __float_as_uint(logits[i]);
            const std::uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
            front.sort_keys[place] =
                std::uint64_t{~ascending} << 32 | static_cast<std::uint32_t>(first + i);
        }
    }
    // Nobody leaves while another may still look at its memory.
    cluster.sync();
    if (rank != 0) return;

    if (wants_noisy && thread == 0) {
        digest.noisy_count = static_cast<std::uint32_t>(shared.noisy_count);
        const int known = min(shared.noisy_count, static_cast<int>(LogitDigest::noisy_room));
        for (int i = 0; i < known; ++i)
            digest.noisy[i] = shared.noisy[i];
    }
    if (!wants_top) return;
    // ---- in order: they came as they liked
    const int sorted = shared.sort_count;
    int room = 32;
    while (room < sorted)
        room *= 2;
    if (thread >= sorted && thread < room) shared.sort_keys[thread] = ~std::uint64_t{0};
    __syncthreads();
    for (int size = 2; size <= room; size *= 2) {
        for (int distance = size / 2; distance > 0; distance /= 2) {
            const int other = thread ^ distance;
            if (thread < room && other > thread) {
                const std::uint64_t a = shared.sort_keys[thread], b = shared.sort_keys[other];
                if ((a > b) == ((thread & size) == 0)) {
                    shared.sort_keys[thread] = b;
                    shared.sort_keys[other] = a;
                }
            }
            __syncthreads();
        }
    }
    const int told = min(sorted, static_cast<int>(LogitDigest::top_room));
    if (thread < told) {
        const std::uint64_t key = shared.sort_keys[thread];
        const std::uint32_t ascending = ~static_cast<std::uint32_t>(key >> 32);
        digest.top[thread] = {
            __uint_as_float(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending),
            static_cast<std::uint32_t>(key)};
    }
    if (thread == 0) digest.top_count = static_cast<std::uint32_t>(told);
#endif
}

}  // namespace

bool digests_fit(std::size_t vocabulary) {
    return vocabulary < std::size_t{1} << 24 &&
           shared_bytes_of(static_cast<int>(vocabulary)) + sizeof(DigestShared) <=
               most_shared_bytes;
}

Status digest_logits(const LogitDigestion& op, const LaunchContext& context) {
    return launch("launching the digests of logits", digest_kernel,
                  {dim3(row_blocks, op.rows), threads, shared_bytes_of(op.vocabulary), row_blocks},
                  context, op);
}

}  // namespace percheron::ops::cuda
