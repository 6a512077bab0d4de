#include <algorithm>
#include <type_traits>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kda_step.h"
#include "ops/cuda/weight_prefetch.cuh"

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

// With the gates in place: a head's part of both matrices, a tile of 16 channels a warp, and the
// gates of the chunk's new rows.
struct SharedInPlace : Shared {
    uint4 weights[2][warps][8][32];  // [decay, gate][tile][product][lane], see packed_matrix.h
    float conv[3][dim][taps];
    float dt_bias[dim], out_norm[dim];
    float gates[chunk][dim];
    float rate;
};

template <bool in_place>
using SharedMemory = std::conditional_t<in_place, SharedInPlace, Shared>;

__device__ float4 read4(const float* p) {
    return *reinterpret_cast<const float4*>(p);
}

__device__ float dot4(float4 a, float4 b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

__device__ float4 scaled(float4 a, float s) {
    return make_float4(a.x * s, a.y * s, a.z * s, a.w * s);
}

template <bool in_place>
struct Head {
    const KdaStep& step;
    const DeviceSequence& sequence;
    int head;
    const SharedMemory<in_place>& shared;

    // The head's own weights: global memory, with the gates in place shared memory.
    __device__ const float* conv(int part) const {  // [128][4]
        if constexpr (in_place) return &shared.conv[part][0][0];
        return step.conv + (part * channels() + static_cast<std::size_t>(head) * dim) * taps;
    }
    __device__ const float* dt_bias() const {  // [128]
        if constexpr (in_place) return shared.dt_bias;
        return step.dt_bias + static_cast<std::size_t>(head) * dim;
    }
    __device__ const float* out_norm() const {  // [128]
        if constexpr (in_place) return shared.out_norm;
        return step.out_norm;
    }
    __device__ float rate() const {  // e^a_log
        if constexpr (in_place) return shared.rate;
        return expf(step.a_log[head]);
    }

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

    // Of channels [channel, channel + 4) of one part of this head.
    __device__ float4 convolved(std::uint32_t position, int part, int channel) const {
        const std::size_t column =
            part * channels() + static_cast<std::size_t>(head) * dim + channel;
        float4 past[taps];
#pragma unroll
        for (int j = 0; j < taps; ++j)
            past[j] = raw(position, taps - 1 - j, column);
        float result[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float4 w = read4(conv(part) + (channel + c) * taps);
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
template <bool in_place>
__device__ void prepare_kept(const Head<in_place>& h, std::uint32_t position, Part part, int lane,
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

// g of one channel, from f_b f_a x.
__device__ float log_decay(const KdaStep& step, float rate, float a, float bias) {
    return step.lower_bound * sigmoid(rate * (a + bias));
}

// One part of a row of the step; `keep`: stores it for a later fold.
template <bool in_place>
__device__ void prepare_new(const Head<in_place>& h, std::uint32_t position, bool keep, Part part,
                            int lane, Token& token) {
    constexpr float unit_eps = 1e-6f;
    constexpr float query_scale = 0.08838834764831845f;  // 128^-1/2
    const KdaStep& step = h.step;
    const std::size_t c = static_cast<std::size_t>(h.head) * dim + lane * 4;
    float4 value;
    if (part == decay_part) {
        const std::size_t row = h.sequence.first_row + position - h.sequence.first_position;
        const float4 a = read4(step.decay + row * step.decay_stride + c);
        const float4 bias = read4(h.dt_bias() + lane * 4);
        const float beta = sigmoid(step.beta[row * step.beta_stride + h.head]);
        const float rate = h.rate();
        value = make_float4(log_decay(step, rate, a.x, bias.x), log_decay(step, rate, a.y, bias.y),
                            log_decay(step, rate, a.z, bias.z), log_decay(step, rate, a.w, bias.w));
        if (lane == 0) {
            token.beta = beta;
            if (keep) h.kept_row(position)[3 * h.channels() + h.head] = beta;
        }
    } else {
        value = h.convolved(position, part, lane * 4);
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

// The decay part and beta of the new rows among the chunk's `here` tokens, the first of which is
// the `first`-th to be run, and their gates: 16 channels a warp, the tokens being the product's
// columns.
__device__ void expand_gates(const Head<true>& h, std::uint32_t first, std::uint32_t here,
                             std::uint32_t folded, std::uint32_t saved, SharedInPlace& shared) {
    const KdaStep& step = h.step;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (first + here <= folded) return;
    const std::uint32_t first_new = max(first, folded) - first;
    // Columns without a new row repeat the chunk's first one; their results are not used.
    const std::uint32_t column = static_cast<std::uint32_t>(lane) / 4;
    const std::uint32_t token = column >= first_new && column < here ? column : first_new;
    const std::size_t row = h.sequence.first_row + (first + token - folded);
    float product[2][4] = {};
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        const __nv_bfloat16* const x =
            (part == 0 ? step.decay_rank : step.gate_rank) + row * dim + lane % 4 * 8;
        uint4 b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            b[i] = load_16(x + i * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 w = shared.weights[part][warp][2 * i + half][lane];
                const std::uint32_t a[4] = {w.x, w.y, w.z, w.w};
                multiply_add(product[part], a, half == 0 ? b[i].x : b[i].z,
                             half == 0 ? b[i].y : b[i].w);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const std::uint32_t own = lane % 4 * 2 + i % 2;
        const int channel = warp * 16 + lane / 4 + 8 * (i / 2);
        if (own < first_new || own >= here) continue;
        const std::size_t c = static_cast<std::size_t>(h.head) * dim + channel;
        const float g = log_decay(step, h.rate(), product[0][i], h.dt_bias()[channel]);
        if (first + own >= saved)
            h.kept_row(h.sequence.state_position + first + own)[2 * h.channels() + c] = g;
        shared.tokens[own].values[decay_part][channel] = expf(g);
        shared.gates[own][channel] = product[1][i];
    }
    if (threadIdx.x >= first_new && threadIdx.x < here) {
        const std::uint32_t own = threadIdx.x;
        const std::size_t own_row = h.sequence.first_row + (first + own - folded);
        const float beta = sigmoid(step.beta[own_row * step.beta_stride + h.head]);
        shared.tokens[own].beta = beta;
        if (first + own >= saved)
            h.kept_row(h.sequence.state_position + first + own)[3 * h.channels() + h.head] = beta;
    }
}

// One row's output of a head: normalised over its 128 values, gated, rounded.
template <bool in_place>
__device__ void write_output(const Head<in_place>& h, std::size_t row, const float* out,
                             float4 gate, int lane) {
    const KdaStep& step = h.step;
    const std::size_t c = static_cast<std::size_t>(h.head) * dim + lane * 4;
    const float4 o = read4(out + lane * 4);
    const float scale = 1.0f / sqrtf(warp_sum(dot4(o, o)) / dim + step.norm_eps);
    const float4 weight = read4(h.out_norm() + lane * 4);
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

template <bool in_place>
__device__ void run_head(const Head<in_place>& h, float (&state)[lane_keys][4],
                         SharedMemory<in_place>& shared) {
    const DeviceSequence& sequence = h.sequence;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const std::uint32_t folded = sequence.first_position - sequence.state_position;
    const std::uint32_t count = folded + sequence.row_count;
    const std::uint32_t saved = folded + sequence.commit_rows;
    float* const home = state_home(h.step, sequence, h.head);
    for (std::uint32_t first = 0; first < count; first += chunk) {
        const std::uint32_t here = min(count - first, static_cast<std::uint32_t>(chunk));
        if constexpr (in_place) expand_gates(h, first, here, folded, saved, shared);
        for (std::uint32_t task = warp; task < here * part_count; task += warps) {
            const std::uint32_t own = first + task / part_count;
            const std::uint32_t position = sequence.state_position + own;
            const auto part = static_cast<Part>(task % part_count);
            Token& token = shared.tokens[task / part_count];
            if (own < folded)
                prepare_kept(h, position, part, lane, token);
            else if (!in_place || part != decay_part)
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
            if (first + i < folded) continue;
            const std::size_t row = sequence.first_row + first + i - folded;
            float4 gate;
            if constexpr (in_place)
                gate = read4(shared.gates[i] + lane * 4);
            else
                gate = read4(h.step.gate + row * h.step.gate_stride +
                             static_cast<std::size_t>(h.head) * dim + lane * 4);
            write_output(h, row, shared.outputs[i], gate, lane);
        }
        // The next chunk's gates overwrite these.
        if constexpr (in_place) __syncthreads();
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

template <bool in_place>
__global__ void __launch_bounds__(threads, in_place ? 1 : blocks_per_multiprocessor)
    kda_step_kernel(const __grid_constant__ KdaStep step) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SharedMemory<in_place>*>(memory);
    const int items = step.heads * step.sequence_count;
    if constexpr (in_place) {
        if (static_cast<int>(blockIdx.x) >= items) {
            wait_for_previous_kernel();
            let_next_kernel_start();
            ask_for(
                step.ahead,
                (static_cast<int>(blockIdx.x) - items) * threads + static_cast<int>(threadIdx.x),
                (static_cast<int>(gridDim.x) - items) * threads);
            return;
        }
    }
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
    const int thread = threadIdx.x;
    const int first_head = static_cast<int>(blockIdx.x) % step.heads;
    const auto conv_of = [&](int part, int head) {
        return step.conv + (static_cast<std::size_t>(part) * step.heads + head) * dim * taps;
    };
    // Small pieces, each of which would be waited for behind the previous kernel.
    DeviceSequence sequence = {};
    if constexpr (in_place) {
        constexpr int pieces = warps * 8 * 32, conv_pieces = dim * taps / 4, row_pieces = dim / 4;
        const std::size_t home =
            static_cast<std::size_t>(first_head) * warps * block_bytes(WeightFormat::bf16);
        for (int i = thread; i < 2 * pieces; i += threads)
            copy_16_async(&shared.weights[0][0][0][0] + i,
                          (i < pieces ? step.decay_weight : step.gate_weight).data + home +
                              static_cast<std::size_t>(i % pieces) * 16);
        for (int i = thread; i < 3 * conv_pieces; i += threads)
            copy_16_async(&shared.conv[0][0][0] + i * 4,
                          conv_of(i / conv_pieces, first_head) + i % conv_pieces * 4);
        if (thread < row_pieces)
            copy_16_async(shared.dt_bias + thread * 4,
                          step.dt_bias + first_head * dim + thread * 4);
        else if (thread < 2 * row_pieces)
            copy_16_async(shared.out_norm + (thread - row_pieces) * 4,
                          step.out_norm + (thread - row_pieces) * 4);
        end_copy_group();
        if (thread == 0) shared.rate = expf(step.a_log[first_head]);
        sequence = step.sequences[blockIdx.x / step.heads];
        // History and kept rows, which earlier steps wrote; four threads have the lines of a part.
        const Head<true> h{step, sequence, first_head, shared};
        const std::size_t column = static_cast<std::size_t>(first_head) * dim;
        const std::uint32_t history = min(sequence.first_position, taps - 1u);
        const std::uint32_t folded = sequence.first_position - sequence.state_position;
        for (std::uint32_t i = thread / 4; i < 3 * (history + folded); i += threads / 4) {
            const std::uint32_t back = i / 3, part = i % 3;
            const float* const row =
                back < history
                    ? h.ring_row(sequence.first_position - 1 - back) + part * h.channels()
                    : h.kept_row(sequence.state_position + back - history) + part * h.channels();
            prefetch(row + column, dim * 4, thread % 4, 4);
        }
    } else if (static_cast<int>(blockIdx.x) < items) {
        for (int part = 0; part < 3; ++part)
            prefetch(conv_of(part, first_head), dim * taps * 4, thread - part * 32, threads);
        prefetch(step.dt_bias + first_head * dim, dim * 4, thread - 128, threads);
        prefetch(step.out_norm, dim * 4, thread - 160, threads);
        prefetch(step.a_log + first_head, 4, thread - 192, threads);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int head = item % step.heads;
        if constexpr (!in_place) sequence = step.sequences[item / step.heads];
        float state[lane_keys][4];
        wait_for_copies<0>();
#pragma unroll
        for (int i = 0; i < lane_keys; ++i) {
            const float4 row = shared.next_state[i][threadIdx.x];
            state[i][0] = row.x, state[i][1] = row.y, state[i][2] = row.z, state[i][3] = row.w;
        }
        if constexpr (in_place)
            __syncthreads();  // what others copied
        else
            fetch(item + gridDim.x);
        run_head(Head<in_place>{step, sequence, head, shared}, state, shared);
    }
}

}  // namespace

bool gates_in_place(int heads, int sequences, const PackedMatrix& decay_weight,
                    const PackedMatrix& gate_weight, const LaunchContext& context) {
    const auto suits = [&](const PackedMatrix& weight) {
        return weight.format == WeightFormat::bf16 && weight.k == dim && weight.n == heads * dim;
    };
    return heads * sequences <= context.multiprocessors && suits(decay_weight) &&
           suits(gate_weight);
}

Status kda_step(const KdaStep& step, const LaunchContext& context) {
    if (step.sequence_count == 0) return {};
    if (step.slots.state_stride % 4 != 0 || step.slots.conv_stride % 4 != 0 ||
        step.projection_stride % 4 != 0 || step.decay_stride % 4 != 0 || step.gate_stride % 4 != 0)
        return Error(ErrorCode::invalid_argument,
                     "the KDA step needs its strides in multiples of 4 floats");
    const int items = step.heads * step.sequence_count;
    if (step.decay_rank != nullptr) {
        if (!gates_in_place(step.heads, step.sequence_count, step.decay_weight, step.gate_weight,
                            context))
            return Error(ErrorCode::invalid_argument,
                         "the KDA step expands its gates only for a few sequences and from bf16");
        int helpers = 0;
        for (int i = 0; i < step.ahead.count; ++i)
            helpers = std::max(helpers, (step.ahead.pieces(i) + threads - 1) / threads);
        return launch("launching the KDA step", kda_step_kernel<true>,
                      {dim3(items + helpers), threads, sizeof(SharedInPlace)}, context, step);
    }
    return launch("launching the KDA step", kda_step_kernel<false>,
                  {dim3(std::min(items, context.multiprocessors * blocks_per_multiprocessor)),
                   threads, sizeof(Shared)},
                  context, step);
}

}  // namespace percheron::ops::cuda
