#include <bit>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "ops/cpu/cpu_primitives.h"
#include "ops/stored_rows.h"

namespace percheron::ops::cpu {
namespace {

const SequenceRows& sequence_of_row(const RowBatch& batch, std::size_t row) {
    const auto after = std::upper_bound(
        batch.sequences.begin(), batch.sequences.end(), row,
        [](std::size_t value, const SequenceRows& s) { return value < s.first_row; });
    return *(after - 1);
}

StoredRow latent_at(const LatentPages& pages, const SequenceRows& sequence, Position position,
                    std::size_t latent) {
    return stored_row(static_cast<std::byte*>(pages.latents) +
                          to_int(sequence.pages[position / page_tokens]) * pages.latent_page_bytes,
                      pages.latent_dtype, page_tokens, latent, position % page_tokens);
}

StoredRow pooled_at(const LatentPages& pages, const SequenceRows& sequence, std::size_t pool_index,
                    std::size_t pool, std::size_t dim) {
    const std::size_t position = pool_index * pool;
    return stored_row(static_cast<std::byte*>(pages.pooled) +
                          to_int(sequence.pages[position / page_tokens]) * pages.pooled_page_bytes,
                      pages.pooled_dtype, page_tokens / pool, dim, position % page_tokens / pool);
}

float* tail_at(const LatentPages& pages, RequestSlot slot, Position position, std::size_t dim) {
    return pages.tails + to_int(slot) * pages.tail_stride + (position % pages.tail_ring) * 2 * dim;
}

// Larger for a larger score, and among equal ones for the lower index.  -0 counts as 0.
std::uint64_t rank_of(float score, std::uint32_t index) {
    auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);
    bits ^= (bits >> 31) != 0 ? 0xffffffffu : 0x80000000u;
    return (std::uint64_t{bits} << 32) | (0xffffffffu - index);
}

constexpr std::size_t pools_a_task = 512;

}  // namespace

void CpuPrimitives::index_pool(const IndexPool& op) {
    const std::size_t dim = op.key.columns;
    constexpr std::size_t most_pool = 16;
    assert(op.pool <= most_pool);
    for (const SequenceRows& sequence : op.batch->sequences) {
        const Position first = sequence.first_position;
        reserve_thread_scratch(dim);
        const auto pool_of = [&](Position last, std::size_t thread) {
            const Position start = last + 1 - static_cast<Position>(op.pool);
            const float* keys[most_pool];
            const float* gates[most_pool];
            for (std::size_t j = 0; j < op.pool; ++j) {
                const Position p = start + static_cast<Position>(j);
                if (p >= first) {
                    keys[j] = op.key.row(sequence.first_row + p - first);
                    gates[j] = op.gate.row(sequence.first_row + p - first);
                } else {
                    keys[j] = tail_at(op.pages, sequence.slot, p, dim);
                    gates[j] = keys[j] + dim;
                }
            }
            float* const pooled = thread_scratch(thread, dim);
            kernels_.pool_keys(keys, gates, op.ape, op.pool, dim, 0, dim, pooled);
            store_row(pooled_at(op.pages, sequence, start / op.pool, op.pool, dim),
                      op.pages.pooled_dtype, {pooled, dim});
        };
        // The rows that complete a pool.
        const Position pool = static_cast<Position>(op.pool);
        const Position first_end = (first + pool) / pool * pool - 1;
        const Position end = first + sequence.row_count;
        const std::size_t completed = first_end < end ? (end - 1 - first_end) / pool + 1 : 0;
        in_blocks(completed, dim * op.pool * 2,
                  [&](std::size_t begin, std::size_t stop, std::size_t thread) {
                      for (std::size_t i = begin; i < stop; ++i)
                          pool_of(first_end + static_cast<Position>(i) * pool, thread);
                  });
        const std::uint32_t kept = std::min(sequence.row_count, op.pages.tail_ring);
        for (std::uint32_t i = sequence.row_count - kept; i < sequence.row_count; ++i) {
            float* const tail = tail_at(op.pages, sequence.slot, first + i, dim);
            std::memcpy(tail, op.key.row(sequence.first_row + i), dim * sizeof(float));
            std::memcpy(tail + dim, op.gate.row(sequence.first_row + i), dim * sizeof(float));
        }
    }
}

// query: packed heads of the row, behind them the weights w_h.
void CpuPrimitives::select_row(const SelectTokens& op, const SequenceRows& sequence,
                               std::size_t row, const float* query, bool split,
                               std::size_t thread) {
    const std::size_t visible = sequence.first_position + (row - sequence.first_row) + 1;
    const std::size_t candidates = visible / op.pool;
    const std::size_t taken = std::min(candidates, op.topk / op.pool);
    std::uint32_t* const positions = op.positions.row(row);
    std::uint32_t count = 0;
    const auto take = [&](std::size_t pool_index) {
        for (std::size_t j = 0; j < op.pool; ++j)
            positions[count++] = static_cast<std::uint32_t>(pool_index * op.pool + j);
    };
    if (taken == candidates) {
        for (std::size_t p = 0; p < candidates; ++p)
            take(p);
    } else {
        std::vector<std::uint64_t>& ranking = ranking_[thread];
        ranking.resize(candidates);
        const float scale = 1.0f / std::sqrt(static_cast<float>(op.dim));
        const std::size_t a_page = page_tokens / op.pool;
        const auto score = [&](std::size_t first, std::size_t last) {
            float scores[page_tokens], key_scales[page_tokens];
            while (first < last) {
                const std::size_t in_page = std::min(last - first, a_page - first % a_page);
                const StoredRow keys = pooled_at(op.pages, sequence, first, op.pool, op.dim);
                for (std::size_t i = 0; keys.scale != nullptr && i < in_page; ++i)
                    key_scales[i] = row_scale(keys.scale[i]);
                kernels_.index_scores(query, query + op.heads * packed_width(op.dim), op.heads,
                                      op.dim, scale, keys.values, key_scales, op.pages.pooled_dtype,
                                      in_page, scores);
                for (std::size_t i = 0; i < in_page; ++i)
                    ranking[first + i] = rank_of(scores[i], static_cast<std::uint32_t>(first + i));
                first += in_page;
            }
        };
        if (split) {
            pool_.parallel_for(
                (candidates + pools_a_task - 1) / pools_a_task, [&](std::size_t task, std::size_t) {
                    score(task * pools_a_task, std::min(candidates, (task + 1) * pools_a_task));
                });
        } else {
            score(0, candidates);
        }
        const auto end = ranking.begin() + static_cast<std::ptrdiff_t>(taken);
        std::nth_element(ranking.begin(), end, ranking.end(), std::greater<>());
        const auto index = [](std::uint64_t rank) {
            return 0xffffffffu - static_cast<std::uint32_t>(rank);
        };
        std::sort(ranking.begin(), end,
                  [&](std::uint64_t a, std::uint64_t b) { return index(a) < index(b); });
        for (std::size_t k = 0; k < taken; ++k)
            take(index(ranking[k]));
    }
    for (std::size_t p = candidates * op.pool; p < visible; ++p)
        positions[count++] = static_cast<std::uint32_t>(p);
    op.counts[row] = count;
}

void CpuPrimitives::select_tokens(const SelectTokens& op) {
    const std::size_t rows = op.query.rows;
    const std::size_t width = packed_width(op.dim);
    reserve_thread_scratch(op.heads * (width + 1));
    // Every thread's, for any of them may get the longest row.
    std::size_t longest = 0;
    for (const SequenceRows& sequence : op.batch->sequences) {
        const std::size_t visible = sequence.first_position + sequence.row_count;
        longest = std::max(longest, visible / op.pool);
    }
    for (auto& ranking : ranking_) {
        if (ranking.capacity() < longest)
            ranking.reserve(std::max(longest, 2 * ranking.capacity()));
    }
    const auto select = [&](std::size_t row, bool split, std::size_t thread) {
        const SequenceRows& sequence = sequence_of_row(*op.batch, row);
        float* const query = thread_scratch(thread, op.heads * (width + 1));
        const float head_scale = 1.0f / std::sqrt(static_cast<float>(op.heads));
        for (std::size_t head = 0; head < op.heads; ++head) {
            kernels_.pack_row(PackedLayout::natural, op.arithmetic == Arithmetic::standard,
                              op.query.row(row) + head * op.dim, op.dim, query + head * width);
            query[op.heads * width + head] = op.head_weight.row(row)[head] * head_scale;
        }
        select_row(op, sequence, row, query, split, thread);
    };
    if (rows >= 2 * pool_.threads()) {
        pool_.parallel_for(
            rows, [&](std::size_t row, std::size_t thread) { select(row, false, thread); });
        return;
    }
    for (std::size_t row = 0; row < rows; ++row)
        select(row, true, 0);
}

void CpuPrimitives::store_latents(const StoreLatents& op) {
    const std::size_t latent = op.latents.columns;
    for (const SequenceRows& sequence : op.batch->sequences) {
        in_blocks(
            sequence.row_count, latent / 4, [&](std::size_t first, std::size_t last, std::size_t) {
                for (std::size_t i = first; i < last; ++i) {
                    store_row(latent_at(op.pages, sequence,
                                        sequence.first_position + static_cast<Position>(i), latent),
                              op.pages.latent_dtype,
                              {op.latents.row(sequence.first_row + i), latent});
                }
            });
    }
}

void CpuPrimitives::absorb_queries(const AbsorbQueries& op) {
    const LatentHeads& shape = op.shape;
    const std::size_t rows = op.query.rows;
    if (rows == 0) return;
    products_.start();
    products_.reserve_panels(std::max(shape.latent, shape.query_key_dim));
    const std::size_t width = packed_width(shape.query_key_dim);
    const float* const query = products_.pack_heads(op.query, shape.heads, shape.query_key_dim,
                                                    op.arithmetic == Arithmetic::standard);
    const auto product = op.numeric_class == NumericClass::prefill
                             ? kernels_.product_transposed_prefill
                             : kernels_.product_transposed;
    constexpr std::size_t columns = 64;
    const std::size_t blocks = (shape.latent + columns - 1) / columns;
    pool_.parallel_for(shape.heads * blocks, [&](std::size_t task, std::size_t thread) {
        const std::size_t head = task / blocks, first = task % blocks * columns;
        product(op.kv_b, head * (shape.query_key_dim + shape.value_dim), shape.query_key_dim, first,
                std::min(first + columns, shape.latent),
                {query + head * width, shape.heads * width, rows},
                op.absorbed.data + head * shape.latent + first, op.absorbed.stride,
                products_.panel(thread));
    });
}

void CpuPrimitives::latent_attention(const LatentAttention& op) {
    const LatentHeads& shape = op.shape;
    const std::size_t rows = op.absorbed.rows;
    if (rows == 0) return;
    products_.start();
    const std::size_t width = packed_width(shape.latent);
    const float* const absorbed = products_.pack_heads(op.absorbed, shape.heads, shape.latent,
                                                       op.arithmetic == Arithmetic::standard);
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.query_key_dim));
    // Pointers to the selected latents lie behind the kernel's own scratch, then their scales.
    const std::size_t own = attend_scratch_floats(shape.latent);
    reserve_thread_scratch(attention_thread_floats(shape.latent, op.positions.columns));
    const std::size_t together = rows * shape.heads >= attend_heads_at_once * pool_.threads() * 2
                                     ? attend_heads_at_once
                                 : rows * shape.heads >= 2 * pool_.threads() ? 2
                                                                             : 1;
    const std::size_t blocks = (shape.heads + together - 1) / together;
    pool_.parallel_for(rows * blocks, [&](std::size_t task, std::size_t thread) {
        const std::size_t row = task / blocks, head = task % blocks * together;
        const SequenceRows& sequence = sequence_of_row(*op.batch, row);
        float* const scratch = thread_scratch(thread, own);
        auto* const tokens = reinterpret_cast<const void**>(scratch + own);
        auto* const scales = reinterpret_cast<float*>(tokens + op.positions.columns);
        const std::uint32_t* const positions = op.positions.row(row);
        for (std::size_t i = 0; i < op.counts[row]; ++i) {
            const StoredRow latent = latent_at(op.pages, sequence, positions[i], shape.latent);
            tokens[i] = latent.values;
            if (latent.scale != nullptr) scales[i] = row_scale(*latent.scale);
        }
        AttendHeads attend;
        attend.heads = std::min(together, shape.heads - head);
        attend.latent = shape.latent;
        attend.absorbed = absorbed + (row * shape.heads + head) * width;
        attend.absorbed_stride = width;
        attend.tokens = tokens;
        attend.token_scales = scales;
        attend.latent_dtype = op.pages.latent_dtype;
        attend.count = op.counts[row];
        attend.scale = scale;
        attend.read = op.read.row(row) + head * shape.latent;
        attend.read_stride = shape.latent;
        attend.scratch = scratch;
        kernels_.attend(attend);
    });
}

void CpuPrimitives::expand_values(const ExpandValues& op) {
    const LatentHeads& shape = op.shape;
    const std::size_t rows = op.read.rows;
    if (rows == 0) return;
    products_.start();
    const std::size_t width = packed_width(shape.latent);
    const bool round = op.arithmetic == Arithmetic::standard;
    const PackedLayout layout = layout_for(op.kv_b.format, op.numeric_class);
    const float* const natural =
        layout == PackedLayout::natural
            ? products_.pack_heads(op.read, shape.heads, shape.latent, round)
            : nullptr;
    for (std::size_t head = 0; head < shape.heads; ++head) {
        const std::size_t first =
            head * (shape.query_key_dim + shape.value_dim) + shape.query_key_dim;
        const PackedRows input =
            natural != nullptr
                ? PackedRows{natural + head * width, shape.heads * width, rows}
                : products_.pack(op.read.column_slice(head * shape.latent, shape.latent), layout,
                                 round);
        products_.add({op.kv_b, first, first + shape.value_dim, input,
                       op.output.data + head * shape.value_dim, op.output.stride,
                       op.numeric_class});
    }
    products_.run();
}

}  // namespace percheron::ops::cpu
