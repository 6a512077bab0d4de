// The second kernel of a prompt's KDA: two blocks of a cluster take a head's state through a
// sequence's chunks, half of the values each, and finish the rows.  Of a block's two groups of four
// warps the first has what the state holds for the keys and what changes of it, the second what it
// holds for the queries and the rows; each has half of the state's keys.
#include "ops/cuda/prefill_kda_chunks.cuh"
#include "ops/cuda/shared_products.cuh"
#include "ops/cuda/shared_rings.cuh"

namespace percheron::ops::cuda {
namespace {

using namespace kda_chunks;

struct Scan {
    std::uint8_t reading[4 * wide_bytes];                     // what the state is read with
    std::uint8_t writing[2 * wide_bytes + 4 * square_bytes];  // K, A and the inverse
    std::uint8_t state[2][2 * square_bytes];                  // in parts
    std::uint8_t missing[2][square_bytes];  // diag(beta) (V - (K * e^G) S), likewise
    std::uint8_t changed[2][square_bytes];  // V'
    float value[tokens][half_dim];
    float decay[dim];
    float squares[2][2][tokens];  // of O by rows, of either block; every other chunk's
    std::uint64_t read_there, write_there, squares_there[2];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A matrix in two parts, as products find it.
struct Operand {
    std::uint64_t high, low;

    __device__ Operand at(int sixteens) const { return {high + sixteens, low + sixteens}; }
};
// The rows' columns are the inner index: 16 of them are two pieces.
__device__ inline Operand operand_rows(const std::uint8_t* matrix, int part_bytes) {
    return {swizzled_rows(address_of(matrix)), swizzled_rows(address_of(matrix + part_bytes))};
}
// The rows are: 16 of them are 128 pieces.
__device__ inline Operand operand_columns(const std::uint8_t* matrix, int part_bytes) {
    return {swizzled_columns(address_of(matrix), square_bytes),
            swizzled_columns(address_of(matrix + part_bytes), square_bytes)};
}
constexpr int step_of_rows = 2, step_of_columns = 128, box = square_bytes / 16;
constexpr int group_threads = threads / 2;

// d (+)= a b over 16 of the inner index, all but the product of the second parts.
template <bool a_columns>
__device__ inline void multiply_step(float (&d)[32], Operand a, Operand b, int adds) {
    multiply_shared_columns_64<a_columns>(d, a.low, b.high, adds);
    multiply_shared_columns_64<a_columns>(d, a.high, b.low, 1);
    multiply_shared_columns_64<a_columns>(d, a.high, b.high, 1);
}

__device__ inline void fetch(void* to, const std::byte* from, int bytes, std::uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(address_of(to)),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

// A lane's share of 64 columns of rows `row` and `row` + 8, as products leave it.
__device__ inline void store_parts(std::uint8_t* high, std::uint8_t* low, const float (&d)[32],
                                   int row, int q) {
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const Parts p = in_parts(d[4 * t + 2 * r], d[4 * t + 2 * r + 1]);
            const int at = square_place(row + 8 * r, t) + q * 4;
            *reinterpret_cast<std::uint32_t*>(high + at) = p.high;
            *reinterpret_cast<std::uint32_t*>(low + at) = p.low;
        }
    }
}

// The two blocks of a head.
struct HeadBlocks {
    __device__ static void arrive() {
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    }
    __device__ static void wait() {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
    // To the same place in the other block's shared memory, whose barrier counts the bytes.
    __device__ static void send(float value, float* own, std::uint64_t* barrier, int half) {
        std::uint32_t to, at;
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(to)
            : "r"(address_of(own)), "r"(1 - half));
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(at)
            : "r"(address_of(barrier)), "r"(1 - half));
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                to),
            "r"(__float_as_uint(value)), "r"(at)
            : "memory");
    }
};

// What finishes O: norm and gate.  A lane has columns t * 8 + 2 q of 64, of rows g and g + 8.
struct Finish {
    float2 weight[8], gate[8][2];

    __device__ void load_weights(const KdaPrompt& prompt, int column) {
#pragma unroll
        for (int t = 0; t < 8; ++t)
            weight[t] = pair_at(prompt.out_norm + column + t * 8);
    }
    // Gates of a chunk: `from` the lane's first column in the first of the rows.
    __device__ void load_gates(const float* from, int stride, int row, int rows) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int t = 0; t < 8; ++t)
                gate[t][r] =
                    row + 8 * r < rows
                        ? pair_at(from + static_cast<std::ptrdiff_t>(row + 8 * r) * stride + t * 8)
                        : make_float2(0, 0);
        }
    }
    // A row's pairs in 32 columns, which are neighbours where rows are ordered.
    __device__ uint4 row(const float (&out)[32], int r, int first, float scale) const {
        __nv_bfloat162 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int t = first + i;
            pairs[i] = __floats2bfloat162_rn(
                out[4 * t + 2 * r] * scale * weight[t].x * quick_sigmoid(gate[t][r].x),
                out[4 * t + 2 * r + 1] * scale * weight[t].y * quick_sigmoid(gate[t][r].y));
        }
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

__device__ inline void scan_chunks(const KdaPrompt& prompt, const DeviceSequence& sequence,
                                   const std::byte* prepared, Scan& scan) {
    const int group = __shfl_sync(full_warp, static_cast<int>(threadIdx.x) / group_threads, 0);
    const int lane = threadIdx.x % 32, q = lane % 4;
    // Of this lane's results in 64 rows, and eight further.
    const int row = static_cast<int>(threadIdx.x) % group_threads / 32 * 16 + lane / 4;
    const int head = blockIdx.x / 2, half = blockIdx.x % 2;
    const int chunks = static_cast<int>((sequence.row_count + tokens - 1) / tokens);
    const std::size_t chunk_stride = static_cast<std::size_t>(prompt.heads) * chunk_bytes;
    const std::uint32_t read_there = address_of(&scan.read_there);
    const std::uint32_t write_there = address_of(&scan.write_there);
    const auto fetch_reading = [&](int chunk) {
        expect_copies(read_there, 4 * wide_bytes);
        fetch(scan.reading, prepared + chunk * chunk_stride + r_at, 4 * wide_bytes, read_there);
    };
    const auto fetch_writing = [&](int chunk) {
        const std::byte* const from = prepared + chunk * chunk_stride;
        expect_copies(write_there, static_cast<int>(sizeof scan.writing) + value_bytes + dim * 4);
        fetch(scan.writing, from + k_at, sizeof scan.writing, write_there);
        fetch(scan.value, from + v_at + half * value_bytes, value_bytes, write_there);
        fetch(scan.decay, from + decay_at, dim * 4, write_there);
    };
    if (threadIdx.x == 0) {
        fetch_reading(0);
        fetch_writing(0);
    }

    // A group has 64 keys of the state.
    float* const home = prompt.slots.state + sequence.slot * prompt.slots.state_stride +
                        static_cast<std::size_t>(head) * dim * dim +
                        (group * 64 + row) * static_cast<std::size_t>(dim) + half * half_dim +
                        2 * q;
    float state[32];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float2 v = sequence.state_position == 0 ? make_float2(0, 0)
                                                          : pair_at(home + 8 * r * dim + t * 8);
            state[4 * t + 2 * r] = v.x, state[4 * t + 2 * r + 1] = v.y;
        }
    }
    const auto store_state = [&] {
        store_parts(scan.state[0] + group * square_bytes, scan.state[1] + group * square_bytes,
                    state, row, q);
        show_stores();
    };
    store_state();
    __syncthreads();

    const Operand reading = operand_rows(scan.reading + group * 2 * wide_bytes, wide_bytes);
    const Operand old_state = operand_columns(scan.state[0], 2 * square_bytes);
    const Operand keys = operand_columns(scan.writing + group * square_bytes, wide_bytes);
    const std::uint8_t* const squares_of_tokens = scan.writing + 2 * wide_bytes;
    const Operand attention = operand_rows(squares_of_tokens, square_bytes);
    const Operand inverse = operand_rows(squares_of_tokens + 2 * square_bytes, square_bytes);
    const Operand missing = operand_columns(scan.missing[0], square_bytes);
    const Operand changed = operand_columns(scan.changed[0], square_bytes);

    const std::size_t channel = static_cast<std::size_t>(head) * dim + half * half_dim;
    Finish finish;
    if (group == 1) finish.load_weights(prompt, half * half_dim + 2 * q);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int here = min(tokens, static_cast<int>(sequence.row_count) - chunk * tokens);
        const std::size_t first_row = static_cast<std::size_t>(sequence.first_row) + chunk * tokens;
        if (group == 1)
            finish.load_gates(prompt.gate + first_row * prompt.gate_stride + channel + 2 * q,
                              prompt.gate_stride, row, here);
        // What the state holds for the keys, or for the queries.
        float result[32];
        wait_for_barrier(read_there, chunk & 1);
        begin_products();
#pragma unroll
        for (int step = 0; step < dim / 16; ++step)
            multiply_step<false>(result, reading.at(step / 4 * box + step % 4 * step_of_rows),
                                 old_state.at(step * step_of_columns), step > 0);
        end_products();
        wait_for_products<0>();
        keep(result);
        wait_for_barrier(write_there, chunk & 1);
        if (group == 0) {
#pragma unroll
            for (int t = 0; t < 8; ++t) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float2 v = pair_at(&scan.value[row + 8 * r][t * 8 + 2 * q]);
                    result[4 * t + 2 * r] = v.x - result[4 * t + 2 * r];
                    result[4 * t + 2 * r + 1] = v.y - result[4 * t + 2 * r + 1];
                }
            }
            store_parts(scan.missing[0], scan.missing[1], result, row, q);
            show_stores();
            asm volatile("bar.sync 1, %0;" ::"n"(group_threads) : "memory");
            // V'
            begin_products();
#pragma unroll
            for (int step = 0; step < tokens / 16; ++step)
                multiply_step<false>(result, inverse.at(step * step_of_rows),
                                     missing.at(step * step_of_columns), step > 0);
            end_products();
            wait_for_products<0>();
            keep(result);
            store_parts(scan.changed[0], scan.changed[1], result, row, q);
            show_stores();
        }
        __syncthreads();
        if (threadIdx.x == 0 && chunk + 1 < chunks) fetch_reading(chunk + 1);
        // O = (Q * e^G) S + A V', and S = diag(e^G) S + K^T V'.
        const float kept[2] = {scan.decay[group * 64 + row], scan.decay[group * 64 + row + 8]};
#pragma unroll
        for (int i = 0; i < 32; ++i)
            state[i] *= kept[i / 2 % 2];
        if (group == 1) {
            begin_products();
#pragma unroll
            for (int step = 0; step < tokens / 16; ++step)
                multiply_step<false>(result, attention.at(step * step_of_rows),
                                     changed.at(step * step_of_columns), 1);
            end_products();
        }
        begin_products();
#pragma unroll
        for (int step = 0; step < tokens / 16; ++step)
            multiply_step<true>(state, keys.at(step * step_of_columns),
                                changed.at(step * step_of_columns), 1);
        end_products();
        wait_for_products<0>();
        keep(result);
        keep(state);
        std::uint64_t* const squares_there = &scan.squares_there[chunk % 2];
        auto& squares = scan.squares[chunk % 2];
        if (group == 1) {
            if (threadIdx.x == group_threads)
                expect_copies(address_of(squares_there), tokens * static_cast<int>(sizeof(float)));
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float sum = 0.0f;
#pragma unroll
                for (int t = 0; t < 8; ++t)
                    sum += result[4 * t + 2 * r] * result[4 * t + 2 * r] +
                           result[4 * t + 2 * r + 1] * result[4 * t + 2 * r + 1];
                sum += __shfl_xor_sync(full_warp, sum, 1);
                sum += __shfl_xor_sync(full_warp, sum, 2);
                float* const own = &squares[half][row + 8 * r];
                if (q == 0) {
                    *own = sum;
                    HeadBlocks::send(sum, own, squares_there, half);
                }
            }
        }
        store_state();
        __syncthreads();
        if (threadIdx.x == 0 && chunk + 1 < chunks) fetch_writing(chunk + 1);
        if (group == 0) continue;
        wait_for_barrier(address_of(squares_there), chunk / 2 & 1);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int at_row = row + 8 * r;
            const float all = squares[0][at_row] + squares[1][at_row];
            if (at_row >= here) continue;
            const float scale = rsqrtf(all / dim + prompt.norm_eps);
            const std::size_t at = (first_row + at_row) * prompt.heads * dim + channel;
            if (prompt.mixed != nullptr) {
#pragma unroll
                for (int t = 0; t < 8; ++t)
                    *reinterpret_cast<float2*>(prompt.mixed + at + t * 8 + 2 * q) =
                        make_float2(result[4 * t + 2 * r], result[4 * t + 2 * r + 1]);
            }
#pragma unroll
            for (int first = 0; first < 8; first += 4)
                *reinterpret_cast<uint4*>(prompt.output + at + first * 8 + q * 8) =
                    finish.row(result, r, first, scale);
        }
    }
    keep_history(prompt, sequence, channel);
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            *reinterpret_cast<float2*>(home + 8 * r * dim + t * 8) =
                make_float2(state[4 * t + 2 * r], state[4 * t + 2 * r + 1]);
    }
}

#endif

__global__ void __launch_bounds__(threads, 1)
    states_kernel([[maybe_unused]] const __grid_constant__ KdaPrompt prompt,
                  [[maybe_unused]] int first_sequence) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t unaligned[];
    Scan& scan = *reinterpret_cast<Scan*>(unaligned + (1024 - address_of(unaligned) % 1024) % 1024);
    if (threadIdx.x == 0) {
        begin_barrier(address_of(&scan.read_there), 1);
        begin_barrier(address_of(&scan.write_there), 1);
        begin_barrier(address_of(&scan.squares_there[0]), 1);
        begin_barrier(address_of(&scan.squares_there[1]), 1);
        show_barriers();
    }
    __syncthreads();
    HeadBlocks::arrive();
    wait_for_previous_kernel();
    let_next_kernel_start();
    HeadBlocks::wait();  // both have started
    int first_chunk = 0;
    for (int s = first_sequence; s < first_sequence + static_cast<int>(blockIdx.y); ++s)
        first_chunk += static_cast<int>((prompt.sequences[s].row_count + tokens - 1) / tokens);
    const std::byte* const prepared =
        prompt.prepared +
        (static_cast<std::size_t>(first_chunk) * prompt.heads + blockIdx.x / 2) * chunk_bytes;
    scan_chunks(prompt, prompt.sequences[first_sequence + blockIdx.y], prepared, scan);
#endif
}

}  // namespace

Status launch_kda_states(const KdaPrompt& prompt, int first_sequence, int sequences,
                         const LaunchContext& context) {
    return launch("launching a prompt's KDA states", states_kernel,
                  {dim3(static_cast<unsigned>(2 * prompt.heads), static_cast<unsigned>(sequences)),
                   threads, sizeof(Scan) + 1024, 2},
                  context, prompt, first_sequence);
}

}  // namespace percheron::ops::cuda
