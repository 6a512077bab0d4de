#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/reference/scalar_functions.h"
#include "ops/stored_rows.h"

namespace percheron::ops::reference {
namespace {

// The ring's entry of position p: index key, then gate.
float* tail_row(const LatentPages& pages, RequestSlot slot, Position p, std::size_t dim) {
    return pages.tails + to_int(slot) * pages.tail_stride + (p % pages.tail_ring) * 2 * dim;
}

// Where pool P of a sequence is stored.
StoredRow pooled_key(const LatentPages& pages, const SequenceRows& sequence, std::size_t pool_index,
                     std::size_t pool, std::size_t dim) {
    const std::size_t position = pool_index * pool;
    auto* const memory = static_cast<std::byte*>(pages.pooled);
    return stored_row(
        memory + to_int(sequence.pages[position / page_tokens]) * pages.pooled_page_bytes,
        pages.pooled_dtype, page_tokens / pool, dim, position % page_tokens / pool);
}

double score(const SelectTokens& op, const SequenceRows& sequence, std::size_t row,
             std::size_t pool_index) {
    const StoredRow key = pooled_key(op.pages, sequence, pool_index, op.pool, op.dim);
    const double dim_scale = 1.0 / std::sqrt(static_cast<double>(op.dim));
    const double head_scale = 1.0 / std::sqrt(static_cast<double>(op.heads));
    double total = 0;
    for (std::size_t head = 0; head < op.heads; ++head) {
        const float* const query = op.query.row(row) + head * op.dim;
        double dot = 0;
        for (std::size_t c = 0; c < op.dim; ++c) {
            dot += static_cast<double>(product_input(query[c], op.arithmetic)) *
                   load_stored(key, op.pages.pooled_dtype, c);
        }
        total += op.head_weight.row(row)[head] * head_scale * std::max(0.0, dot * dim_scale);
    }
    return total;
}

}  // namespace

void ReferencePrimitives::index_pool(const IndexPool& op) {
    const std::size_t dim = op.key.columns;
    std::vector<double> weights(op.pool);
    std::vector<float> key(dim);
    for (const SequenceRows& sequence : op.batch->sequences) {
        const Position first = sequence.first_position;
        const auto key_of = [&](Position p) {
            return p >= first ? op.key.row(sequence.first_row + p - first)
                              : tail_row(op.pages, sequence.slot, p, dim);
        };
        const auto gate_of = [&](Position p) {
            return p >= first ? op.gate.row(sequence.first_row + p - first)
                              : tail_row(op.pages, sequence.slot, p, dim) + dim;
        };
        for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
            const Position last = first + i;
            if ((last + 1) % op.pool != 0) continue;
            const Position start = last + 1 - static_cast<Position>(op.pool);
            for (std::size_t c = 0; c < dim; ++c) {
                double largest = -INFINITY;
                for (std::size_t j = 0; j < op.pool; ++j) {
                    weights[j] = static_cast<double>(gate_of(start + static_cast<Position>(j))[c]) +
                                 op.ape[j * dim + c];
                    largest = std::max(largest, weights[j]);
                }
                double sum = 0;
                double pooled = 0;
                for (std::size_t j = 0; j < op.pool; ++j) {
                    const double weight = std::exp(weights[j] - largest);
                    sum += weight;
                    pooled += weight * key_of(start + static_cast<Position>(j))[c];
                }
                key[c] = static_cast<float>(pooled / sum);
            }
            store_row(pooled_key(op.pages, sequence, start / op.pool, op.pool, dim),
                      op.pages.pooled_dtype, key);
        }
        const std::uint32_t stored = std::min(sequence.row_count, op.pages.tail_ring);
        for (std::uint32_t i = sequence.row_count - stored; i < sequence.row_count; ++i) {
            float* const tail = tail_row(op.pages, sequence.slot, first + i, dim);
            std::copy_n(op.key.row(sequence.first_row + i), dim, tail);
            std::copy_n(op.gate.row(sequence.first_row + i), dim, tail + dim);
        }
    }
}

void ReferencePrimitives::select_tokens(const SelectTokens& op) {
    std::vector<double> scores;
    std::vector<std::uint32_t> order;
    for (const SequenceRows& sequence : op.batch->sequences) {
        for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
            const std::size_t row = sequence.first_row + i;
            const std::size_t visible = sequence.first_position + i + 1;
            const std::size_t candidates = visible / op.pool;
            const std::size_t taken = std::min(candidates, op.topk / op.pool);
            order.resize(candidates);
            std::iota(order.begin(), order.end(), 0u);
            if (taken < candidates) {
                scores.resize(candidates);
                for (std::size_t pool = 0; pool < candidates; ++pool) {
                    scores[pool] = score(op, sequence, row, pool);
                }
                std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
                    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                });
                std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(taken));
            }
            std::uint32_t* const positions = op.positions.row(row);
            std::uint32_t count = 0;
            for (std::size_t k = 0; k < taken; ++k) {
                for (std::size_t j = 0; j < op.pool; ++j) {
                    positions[count++] = static_cast<std::uint32_t>(order[k] * op.pool + j);
                }
            }
            for (std::size_t p = candidates * op.pool; p < visible; ++p) {
                positions[count++] = static_cast<std::uint32_t>(p);
            }
            op.counts[row] = count;
        }
    }
}

}  // namespace percheron::ops::reference
