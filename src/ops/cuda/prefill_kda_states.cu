// The second kernel of a prompt's KDA: two blocks of a cluster take a head's state through a
// sequence's chunks, half of the values each, and finish the rows.
#include <cooperative_groups.h>

#include "ops/cuda/prefill_kda_chunks.cuh"

namespace percheron::ops::cuda {
namespace {

using namespace kda_chunks;

struct Scan {
    std::uint8_t reading[4 * wide_bytes];                     // what the state is read with
    std::uint8_t writing[2 * wide_bytes + 4 * square_bytes];  // K, A and the inverse
    float value[tokens][half_dim];
    float decay[dim];
    std::uint8_t state[2][dim * half_dim * 2];       // in parts, rows of 128 bytes
    std::uint8_t missing[2][tokens * half_dim * 2];  // diag(beta) (V - (K * e^G) S), likewise
    std::uint8_t changed[2][tokens * half_dim * 2];  // V'
    // Of O by rows, of either block and either half of its columns; every other chunk's.
    float squares[2][2][2][tokens];
    std::uint64_t barriers[2];
};

__device__ inline void fetch(void* to, const std::byte* from, int bytes, std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
#endif
}
__device__ inline void expect([[maybe_unused]] std::uint32_t barrier, [[maybe_unused]] int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
#endif
}

// Operand registers of 16 columns of 16 rows; `wide`: rows of 256 bytes.
template <bool wide>
__device__ inline void load_rows(std::uint32_t (&a)[4], const std::uint8_t* matrix, int row,
                                 int column, int lane) {
    const int r = row + lane % 16, piece = column / 8 + lane / 16;
    load_matrices(a, matrix + (wide ? wide_place(r, piece) : square_place(r, piece)));
}

// Of a matrix whose rows are the product's inner index: two tiles of 8 columns.
__device__ inline void load_inner(Parts (&b)[2][2], const std::uint8_t* high,
                                  const std::uint8_t* low, int row, int column, int lane) {
    const int at = square_place(row + lane % 16, column / 8 + lane / 16);
    std::uint32_t h[4], l[4];
    load_matrices_transposed(h, high + at);
    load_matrices_transposed(l, low + at);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        b[i / 2][i % 2] = {h[i], l[i]};
}

// d += a b for 16 rows of a lower triangular matrix, both of its parts one after the other.
__device__ inline void multiply_lower(float (&d)[4][4], const std::uint8_t* a,
                                      const std::uint8_t* b_high, const std::uint8_t* b_low,
                                      int rows, int columns, int lane) {
#pragma unroll 1
    for (int k = 0; k <= rows; k += 16) {
        std::uint32_t high[4], low[4];
        load_rows<false>(high, a, rows, k, lane);
        load_rows<false>(low, a + square_bytes, rows, k, lane);
#pragma unroll
        for (int t = 0; t < 4; t += 2) {
            Parts b[2][2];
            load_inner(b, b_high, b_low, k, columns + t * 8, lane);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                multiply_parts(d[t + i], high, low, b[i][0], b[i][1]);
        }
    }
}

__device__ inline void store_parts(std::uint8_t* high, std::uint8_t* low, int row, int column,
                                   float a, float b) {
    const Parts p = in_parts(a, b);
    const int at = square_place(row, column / 8) + column % 8 * 2;
    *reinterpret_cast<std::uint32_t*>(high + at) = p.high;
    *reinterpret_cast<std::uint32_t*>(low + at) = p.low;
}

// The two blocks of a head.
struct HeadBlocks {
    __device__ static void arrive() {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
    }
    __device__ static void wait() {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
    // The same place in the other block's shared memory.
    __device__ static float* others(float* own, [[maybe_unused]] int half) {
#if __CUDA_ARCH__ >= 900
        return cooperative_groups::this_cluster().map_shared_rank(own, 1 - half);
#else
        return own;
#endif
    }
};

// What finishes O: norm and gate.  A lane has columns t * 8 + 2 q of 32, of rows g and g + 8.
struct Finish {
    float2 weight[4], gate[4][2];

    __device__ void load_weights(const KdaPrompt& prompt, int column) {
#pragma unroll
        for (int t = 0; t < 4; ++t)
            weight[t] = pair_at(prompt.out_norm + column + t * 8);
    }
    // Gates of a chunk: `from` the lane's first column in the first of the rows.
    __device__ void load_gates(const float* from, int stride, int row, int rows) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int t = 0; t < 4; ++t)
                gate[t][r] =
                    row + 8 * r < rows
                        ? pair_at(from + static_cast<std::ptrdiff_t>(row + 8 * r) * stride + t * 8)
                        : make_float2(0, 0);
        }
    }
    // A row's pairs, which are neighbours where rows are ordered.
    __device__ uint4 row(const float (&out)[4][4], int r, float scale) const {
        __nv_bfloat162 pairs[4];
#pragma unroll
        for (int t = 0; t < 4; ++t)
            pairs[t] = __floats2bfloat162_rn(
                out[t][2 * r] * scale * weight[t].x * quick_sigmoid(gate[t][r].x),
                out[t][2 * r + 1] * scale * weight[t].y * quick_sigmoid(gate[t][r].y));
        return *reinterpret_cast<const uint4*>(pairs);
    }
};

// The last rows' projections, for the convolution of the rows behind them: this block's channels.
__device__ inline void keep_history(const KdaPrompt& prompt, const DeviceSequence& sequence,
                                    std::size_t channel) {
    const std::size_t width = static_cast<std::size_t>(prompt.heads) * dim;
    const std::uint32_t kept = min(prompt.slots.ring, sequence.row_count);
    constexpr int pieces = half_dim / 4, row_pieces = 3 * pieces;
    for (int i = threadIdx.x; i < static_cast<int>(kept) * row_pieces; i += threads) {
        const std::uint32_t row = sequence.row_count - kept + i / row_pieces;
        const std::size_t at = i % row_pieces / pieces * width + channel + i % pieces * 4;
        const std::uint32_t position = sequence.first_position + row;
        *reinterpret_cast<float4*>(
            prompt.slots.conv + sequence.slot * prompt.slots.conv_stride +
            static_cast<std::size_t>(position % prompt.slots.ring) * 3 * width + at) =
            *reinterpret_cast<const float4*>(
                prompt.projections +
                static_cast<std::size_t>(sequence.first_row + row) * prompt.projection_stride + at);
    }
}

__global__ void __launch_bounds__(threads, 1)
    states_kernel(const __grid_constant__ KdaPrompt prompt, int first_sequence) {
    extern __shared__ std::uint8_t unaligned[];
    Scan& scan = *reinterpret_cast<Scan*>(unaligned +
                                          (128 - __cvta_generic_to_shared(unaligned) % 128) % 128);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int head = blockIdx.x / 2, half = blockIdx.x % 2;
    const auto barrier = [&](int which) {
        return static_cast<std::uint32_t>(__cvta_generic_to_shared(scan.barriers + which));
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(i)));
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    }
    __syncthreads();
    HeadBlocks::arrive();
    wait_for_previous_kernel();
    let_next_kernel_start();
    HeadBlocks::wait();  // both have started
    int first_chunk = 0;
    for (int s = first_sequence; s < first_sequence + static_cast<int>(blockIdx.y); ++s)
        first_chunk += static_cast<int>((prompt.sequences[s].row_count + tokens - 1) / tokens);
    const DeviceSequence sequence = prompt.sequences[first_sequence + blockIdx.y];
    const int chunks = static_cast<int>((sequence.row_count + tokens - 1) / tokens);
    const std::size_t chunk_stride = static_cast<std::size_t>(prompt.heads) * chunk_bytes;
    const std::byte* const prepared =
        prompt.prepared +
        (static_cast<std::size_t>(first_chunk) * prompt.heads + head) * chunk_bytes;
    const auto fetch_reading = [&](int chunk) {
        expect(barrier(0), 4 * wide_bytes);
        fetch(scan.reading, prepared + chunk * chunk_stride + r_at, 4 * wide_bytes, barrier(0));
    };
    const auto fetch_writing = [&](int chunk) {
        const std::byte* const from = prepared + chunk * chunk_stride;
        expect(barrier(1), static_cast<int>(sizeof scan.writing) + value_bytes + dim * 4);
        fetch(scan.writing, from + k_at, sizeof scan.writing, barrier(1));
        fetch(scan.value, from + v_at + half * value_bytes, value_bytes, barrier(1));
        fetch(scan.decay, from + decay_at, dim * 4, barrier(1));
    };
    if (threadIdx.x == 0) {
        fetch_reading(0);
        fetch_writing(0);
    }

    // A warp has 16 rows (keys) of the state.
    float* const home = prompt.slots.state + sequence.slot * prompt.slots.state_stride +
                        static_cast<std::size_t>(head) * dim * dim + half * half_dim;
    float state[8][4];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = warp * 16 + g + 8 * r, column = t * 8 + 2 * q;
            const float2 v = sequence.state_position == 0 ? make_float2(0, 0)
                                                          : pair_at(home + row * dim + column);
            state[t][2 * r] = v.x, state[t][2 * r + 1] = v.y;
            store_parts(scan.state[0], scan.state[1], row, column, v.x, v.y);
        }
    }
    __syncthreads();

    const int rows = warp % 4 * 16, columns = warp / 4 * 32;  // of this warp's results
    const std::size_t channel = static_cast<std::size_t>(head) * dim + half * half_dim;
    Finish finish;
    finish.load_weights(prompt, half * half_dim + columns + 2 * q);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int here = min(tokens, static_cast<int>(sequence.row_count) - chunk * tokens);
        const std::size_t first_row = static_cast<std::size_t>(sequence.first_row) + chunk * tokens;
        finish.load_gates(prompt.gate + first_row * prompt.gate_stride + channel + columns + 2 * q,
                          prompt.gate_stride, rows + g, here);
        // What the state holds for the keys, and for the queries.
        float changed[4][4] = {}, out[4][4] = {};
        wait_for_barrier(barrier(0), chunk & 1);
#pragma unroll 2
        for (int k = 0; k < dim; k += 16) {
            std::uint32_t r_high[4], r_low[4], q_high[4], q_low[4];
            load_rows<true>(r_high, scan.reading, rows, k, lane);
            load_rows<true>(r_low, scan.reading + wide_bytes, rows, k, lane);
            load_rows<true>(q_high, scan.reading + 2 * wide_bytes, rows, k, lane);
            load_rows<true>(q_low, scan.reading + 3 * wide_bytes, rows, k, lane);
#pragma unroll
            for (int t = 0; t < 4; t += 2) {
                Parts b[2][2];
                load_inner(b, scan.state[0], scan.state[1], k, columns + t * 8, lane);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    multiply_parts(changed[t + i], r_high, r_low, b[i][0], b[i][1]);
                    multiply_parts(out[t + i], q_high, q_low, b[i][0], b[i][1]);
                }
            }
        }
        wait_for_barrier(barrier(1), chunk & 1);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = rows + g + 8 * r, column = columns + t * 8 + 2 * q;
                const float2 v = pair_at(&scan.value[row][column]);
                store_parts(scan.missing[0], scan.missing[1], row, column, v.x - changed[t][2 * r],
                            v.y - changed[t][2 * r + 1]);
                changed[t][2 * r] = changed[t][2 * r + 1] = 0.0f;
            }
        }
        __syncthreads();
        if (threadIdx.x == 0 && chunk + 1 < chunks) fetch_reading(chunk + 1);
        // V': a row depends on no later one.
        const std::uint8_t* const inverse = scan.writing + 2 * wide_bytes + 2 * square_bytes;
        multiply_lower(changed, inverse, scan.missing[0], scan.missing[1], rows, columns, lane);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
            for (int r = 0; r < 2; ++r)
                store_parts(scan.changed[0], scan.changed[1], rows + g + 8 * r,
                            columns + t * 8 + 2 * q, changed[t][2 * r], changed[t][2 * r + 1]);
        }
        __syncthreads();
        // O = (Q * e^G) S + A V'
        multiply_lower(out, scan.writing + 2 * wide_bytes, scan.changed[0], scan.changed[1], rows,
                       columns, lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < 4; ++t)
                sum += out[t][2 * r] * out[t][2 * r] + out[t][2 * r + 1] * out[t][2 * r + 1];
            sum += __shfl_xor_sync(full_warp, sum, 1);
            sum += __shfl_xor_sync(full_warp, sum, 2);
            if (q == 0) {
                float* const own = &scan.squares[chunk % 2][half][warp / 4][rows + g + 8 * r];
                *own = sum;
                *HeadBlocks::others(own, half) = sum;
            }
        }
        HeadBlocks::arrive();
        // S = diag(e^G) S + K^T V'
        const float kept[2] = {scan.decay[warp * 16 + g], scan.decay[warp * 16 + g + 8]};
#pragma unroll
        for (int t = 0; t < 8; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                state[t][i] *= kept[i / 2];
        }
#pragma unroll 2
        for (int k = 0; k < tokens; k += 16) {
            // Keys are stored by token: the operand is their transpose.
            const int at = wide_place(k + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
            std::uint32_t k_high[4], k_low[4];
            load_matrices_transposed(k_high, scan.writing + at);
            load_matrices_transposed(k_low, scan.writing + wide_bytes + at);
#pragma unroll
            for (int t = 0; t < 8; t += 2) {
                Parts b[2][2];
                load_inner(b, scan.changed[0], scan.changed[1], k, t * 8, lane);
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    multiply_parts(state[t + i], k_high, k_low, b[i][0], b[i][1]);
            }
        }
#pragma unroll
        for (int t = 0; t < 8; ++t) {
#pragma unroll
            for (int r = 0; r < 2; ++r)
                store_parts(scan.state[0], scan.state[1], warp * 16 + g + 8 * r, t * 8 + 2 * q,
                            state[t][2 * r], state[t][2 * r + 1]);
        }
        __syncthreads();
        if (threadIdx.x == 0 && chunk + 1 < chunks) fetch_writing(chunk + 1);
        HeadBlocks::wait();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = rows + g + 8 * r;
            const auto& squares = scan.squares[chunk % 2];
            const float all = (squares[0][0][row] + squares[0][1][row]) +
                              (squares[1][0][row] + squares[1][1][row]);
            if (row >= here) continue;
            const std::size_t at = (first_row + row) * prompt.heads * dim + channel + columns;
            if (prompt.mixed != nullptr) {
#pragma unroll
                for (int t = 0; t < 4; ++t)
                    *reinterpret_cast<float2*>(prompt.mixed + at + t * 8 + 2 * q) =
                        make_float2(out[t][2 * r], out[t][2 * r + 1]);
            }
            *reinterpret_cast<uint4*>(prompt.output + at + q * 8) =
                finish.row(out, r, rsqrtf(all / dim + prompt.norm_eps));
        }
    }
    keep_history(prompt, sequence, channel);
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            *reinterpret_cast<float2*>(home + (warp * 16 + g + 8 * r) * dim + t * 8 + 2 * q) =
                make_float2(state[t][2 * r], state[t][2 * r + 1]);
    }
}

}  // namespace

Status launch_kda_states(const KdaPrompt& prompt, int first_sequence, int sequences,
                         const LaunchContext& context) {
    return launch("launching a prompt's KDA states", states_kernel,
                  {dim3(static_cast<unsigned>(2 * prompt.heads), static_cast<unsigned>(sequences)),
                   threads, sizeof(Scan) + 128, 2},
                  context, prompt, first_sequence);
}

}  // namespace percheron::ops::cuda
