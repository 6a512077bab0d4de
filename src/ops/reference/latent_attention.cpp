#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/reference/scalar_functions.h"
#include "ops/stored_rows.h"

namespace percheron::ops::reference {
namespace {

StoredRow cached_latent(const LatentPages& pages, const SequenceRows& sequence, Position p,
                        std::size_t latent) {
    auto* const memory = static_cast<std::byte*>(pages.latents);
    return stored_row(memory + to_int(sequence.pages[p / page_tokens]) * pages.latent_page_bytes,
                      pages.latent_dtype, page_tokens, latent, p % page_tokens);
}

// A softmax-weighted sum over part of the selection, not yet divided by its sum.
struct PartialRead {
    double maximum = -INFINITY;
    double sum = 0;
    std::vector<double> read;
};

PartialRead read_split(const LatentAttention& op, const SequenceRows& sequence,
                       std::span<const std::uint32_t> positions, std::span<const float> query) {
    const std::size_t latent = op.shape.latent;
    const double scale = 1.0 / std::sqrt(static_cast<double>(op.shape.query_key_dim));
    std::vector<double> scores;
    PartialRead part;
    for (const std::uint32_t p : positions) {
        const StoredRow c = cached_latent(op.pages, sequence, p, latent);
        double dot = 0;
        for (std::size_t i = 0; i < latent; ++i) {
            dot += static_cast<double>(query[i]) * load_stored(c, op.pages.latent_dtype, i);
        }
        scores.push_back(dot * scale);
        part.maximum = std::max(part.maximum, scores.back());
    }
    part.read.assign(latent, 0.0);
    for (std::size_t s = 0; s < positions.size(); ++s) {
        const StoredRow c = cached_latent(op.pages, sequence, positions[s], latent);
        const double weight = std::exp(scores[s] - part.maximum);
        part.sum += weight;
        for (std::size_t i = 0; i < latent; ++i) {
            part.read[i] += weight * load_stored(c, op.pages.latent_dtype, i);
        }
    }
    return part;
}

void join(PartialRead& total, const PartialRead& part) {
    const double maximum = std::max(total.maximum, part.maximum);
    const double keep = std::exp(total.maximum - maximum);
    const double add = std::exp(part.maximum - maximum);
    total.maximum = maximum;
    total.sum = total.sum * keep + part.sum * add;
    total.read.resize(part.read.size(), 0.0);
    for (std::size_t i = 0; i < part.read.size(); ++i) {
        total.read[i] = total.read[i] * keep + part.read[i] * add;
    }
}

}  // namespace

void ReferencePrimitives::store_latents(const StoreLatents& op) {
    const std::size_t latent = op.latents.columns;
    for (const SequenceRows& sequence : op.batch->sequences) {
        for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
            store_row(cached_latent(op.pages, sequence, sequence.first_position + i, latent),
                      op.pages.latent_dtype, {op.latents.row(sequence.first_row + i), latent});
        }
    }
}

void ReferencePrimitives::absorb_queries(const AbsorbQueries& op) {
    const LatentHeads& shape = op.shape;
    std::vector<float> weight_row(shape.latent);
    std::vector<double> sums(op.query.rows * shape.latent);
    for (std::size_t head = 0; head < shape.heads; ++head) {
        std::fill(sums.begin(), sums.end(), 0.0);
        for (std::size_t d = 0; d < shape.query_key_dim; ++d) {
            dequantise_row(op.kv_b, head * (shape.query_key_dim + shape.value_dim) + d,
                           weight_row.data());
            for (std::size_t row = 0; row < op.query.rows; ++row) {
                const double q =
                    product_input(op.query.row(row)[head * shape.query_key_dim + d], op.arithmetic);
                double* const out = sums.data() + row * shape.latent;
                for (std::size_t i = 0; i < shape.latent; ++i) {
                    out[i] += q * weight_row[i];
                }
            }
        }
        for (std::size_t row = 0; row < op.query.rows; ++row) {
            for (std::size_t i = 0; i < shape.latent; ++i) {
                op.absorbed.row(row)[head * shape.latent + i] =
                    static_cast<float>(sums[row * shape.latent + i]);
            }
        }
    }
}

void ReferencePrimitives::latent_attention(const LatentAttention& op) {
    const std::size_t latent = op.shape.latent;
    std::vector<float> query(latent);
    for (const SequenceRows& sequence : op.batch->sequences) {
        for (std::size_t row = sequence.first_row; row < sequence.first_row + sequence.row_count;
             ++row) {
            const std::span<const std::uint32_t> positions(op.positions.row(row), op.counts[row]);
            for (std::size_t head = 0; head < op.shape.heads; ++head) {
                for (std::size_t i = 0; i < latent; ++i) {
                    query[i] =
                        product_input(op.absorbed.row(row)[head * latent + i], op.arithmetic);
                }
                PartialRead total;
                for (std::size_t s = 0; s < positions.size(); s += attention_split) {
                    const std::size_t count = std::min(attention_split, positions.size() - s);
                    join(total, read_split(op, sequence, positions.subspan(s, count), query));
                }
                float* const out = op.read.row(row) + head * latent;
                for (std::size_t i = 0; i < latent; ++i) {
                    out[i] = static_cast<float>(total.read[i] / total.sum);
                }
            }
        }
    }
}

void ReferencePrimitives::expand_values(const ExpandValues& op) {
    const LatentHeads& shape = op.shape;
    std::vector<float> weight_row(shape.latent);
    for (std::size_t head = 0; head < shape.heads; ++head) {
        for (std::size_t d = 0; d < shape.value_dim; ++d) {
            dequantise_row(op.kv_b,
                           head * (shape.query_key_dim + shape.value_dim) + shape.query_key_dim + d,
                           weight_row.data());
            for (std::size_t row = 0; row < op.read.rows; ++row) {
                const float* const read = op.read.row(row) + head * shape.latent;
                double sum = 0;
                for (std::size_t i = 0; i < shape.latent; ++i) {
                    sum +=
                        static_cast<double>(weight_row[i]) * product_input(read[i], op.arithmetic);
                }
                op.output.row(row)[head * shape.value_dim + d] = static_cast<float>(sum);
            }
        }
    }
}

}  // namespace percheron::ops::reference
