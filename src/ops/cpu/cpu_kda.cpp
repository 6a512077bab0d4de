#include <cassert>
#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_primitives.h"

namespace percheron::ops::cpu {
namespace {

constexpr std::size_t conv_block = 256;  // channels of a task
constexpr std::size_t most_fetching_threads = 64;

// Copies each of a sequence's last rows into the ring, [first, first + count) of its columns.
void store_history(const ShortConv& op, const SequenceRows& sequence, std::size_t first,
                   std::size_t count) {
    float* const ring = op.slots.conv + to_int(sequence.slot) * op.slots.conv_stride;
    const std::size_t channels = op.input.columns;
    const std::uint32_t kept = std::min(sequence.row_count, op.slots.ring);
    for (std::uint32_t i = sequence.row_count - kept; i < sequence.row_count; ++i) {
        const Position position = sequence.first_position + i;
        std::memcpy(ring + (position % op.slots.ring) * channels + first,
                    op.input.row(sequence.first_row + i) + first, count * sizeof(float));
    }
}

// The recurrence of one head and one slab of its columns, for every sequence of the step.
struct HeadSlab {
    const Kernels& kernels;
    const KdaRecurrence& op;
    std::size_t head;
    std::size_t column;
    std::size_t columns;
    float* scratch;  // kda_thread_floats(dim) floats

    KdaStepHead common(float* state, std::size_t stride) const {
        KdaStepHead step;
        step.dim = op.dim;
        step.columns = columns;
        step.state = state;
        step.state_stride = stride;
        step.scratch = scratch;
        return step;
    }

    void fold(const SequenceRows& sequence, float* state) const {
        const std::size_t row_floats = kda_kept_row(op.heads, op.dim);
        const float* const ring = op.slots.kept + to_int(sequence.slot) * op.slots.kept_stride;
        Position position = sequence.state_position;
        while (position < sequence.first_position) {
            // As far as the ring goes on without wrapping.
            const std::uint32_t at = position % op.slots.ring;
            const std::uint32_t count =
                std::min(op.slots.ring - at, sequence.first_position - position);
            const float* const row = ring + at * row_floats;
            KdaStepHead step = common(state, op.dim);
            step.tokens = count;
            step.key = row + head * op.dim;
            step.query = step.key;
            step.value = row + (op.heads + head) * op.dim + column;
            step.decay = row + (2 * op.heads + head) * op.dim;
            step.beta = row + 3 * op.heads * op.dim + head;
            step.query_stride = step.key_stride = step.value_stride = row_floats;
            step.decay_stride = step.beta_stride = row_floats;
            kernels.kda_step(step);
            position += count;
        }
    }

    void copy_rows(const float* from, std::size_t from_stride, float* to,
                   std::size_t to_stride) const {
        for (std::size_t i = 0; i < op.dim; ++i)
            std::memcpy(to + i * to_stride, from + i * from_stride, columns * sizeof(float));
    }

    void run_rows(std::size_t first, std::size_t count, float* state, std::size_t stride) const {
        if (count == 0) return;
        KdaStepHead step = common(state, stride);
        const std::size_t at = head * op.dim;
        step.tokens = count;
        step.query = op.query.row(first) + at;
        step.key = op.key.row(first) + at;
        step.value = op.value.row(first) + at + column;
        step.decay = op.decay.row(first) + at;
        step.beta = op.beta.row(first) + head;
        step.output = op.output.row(first) + at + column;
        step.query_stride = op.query.stride;
        step.key_stride = op.key.stride;
        step.value_stride = op.value.stride;
        step.decay_stride = op.decay.stride;
        step.beta_stride = op.beta.stride;
        step.output_stride = op.output.stride;
        kernels.kda_step(step);
    }

    // What the ring keeps of rows that are not committed; one slab writes its head's part.
    void keep(const SequenceRows& sequence) const {
        const std::size_t row_floats = kda_kept_row(op.heads, op.dim);
        float* const ring = op.slots.kept + to_int(sequence.slot) * op.slots.kept_stride;
        const std::size_t at = head * op.dim;
        const std::size_t bytes = op.dim * sizeof(float);
        for (std::uint32_t i = sequence.commit_rows; i < sequence.row_count; ++i) {
            float* const kept = ring + ((sequence.first_position + i) % op.slots.ring) * row_floats;
            const std::size_t row = sequence.first_row + i;
            std::memcpy(kept + at, op.key.row(row) + at, bytes);
            std::memcpy(kept + op.heads * op.dim + at, op.value.row(row) + at, bytes);
            std::memcpy(kept + 2 * op.heads * op.dim + at, op.decay.row(row) + at, bytes);
            kept[3 * op.heads * op.dim + head] = op.beta.row(row)[head];
        }
    }

    void run(const SequenceRows& sequence) const {
        float* const state = op.slots.state + to_int(sequence.slot) * op.slots.state_stride +
                             head * op.dim * op.dim + column;
        if (sequence.state_position == 0)
            for (std::size_t i = 0; i < op.dim; ++i)
                std::memset(state + i * op.dim, 0, columns * sizeof(float));
        fold(sequence, state);
        float* const copy = scratch + kda_scratch_floats(op.dim);
        // Rows of half a head's width meet only half of the first cache's sets and would push each
        // other out: many tokens run on a copy without gaps.
        constexpr std::size_t worth_a_copy = 4;
        if (sequence.commit_rows >= worth_a_copy) {
            copy_rows(state, op.dim, copy, columns);
            run_rows(sequence.first_row, sequence.commit_rows, copy, columns);
            copy_rows(copy, columns, state, op.dim);
        } else {
            run_rows(sequence.first_row, sequence.commit_rows, state, op.dim);
        }
        if (sequence.commit_rows == sequence.row_count) return;
        copy_rows(state, op.dim, copy, columns);
        run_rows(sequence.first_row + sequence.commit_rows,
                 sequence.row_count - sequence.commit_rows, copy, columns);
        if (column == 0) keep(sequence);
    }
};

}  // namespace

void CpuPrimitives::fetch_slots(const KdaSlots& slots, const RowBatch& batch,
                                const NetworkShape& shape) {
    // Half of a second cache; the other half is for weights and rows on their way.
    constexpr std::size_t most_bytes = std::size_t{1} << 20;
    const std::size_t heads = batch.sequences.size() * shape.kda_heads;
    const std::size_t head_floats = shape.kda_dim * shape.kda_dim;
    const std::size_t conv_floats = 3 * shape.kda_heads * shape.kda_dim;
    std::span<const FetchAhead::Range> lists[most_fetching_threads];
    const std::size_t threads = std::min(pool_.threads(), most_fetching_threads);
    for (std::size_t thread = 0; thread < threads; ++thread) {
        // The heads that kda_step() gives this thread first.
        std::vector<FetchAhead::Range>& list = fetched_slots_[thread];
        list.clear();
        std::size_t left = most_bytes;
        const auto add = [&](const float* from, std::size_t floats) {
            const std::size_t bytes = std::min(floats * sizeof(float), left);
            left -= bytes;
            const auto* const first = reinterpret_cast<const std::byte*>(from);
            if (bytes != 0) list.push_back({first, bytes});
        };
        if (batch.numeric_class == NumericClass::decode) {
            const std::size_t last = heads * (thread + 1) / pool_.threads();
            for (std::size_t head = heads * thread / pool_.threads(); head < last;) {
                const SequenceRows& sequence = batch.sequences[head / shape.kda_heads];
                const std::size_t in_slot = head % shape.kda_heads;
                const std::size_t count = std::min(last - head, shape.kda_heads - in_slot);
                const std::size_t slot = to_int(sequence.slot);
                if (in_slot == 0)
                    add(slots.conv + slot * slots.conv_stride, slots.ring * conv_floats);
                add(slots.state + slot * slots.state_stride + in_slot * head_floats,
                    count * head_floats);
                head += count;
            }
        }
        lists[thread] = list;
    }
    products_.fetch_ahead({lists, threads});
}

void CpuPrimitives::short_conv(const ShortConv& op) {
    const std::size_t channels = op.input.columns;
    if (zeros_.size() < channels) zeros_.resize(channels, 0.0f);
    const std::size_t blocks = (channels + conv_block - 1) / conv_block;
    const std::size_t sequences = op.batch->sequences.size();
    const std::size_t rows_each = sequences == 0 ? 0 : op.input.rows / sequences + 1;
    constexpr std::size_t most_taps = 16;
    assert(op.taps <= most_taps);
    in_blocks(sequences * blocks, conv_block / 16 * 36 * rows_each,
              [&](std::size_t first_item, std::size_t last_item, std::size_t) {
                  for (std::size_t item = first_item; item < last_item; ++item) {
                      const SequenceRows& sequence = op.batch->sequences[item / blocks];
                      const std::size_t first = item % blocks * conv_block;
                      const std::size_t count = std::min(conv_block, channels - first);
                      const float* const ring =
                          op.slots.conv + to_int(sequence.slot) * op.slots.conv_stride;
                      for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
                          const std::int64_t position = std::int64_t{sequence.first_position} + i;
                          const float* history[most_taps];
                          for (std::size_t j = 0; j < op.taps; ++j) {
                              const std::int64_t at =
                                  position - static_cast<std::int64_t>(op.taps - 1 - j);
                              if (at >= sequence.first_position)
                                  history[j] = op.input.row(static_cast<std::size_t>(
                                      sequence.first_row + at - sequence.first_position));
                              else if (at < 0)
                                  history[j] = zeros_.data();
                              else
                                  history[j] = ring + static_cast<std::size_t>(at % op.slots.ring) *
                                                          channels;
                              history[j] += first;
                          }
                          kernels_.short_conv(history, op.weight + first * op.taps, op.taps, count,
                                              op.output.row(sequence.first_row + i) + first);
                      }
                      // This task alone reads these channels of this sequence's ring.
                      store_history(op, sequence, first, count);
                  }
              });
}

void CpuPrimitives::kda_gates(const KdaGates& op) {
    const float query_scale = 1.0f / std::sqrt(static_cast<float>(op.dim));
    in_blocks(op.query.rows * op.heads, op.dim / 16 * 34,
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t item = first; item < last; ++item) {
                      const std::size_t row = item / op.heads, head = item % op.heads;
                      const std::size_t at = head * op.dim;
                      float* const query = op.query.row(row) + at;
                      float* const key = op.key.row(row) + at;
                      float* const decay = op.decay.row(row) + at;
                      kernels_.l2_norm(query, query_scale, op.dim, query);
                      kernels_.l2_norm(key, 1.0f, op.dim, key);
                      kernels_.log_decay(decay, op.dt_bias + at, std::exp(op.a_log[head]),
                                         op.lower_bound, op.dim, decay);
                      float* const beta = op.beta.row(row) + head;
                      kernels_.sigmoid(beta, 1, beta);
                  }
              });
}

void CpuPrimitives::kda_step(const KdaRecurrence& op) {
    const std::size_t slabs = (op.dim + kda_slab - 1) / kda_slab;
    reserve_thread_scratch(kda_thread_floats(op.dim));
    products_.fetch_ahead({});
    const std::size_t sequences = op.batch->sequences.size();
    pool_.parallel_for(sequences * op.heads * slabs, [&](std::size_t task, std::size_t thread) {
        const std::size_t column = task % slabs * kda_slab;
        const HeadSlab work{kernels_,
                            op,
                            task / slabs % op.heads,
                            column,
                            std::min(kda_slab, op.dim - column),
                            thread_scratch(thread, kda_thread_floats(op.dim))};
        work.run(op.batch->sequences[task / slabs / op.heads]);
    });
}

}  // namespace percheron::ops::cpu
