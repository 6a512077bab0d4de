#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kda_step.h"

namespace percheron::ops::cuda {
namespace {

constexpr int dim = 128;
constexpr int taps = 4;
constexpr int warps = 8;
constexpr int threads = warps * 32;
// Tokens whose keys, decays, queries and values wait in shared memory at a time.
constexpr int chunk = 8;
// Of the state's 128x128 values a warp owns 16 columns, a lane 4 columns of 16 rows.
constexpr int lane_keys = 16;
// A block works on one head of one sequence at a time, in registers, while the state of its next
// one arrives in shared memory.
constexpr int blocks_per_multiprocessor = 2;

// What the recurrence needs of one token, prepared by one warp a part.
enum Part { query_part, key_part, value_part, decay_part, part_count };
struct alignas(16) Token {
    float values[part_count][dim];  // the decay part holds e^g
    float beta;
};

struct Shared {
    float4 next_state[lane_keys][threads];  // every thread's own pieces
    Token tokens[chunk];
    float outputs[chunk][dim];
};

__device__ float4 read4(const float* p) {
    return *reinterpret_cast<const float4*>(p);
}

__device__ float dot4(float4 a, float4 b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

__device__ float4 scaled(float4 a, float s) {
    return make_float4(a.x * s, a.y * s, a.z * s, a.w * s);
}

struct Head {
    const KdaStep& step;
    const DeviceSequence& sequence;
    int head;

    __device__ std::size_t channels() const { return static_cast<std::size_t>(step.heads) * dim; }

    __device__ float* ring_row(std::uint32_t position) const {
        return step.slots.conv + sequence.slot * step.slots.conv_stride +
               static_cast<std::size_t>(position % step.slots.ring) * 3 * channels();
    }
    __device__ float* kept_row(std::uint32_t position) const {
        return step.slots.kept + sequence.slot * step.slots.kept_stride +
               (position % step.slots.ring) * kda_kept_row(step.heads, dim);
    }
    __device__ const float* projection(std::uint32_t position) const {
        return step.projections +
               static_cast<std::size_t>(sequence.first_row + position - sequence.first_position) *
                   step.projection_stride;
    }

    // Channels [channel, channel + 4) of the convolution's input at `position` - back.
    __device__ float4 raw(std::uint32_t position, std::uint32_t back, std::size_t channel) const {
        if (back > position) return make_float4(0, 0, 0, 0);
        const std::uint32_t source = position - back;
        const float* row =
            source >= sequence.first_position ? projection(source) : ring_row(source);
        return read4(row + channel);
    }

    __device__ float4 convolved(std::uint32_t position, std::size_t channel) const {
        float4 past[taps];
#pragma unroll
        for (int j = 0; j < taps; ++j)
            past[j] = raw(position, taps - 1 - j, channel);
        float result[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float4 w = read4(step.conv + (channel + c) * taps);
            const auto of = [&](int j) {
                return c == 0 ? past[j].x : c == 1 ? past[j].y : c == 2 ? past[j].z : past[j].w;
            };
            const float z = fmaf(w.w, of(3), fmaf(w.z, of(2), fmaf(w.y, of(1), w.x * of(0))));
            result[c] = z * sigmoid(z);
        }
        return make_float4(result[0], result[1], result[2], result[3]);
    }
};

__device__ float4 read4_unaligned(const float* p) {
    return make_float4(p[0], p[1], p[2], p[3]);
}

__device__ void write4_unaligned(float* p, float4 v) {
    p[0] = v.x, p[1] = v.y, p[2] = v.z, p[3] = v.w;
}

// e^g, from g: the one place where a folded and a new row meet.
__device__ float4 decay_of(float4 g) {
    return make_float4(expf(g.x), expf(g.y), expf(g.z), expf(g.w));
}

// Index of a part in a kept row: keys, values, decays.
__device__ std::size_t kept_part(Part part) {
    return part == key_part ? 0 : part == value_part ? 1 : 2;
}

// One part of a kept row, as it was stored.
__device__ void prepare_kept(const Head& h, std::uint32_t position, Part part, int lane,
                             Token& token) {
    float4 value = make_float4(0, 0, 0, 0);
    const float* const row = h.kept_row(position);
    if (part != query_part) {
        value = read4_unaligned(row + kept_part(part) * h.channels() +
                                static_cast<std::size_t>(h.head) * dim + lane * 4);
        if (part == decay_part) {
            value = decay_of(value);
            if (lane == 0) token.beta = row[3 * h.channels() + h.head];
        }
    }
    *reinterpret_cast<float4*>(token.values[part] + lane * 4) = value;
}

// One part of a row of the step; `keep`: stores it for a later fold.
__device__ void prepare_new(const Head& h, std::uint32_t position, bool keep, Part part, int lane,
                            Token& token) {
    constexpr float unit_eps = 1e-6f;
    constexpr float query_scale = 0.08838834764831845f;  // 128^-1/2
    const KdaStep& step = h.step;
    const std::size_t c = static_cast<std::size_t>(h.head) * dim + lane * 4;
    float4 value;
    if (part == decay_part) {
        const std::size_t row = h.sequence.first_row + position - h.sequence.first_position;
        const float4 a = read4(step.decay + row * step.decay_stride + c);
        const float4 bias = read4(step.dt_bias + c);
        const float beta = sigmoid(step.beta[row * step.beta_stride + h.head]);
        const float rate = expf(step.a_log[h.head]);
        value = make_float4(step.lower_bound * sigmoid(rate * (a.x + bias.x)),
                            step.lower_bound * sigmoid(rate * (a.y + bias.y)),
                            step.lower_bound * sigmoid(rate * (a.z + bias.z)),
                            step.lower_bound * sigmoid(rate * (a.w + bias.w)));
        if (lane == 0) {
            token.beta = beta;
            if (keep) h.kept_row(position)[3 * h.channels() + h.head] = beta;
        }
    } else {
        value = h.convolved(position, part * h.channels() + c);
        if (part != value_part) {
            const float norm = sqrtf(warp_sum(dot4(value, value)) + unit_eps);
            value = scaled(value, (part == query_part ? query_scale : 1.0f) / norm);
        }
    }
    if (keep && part != query_part)
        write4_unaligned(h.kept_row(position) + kept_part(part) * h.channels() + c, value);
    if (part == decay_part) value = decay_of(value);
    *reinterpret_cast<float4*>(token.values[part] + lane * 4) = value;
}

// One token of the recurrence on this lane's part of the state; returns o of its four columns.
//   d = S' k,  e = S' q  with S' the decayed state;  delta = beta (v - d)
//   S = S' + k delta,  o = e + (k q) delta
// The eight lanes of a column's keys sum their parts in a fixed order.
__device__ float4 advance(float (&state)[lane_keys][4], const Token& token, int first_key,
                          int first_column) {
    float d[4] = {}, e[4] = {}, kq = 0.0f;
#pragma unroll
    for (int i = 0; i < lane_keys; i += 4) {
        const float4 decay = read4(token.values[decay_part] + first_key + i);
        const float4 key = read4(token.values[key_part] + first_key + i);
        const float4 query = read4(token.values[query_part] + first_key + i);
        const float decays[4] = {decay.x, decay.y, decay.z, decay.w};
        const float keys[4] = {key.x, key.y, key.z, key.w};
        const float queries[4] = {query.x, query.y, query.z, query.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            kq = fmaf(keys[j], queries[j], kq);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                state[i + j][c] *= decays[j];
                d[c] = fmaf(state[i + j][c], keys[j], d[c]);
                e[c] = fmaf(state[i + j][c], queries[j], e[c]);
            }
        }
    }
#pragma unroll
    for (int offset = 4; offset <= 16; offset *= 2) {
        kq += __shfl_xor_sync(full_warp, kq, offset);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            d[c] += __shfl_xor_sync(full_warp, d[c], offset);
            e[c] += __shfl_xor_sync(full_warp, e[c], offset);
        }
    }
    const float4 value = read4(token.values[value_part] + first_column);
    const float delta[4] = {token.beta * (value.x - d[0]), token.beta * (value.y - d[1]),
                            token.beta * (value.z - d[2]), token.beta * (value.w - d[3])};
#pragma unroll
    for (int i = 0; i < lane_keys; i += 4) {
        const float4 key = read4(token.values[key_part] + first_key + i);
        const float keys[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c)
                state[i + j][c] = fmaf(keys[j], delta[c], state[i + j][c]);
        }
    }
    return make_float4(fmaf(kq, delta[0], e[0]), fmaf(kq, delta[1], e[1]), fmaf(kq, delta[2], e[2]),
                       fmaf(kq, delta[3], e[3]));
}

// One row's output of a head: normalised over its 128 values, gated, rounded.
__device__ void write_output(const Head& h, std::size_t row, const float* out, int lane) {
    const KdaStep& step = h.step;
    const std::size_t c = static_cast<std::size_t>(h.head) * dim + lane * 4;
    const float4 o = read4(out + lane * 4);
    const float scale = 1.0f / sqrtf(warp_sum(dot4(o, o)) / dim + step.norm_eps);
    const float4 weight = read4(step.out_norm + lane * 4);
    const float4 gate = read4(step.gate + row * step.gate_stride + c);
    __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(o.x * scale * weight.x * sigmoid(gate.x),
                                                    o.y * scale * weight.y * sigmoid(gate.y)),
                              __floats2bfloat162_rn(o.z * scale * weight.z * sigmoid(gate.z),
                                                    o.w * scale * weight.w * sigmoid(gate.w))};
    *reinterpret_cast<uint2*>(step.output + row * h.channels() + c) =
        *reinterpret_cast<const uint2*>(pair);
}

// This thread's first value of a head's state in its slot.
__device__ float* state_home(const KdaStep& step, const DeviceSequence& sequence, int head) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return step.slots.state + sequence.slot * step.slots.state_stride +
           static_cast<std::size_t>(head) * dim * dim + (lane / 4) * lane_keys * dim + warp * 16 +
           (lane % 4) * 4;
}

__device__ void run_head(const Head& h, float (&state)[lane_keys][4], Shared& shared) {
    const DeviceSequence& sequence = h.sequence;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const std::uint32_t folded = sequence.first_position - sequence.state_position;
    const std::uint32_t count = folded + sequence.row_count;
    const std::uint32_t saved = folded + sequence.commit_rows;
    float* const home = state_home(h.step, sequence, h.head);
    for (std::uint32_t first = 0; first < count; first += chunk) {
        const std::uint32_t here = min(count - first, static_cast<std::uint32_t>(chunk));
        for (std::uint32_t task = warp; task < here * part_count; task += warps) {
            const std::uint32_t own = first + task / part_count;
            const std::uint32_t position = sequence.state_position + own;
            const auto part = static_cast<Part>(task % part_count);
            Token& token = shared.tokens[task / part_count];
            if (own < folded)
                prepare_kept(h, position, part, lane, token);
            else
                prepare_new(h, position, own >= saved, part, lane, token);
        }
        __syncthreads();
        for (std::uint32_t i = 0; i < here; ++i) {
            const int first_column = warp * 16 + (lane % 4) * 4;
            const float4 o = advance(state, shared.tokens[i], (lane / 4) * lane_keys, first_column);
            if (lane < 4) *reinterpret_cast<float4*>(&shared.outputs[i][first_column]) = o;
            if (first + i + 1 == saved) {
#pragma unroll
                for (int k = 0; k < lane_keys; ++k)
                    *reinterpret_cast<float4*>(home + k * dim) =
                        make_float4(state[k][0], state[k][1], state[k][2], state[k][3]);
            }
        }
        __syncthreads();
        for (std::uint32_t i = warp; i < here; i += warps) {
            if (first + i >= folded)
                write_output(h, sequence.first_row + first + i - folded, shared.outputs[i], lane);
        }
    }

    // The raw projections of the last rows become history, after all history has been read.
    const std::uint32_t stored = min(sequence.row_count, h.step.slots.ring);
    for (std::uint32_t task = warp; task < stored * 3; task += warps) {
        const std::uint32_t position =
            sequence.first_position + sequence.row_count - stored + task / 3;
        const std::size_t c = task % 3 * h.channels() + h.head * dim + lane * 4;
        *reinterpret_cast<float4*>(h.ring_row(position) + c) = read4(h.projection(position) + c);
    }
}

__global__ void __launch_bounds__(threads, blocks_per_multiprocessor)
    kda_step_kernel(const __grid_constant__ KdaStep step) {
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int items = step.heads * step.sequence_count;
    // The state was written by an earlier step, so it may be read before the previous kernel ends.
    const auto fetch = [&](int item) {
        if (item < items) {
            const DeviceSequence& sequence = step.sequences[item / step.heads];
            const float* const home = state_home(step, sequence, item % step.heads);
            if (sequence.state_position > 0) {
#pragma unroll
                for (int i = 0; i < lane_keys; ++i)
                    copy_16_async(&shared.next_state[i][threadIdx.x], home + i * dim);
            } else {
#pragma unroll
                for (int i = 0; i < lane_keys; ++i)
                    shared.next_state[i][threadIdx.x] = make_float4(0, 0, 0, 0);
            }
        }
        end_copy_group();
    };
    fetch(blockIdx.x);
    // The head's weights, small pieces that would each be waited for.
    if (static_cast<int>(blockIdx.x) < items) {
        const int head = static_cast<int>(blockIdx.x) % step.heads, thread = threadIdx.x;
        for (int part = 0; part < 3; ++part)
            prefetch(step.conv + (static_cast<std::size_t>(part) * step.heads + head) * dim * taps,
                     dim * taps * 4, thread - part * 32, threads);
        prefetch(step.dt_bias + head * dim, dim * 4, thread - 128, threads);
        prefetch(step.out_norm, dim * 4, thread - 160, threads);
        prefetch(step.a_log + head, 4, thread - 192, threads);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const DeviceSequence sequence = step.sequences[item / step.heads];
        float state[lane_keys][4];
        wait_for_copies<0>();
#pragma unroll
        for (int i = 0; i < lane_keys; ++i) {
            const float4 row = shared.next_state[i][threadIdx.x];
            state[i][0] = row.x, state[i][1] = row.y, state[i][2] = row.z, state[i][3] = row.w;
        }
        fetch(item + gridDim.x);
        run_head(Head{step, sequence, item % step.heads}, state, shared);
    }
}

}  // namespace

Status kda_step(const KdaStep& step, const LaunchContext& context) {
    if (step.sequence_count == 0) return {};
    if (step.slots.state_stride % 4 != 0 || step.slots.conv_stride % 4 != 0 ||
        step.projection_stride % 4 != 0 || step.decay_stride % 4 != 0 || step.gate_stride % 4 != 0)
        return Error(ErrorCode::invalid_argument,
                     "the KDA step needs its strides in multiples of 4 floats");
    const int items = step.heads * step.sequence_count;
    return launch("launching the KDA step", kda_step_kernel,
                  {dim3(std::min(items, context.multiprocessors * blocks_per_multiprocessor)),
                   threads, sizeof(Shared)},
                  context, step);
}

}  // namespace percheron::ops::cuda
