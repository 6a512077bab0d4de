#include "ops/block_drafting.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/stored_values.h"

namespace percheron::ops::reference {

void ReferencePrimitives::rope_angles(const RopeAngles& op) {
    const std::size_t half = op.angles.columns / 2;
    for (const DraftRows& rows : op.rows) {
        for (std::uint32_t i = 0; i < rows.row_count; ++i) {
            float* const out = op.angles.row(rows.first_row + i);
            for (std::size_t j = 0; j < half; ++j) {
                const double power = -static_cast<double>(j) / static_cast<double>(half);
                const double angle =
                    (rows.first_position + i) * std::pow(static_cast<double>(op.theta), power);
                out[j] = static_cast<float>(std::cos(angle));
                out[j + half] = static_cast<float>(std::sin(angle));
            }
        }
    }
}

void ReferencePrimitives::rotate_heads(const RotateHeads& op) {
    const std::size_t half = op.dim / 2;
    std::vector<double> normed(op.dim);
    for (std::size_t row = 0; row < op.output.rows; ++row) {
        const float* const angles = op.angles.row(row);
        for (std::size_t head = 0; head < op.output.columns / op.dim; ++head) {
            const float* const in = op.input.row(row) + head * op.dim;
            float* const out = op.output.row(row) + head * op.dim;
            double squares = 0;
            for (std::size_t i = 0; i < op.dim; ++i) {
                squares += static_cast<double>(in[i]) * in[i];
            }
            const double scale = 1.0 / std::sqrt(squares / static_cast<double>(op.dim) + op.eps);
            for (std::size_t i = 0; i < op.dim; ++i) {
                normed[i] = in[i] * scale * op.norm[i];
            }
            for (std::size_t j = 0; j < half; ++j) {
                const double a = normed[j];
                const double b = normed[j + half];
                out[j] = static_cast<float>(a * angles[j] - b * angles[j + half]);
                out[j + half] = static_cast<float>(b * angles[j] + a * angles[j + half]);
            }
        }
    }
}

void ReferencePrimitives::store_context(const StoreContext& op) {
    const ContextPages& pages = op.pages;
    for (const DraftRows& rows : op.rows) {
        for (std::uint32_t i = 0; i < rows.row_count; ++i) {
            const Position position = rows.first_position + i;
            void* const page = pages.page(rows.context.page_of(position));
            const std::size_t place = position % page_tokens * pages.dim;
            for (std::size_t head = 0; head < pages.heads; ++head) {
                const std::size_t from = head * pages.dim;
                for (std::size_t d = 0; d < pages.dim; ++d) {
                    store_rounded(page, pages.dtype, pages.keys_at(head) + place + d,
                                  op.keys.row(rows.first_row + i)[from + d]);
                    store_rounded(page, pages.dtype, pages.values_at(head) + place + d,
                                  op.values.row(rows.first_row + i)[from + d]);
                }
            }
        }
    }
}

void ReferencePrimitives::block_attention(const BlockAttention& op) {
    const ContextPages& pages = op.pages;
    const std::size_t dim = pages.dim;
    const std::size_t shared = op.heads() / pages.heads;
    const auto rounded = [&](float value) {
        return op.arithmetic == Arithmetic::standard ? rounded_to_bf16(value) : value;
    };
    std::vector<double> weights;
    std::vector<double> sum(dim);
    for (const DraftRows& block : op.blocks) {
        const DraftContext& context = block.context;
        const Position begin = block.first_position;
        const Position known = std::min(context.end, begin);
        const std::size_t before = known - std::min(known, context.begin);
        // Value d of the s-th key or value: the context's, then the block's own.
        const auto load = [&](bool value, std::size_t head, std::size_t s, std::size_t d) {
            if (s >= before) {
                const Rows<const float>& own = value ? op.value : op.key;
                return static_cast<double>(
                    rounded(own.row(block.first_row + (s - before))[head * dim + d]));
            }
            const auto position = static_cast<Position>(context.begin + s);
            const std::size_t at = (value ? pages.values_at(head) : pages.keys_at(head)) +
                                   position % page_tokens * dim + d;
            return static_cast<double>(
                load_stored(pages.page(context.page_of(position)), pages.dtype, at));
        };
        const std::size_t count = before + block.row_count;
        for (std::uint32_t i = 0; i < block.row_count; ++i) {
            const Position here = begin + i;
            for (std::size_t head = 0; head < op.heads(); ++head) {
                const float* const query = op.query.row(block.first_row + i) + head * dim;
                weights.assign(count, 0.0);
                double largest = -INFINITY;
                const auto seen = [&](std::size_t s) {
                    const auto key = static_cast<Position>(s < before ? context.begin + s
                                                                      : begin + (s - before));
                    return in_window(here, key, op.window);
                };
                for (std::size_t s = 0; s < count; ++s) {
                    if (!seen(s)) continue;
                    for (std::size_t d = 0; d < dim; ++d) {
                        weights[s] += rounded(query[d]) * load(false, head / shared, s, d);
                    }
                    weights[s] /= std::sqrt(static_cast<double>(dim));
                    largest = std::max(largest, weights[s]);
                }
                double total = 0;
                std::fill(sum.begin(), sum.end(), 0.0);
                for (std::size_t s = 0; s < count; ++s) {
                    if (!seen(s)) continue;
                    const double weight = std::exp(weights[s] - largest);
                    total += weight;
                    for (std::size_t d = 0; d < dim; ++d) {
                        sum[d] += weight * load(true, head / shared, s, d);
                    }
                }
                float* const out = op.output.row(block.first_row + i) + head * dim;
                for (std::size_t d = 0; d < dim; ++d) {
                    out[d] = static_cast<float>(sum[d] / total);
                }
            }
        }
    }
}

void ReferencePrimitives::block_conv(const BlockConv& op) {
    const std::size_t channels = op.output.columns;
    const std::size_t groups = channels / op.width;
    for (const DraftRows& block : op.blocks) {
        for (std::uint32_t i = 0; i < block.row_count; ++i) {
            const std::size_t row = block.first_row + i;
            for (std::size_t c = 0; c < channels; ++c) {
                double sum = 0;
                for (std::size_t tap = 0; tap < op.taps && tap <= i; ++tap) {
                    const double gate = op.gates.row(row)[tap * groups + c / op.width];
                    sum += (op.base[tap * channels + c] + gate) * op.input.row(row - tap)[c];
                }
                float& out = op.output.row(row)[c];
                out = static_cast<float>(op.add ? out + sum : sum);
            }
        }
    }
}

}  // namespace percheron::ops::reference
