// What the kernels of the hyper-connection turn share: the same sums in the same order, so that a
// row's bits do not depend on which of them had it.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/cuda/mhc_turn.h"
#include "ops/cuda/stream_mixing.cuh"

namespace percheron::ops::cuda {

// The turn of many rows, as two kernels, and whether they take it (mhc_turn_rows.cu).
bool turns_by_rows(const HyperConnectionTurn& turn);
Status turn_by_rows(const HyperConnectionTurn& turn, const LaunchContext& context);

namespace {

constexpr int streams = mixed_streams;
constexpr int gates = mixed_gates;
// A row's channels are cut into so many parts, and a part's pieces of four channels go around so
// many warps.
constexpr int row_cuts = 8;
constexpr int warps = 8;
constexpr int threads = warps * 32;
constexpr int warp_gates = gates / warps;

// The sum of what all warps of all parts found, in order.
__device__ float sum_of_squares(const float (&parts)[row_cuts][warps]) {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < row_cuts; ++part) {
        const float4 low = *reinterpret_cast<const float4*>(parts[part]);
        const float4 high = *reinterpret_cast<const float4*>(parts[part] + 4);
        sum += ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
    }
    return sum;
}

__device__ float with_squares(float sum, float4 v) {
    return sum + fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x)));
}

// What a row's experts gave of four channels, as sum_of_pairs() adds it up, but with the reads of
// up to eight experts on their way together: left to itself the compiler waits for one after the
// other.
__device__ float4 pairs_together(const ExpertPairs& pairs, std::size_t row, int hidden,
                                 int channel) {
    constexpr int together = 8;
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int first = 0; first < pairs.chosen; first += together) {
        float weight[together];
        uint4 output[together];
#pragma unroll
        for (int j = 0; j < together; ++j) {
            const std::size_t pair = row * pairs.chosen + min(first + j, pairs.chosen - 1);
            weight[j] = pairs.weights[pair];
            output[j] = load_16(pairs.output + pair * hidden + channel);
        }
#pragma unroll
        for (int j = 0; j < together; ++j) {
            // Chosen, not branched to: a branch would have the reads behind it.
            const bool there = first + j < pairs.chosen;
            const float x = fmaf(weight[j], __uint_as_float(output[j].x), total.x);
            const float y = fmaf(weight[j], __uint_as_float(output[j].y), total.y);
            const float z = fmaf(weight[j], __uint_as_float(output[j].z), total.z);
            const float w = fmaf(weight[j], __uint_as_float(output[j].w), total.w);
            total = make_float4(there ? x : total.x, there ? y : total.y, there ? z : total.z,
                                there ? w : total.w);
        }
    }
    return total;
}

// X'_j = post_j y + sum_a comb[a, j] X_a for four channels of all streams, `channel` the first, in
// place in turn.streams; and the tap.
__device__ void update_streams(const HyperConnectionTurn& turn, int row, int channel,
                               float4 (&value)[streams]) {
    const int hidden = turn.hidden;
    float* const x = turn.streams + static_cast<std::size_t>(row) * streams * hidden + channel;
    const std::size_t out_at = static_cast<std::size_t>(row) * hidden + channel;
#pragma unroll
    for (int a = 0; a < streams; ++a)
        value[a] = *reinterpret_cast<const float4*>(x + a * hidden);
    if (turn.output != nullptr) {
        // Everything is asked for before anything is waited for.
        float4 y = *reinterpret_cast<const float4*>(turn.output + out_at);
        float post[streams], comb[streams * streams];
#pragma unroll
        for (int j = 0; j < streams; ++j)
            post[j] = turn.post[row * streams + j];
#pragma unroll
        for (int i = 0; i < streams * streams; ++i)
            comb[i] = turn.comb[row * streams * streams + i];
        if (turn.pairs.chosen > 0) {
            const float4 pairs = pairs_together(turn.pairs, row, hidden, channel);
            y = make_float4(pairs.x + y.x, pairs.y + y.y, pairs.z + y.z, pairs.w + y.w);
        }
        float4 next[streams];
#pragma unroll
        for (int j = 0; j < streams; ++j) {
            next[j] = scaled_sum(make_float4(0, 0, 0, 0), post[j], y);
#pragma unroll
            for (int a = 0; a < streams; ++a)
                next[j] = scaled_sum(next[j], comb[a * streams + j], value[a]);
        }
#pragma unroll
        for (int j = 0; j < streams; ++j) {
            value[j] = next[j];
            *reinterpret_cast<float4*>(x + j * hidden) = next[j];
        }
    }
    if (turn.tap != nullptr) {
        float4 mean = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < streams; ++j)
            mean = scaled_sum(mean, 1.0f / streams, value[j]);
        *reinterpret_cast<float4*>(turn.tap + out_at) = mean;
    }
}

// sum += fn f of four channels.
__device__ float with_product(float sum, uint2 w, float4 f) {
    sum = fmaf(bf16_low(w.x), f.x, sum);
    sum = fmaf(bf16_high(w.x), f.y, sum);
    sum = fmaf(bf16_low(w.y), f.z, sum);
    return fmaf(bf16_high(w.y), f.w, sum);
}

// A gate's logit from fn f of all parts.
__device__ float normalised_mix(const HyperConnectionTurn& turn,
                                const float (&mixes)[row_cuts][gates], int gate, float squares) {
    float mix = 0.0f;
#pragma unroll
    for (int part = 0; part < row_cuts; ++part)
        mix += mixes[part][gate];
    return mix * (1.0f / sqrtf(squares / static_cast<float>(streams * turn.hidden) + turn.rms_eps));
}

// The same channels of the next input, u times its norm, as products and others read it.
__device__ void write_normed(const HyperConnectionTurn& turn, int row, int channel, float4 u,
                             float scale, float4 norm) {
    const std::size_t out_at = static_cast<std::size_t>(row) * turn.hidden + channel;
    const float4 v = make_float4(u.x * scale * norm.x, u.y * scale * norm.y, u.z * scale * norm.z,
                                 u.w * scale * norm.w);
    write_parts(v, turn.normed + static_cast<std::size_t>(row) * row_parts * turn.hidden + channel,
                turn.hidden, turn.raised == nullptr ? nullptr : turn.raised + out_at);
    if (turn.normed_wide != nullptr) *reinterpret_cast<float4*>(turn.normed_wide + out_at) = v;
}

}  // namespace
}  // namespace percheron::ops::cuda
