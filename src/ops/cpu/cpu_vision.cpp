// The primitives that only the vision tower uses.
#include <algorithm>
#include <cmath>
#include <new>
#include <string>

#include "ops/cpu/cpu_primitives.h"
#include "ops/vision_stages.h"

namespace percheron::ops::cpu {
namespace {

// Query rows that share one pass over a head's keys and values.
constexpr std::size_t rows_at_once = 24;

// Packed queries, their scores over all patches, their output.
std::size_t attention_floats(std::size_t dim, std::size_t patches) {
    return rows_at_once * (packed_width(dim) + packed_width(patches) + dim);
}

WeightMatrix head_matrix(const PatchHeads& heads, const void* data, std::size_t head) {
    WeightMatrix matrix;
    matrix.format = heads.dtype == DType::f32 ? WeightFormat::f32 : WeightFormat::bf16;
    matrix.n = heads.patches;
    matrix.k = heads.dim;
    matrix.data = static_cast<const std::byte*>(data) +
                  head * heads.patches * heads.dim * size_of(heads.dtype);
    return matrix;
}

float load(const PatchHeads& heads, const void* data, std::size_t index) {
    return heads.dtype == DType::f32
               ? static_cast<const float*>(data)[index]
               : static_cast<float>(static_cast<const BFloat16*>(data)[index]);
}

void store(const PatchHeads& heads, void* data, std::size_t index, float value) {
    if (heads.dtype == DType::f32)
        static_cast<float*>(data)[index] = value;
    else
        static_cast<BFloat16*>(data)[index] = BFloat16(value);
}

}  // namespace

Bytes CpuPrimitives::vision_working_bytes(const VisionShape& shape, std::size_t rows,
                                          std::size_t patches) const {
    const VisionSizes needed = vision_sizes(shape, rows, patches);
    return sizeof(float) * (needed.packed + pool_.threads() * (needed.thread + needed.panel));
}

CpuPrimitives::VisionSizes CpuPrimitives::vision_sizes(const VisionShape& shape, std::size_t rows,
                                                       std::size_t patches) {
    const std::size_t widest =
        std::max({shape.patch_values, shape.intermediate, shape.hidden * shape.merged(),
                  shape.out_hidden, shape.projection});
    VisionSizes sizes;
    sizes.widest_input = widest;
    // One input a set, but its weights may be of both layouts.
    sizes.packed = 2 * (rows * packed_width(widest) + 16);
    sizes.thread = attention_floats(shape.head_dim(), patches);
    sizes.panel = panel_room(std::max(widest, shape.head_dim()));
    return sizes;
}

Status CpuPrimitives::prepare_vision(const VisionShape& shape, std::size_t rows,
                                     std::size_t patches) {
    const VisionSizes needed = vision_sizes(shape, rows, patches);
    try {
        products_.reserve(needed.packed, needed.widest_input, 8);
        reserve_thread_scratch(needed.thread);
    } catch (const std::bad_alloc&) {
        return Error(ErrorCode::out_of_memory,
                     "No memory for the vision tower's working space of " +
                         std::to_string(vision_working_bytes(shape, rows, patches)) +
                         " bytes: serve without pictures or free memory.");
    }
    return {};
}

void CpuPrimitives::add_rows(const AddRows& op) {
    in_blocks(op.output.rows, op.output.columns / 4,
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row) {
                      const float* const in = op.input.row(row);
                      const float* const old =
                          op.residual.data == nullptr ? nullptr : op.residual.row(row);
                      float* const out = op.output.row(row);
                      for (std::size_t i = 0; i < op.output.columns; ++i) {
                          const float sum = in[i] + (op.bias == nullptr ? 0.0f : op.bias[i]);
                          out[i] = old == nullptr ? sum : old[i] + sum;
                      }
                  }
              });
}

void CpuPrimitives::gelu(const Gelu& op) {
    constexpr std::size_t cost_of_erf = 20;
    in_blocks(op.output.rows, op.output.columns * cost_of_erf,
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row) {
                      const float* const in = op.input.row(row);
                      float* const out = op.output.row(row);
                      for (std::size_t i = 0; i < op.output.columns; ++i) {
                          const float x = in[i];
                          out[i] = 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
                      }
                  }
              });
}

void CpuPrimitives::store_patch_heads(const StorePatchHeads& op) {
    const PatchHeads& heads = op.heads;
    const std::size_t dim = heads.dim;
    const std::size_t half = dim / 2;
    const std::size_t quarter = dim / 4;
    const std::size_t width = heads.heads * dim;
    const auto turn = [&](const float* in, const float* norm, const float* cosine,
                          const float* sine, void* out, std::size_t at) {
        const float mean = kernels_.sum_of_squares(in, dim) / static_cast<float>(dim);
        const float scale = 1.0f / std::sqrt(mean + op.eps);
        for (std::size_t j = 0; j < half; ++j) {
            const float a = in[j] * scale * norm[j];
            const float b = in[j + half] * scale * norm[j + half];
            store(heads, out, at + j, a * cosine[j] - b * sine[j]);
            store(heads, out, at + j + half, b * cosine[j] + a * sine[j]);
        }
    };
    in_blocks(
        op.rows.rows, 2 * width, [&](std::size_t first, std::size_t last, std::size_t thread) {
            float* const cosine = thread_scratch(thread, dim);
            float* const sine = cosine + half;
            for (std::size_t row = first; row < last; ++row) {
                for (std::size_t j = 0; j < half; ++j) {
                    const double along = j < quarter ? op.places[row].y : op.places[row].x;
                    const double power =
                        -4.0 * static_cast<double>(j % quarter) / static_cast<double>(dim);
                    const double angle = along * std::pow(static_cast<double>(op.theta), power);
                    cosine[j] = static_cast<float>(std::cos(angle));
                    sine[j] = static_cast<float>(std::sin(angle));
                }
                for (std::size_t head = 0; head < heads.heads; ++head) {
                    const float* const query = op.rows.row(row) + head * dim;
                    const std::size_t at = (head * heads.patches + op.first + row) * dim;
                    turn(query, op.query_norm, cosine, sine, heads.query, at);
                    turn(query + width, op.key_norm, cosine, sine, heads.key, at);
                    for (std::size_t i = 0; i < dim; ++i)
                        store(heads, heads.value, at + i, query[2 * width + i]);
                }
            }
        });
}

void CpuPrimitives::patch_attention(const PatchAttention& op) {
    const PatchHeads& heads = op.heads;
    const std::size_t dim = heads.dim;
    const std::size_t packed = packed_width(dim);
    const std::size_t stride = packed_width(heads.patches);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    products_.reserve_panels(dim);
    const std::size_t blocks = (op.output.rows + rows_at_once - 1) / rows_at_once;
    pool_.parallel_for(heads.heads * blocks, [&](std::size_t task, std::size_t thread) {
        const std::size_t head = task / blocks;
        const std::size_t first = task % blocks * rows_at_once;
        const std::size_t rows = std::min(rows_at_once, op.output.rows - first);
        float* const queries = thread_scratch(thread, attention_floats(dim, heads.patches));
        float* const scores = queries + rows_at_once * packed;
        float* const sums = scores + rows_at_once * stride;
        for (std::size_t r = 0; r < rows; ++r) {
            float* const query = queries + r * packed;
            std::fill(query + dim, query + packed, 0.0f);
            const std::size_t at = (head * heads.patches + op.first + first + r) * dim;
            for (std::size_t i = 0; i < dim; ++i)
                query[i] = load(heads, heads.query, at + i) * scale;
        }
        kernels_.product_prefill(head_matrix(heads, heads.key, head), 0, heads.patches,
                                 {queries, packed, rows}, scores, stride, products_.panel(thread));
        float totals[rows_at_once];
        for (std::size_t r = 0; r < rows; ++r)
            totals[r] = kernels_.exponentials(scores + r * stride, heads.patches);
        // Not the prefill class's: its panel would be as long as the picture.
        kernels_.product_transposed(head_matrix(heads, heads.value, head), 0, heads.patches, 0, dim,
                                    {scores, stride, rows}, sums, dim, products_.panel(thread));
        for (std::size_t r = 0; r < rows; ++r) {
            float* const out = op.output.row(first + r) + head * dim;
            for (std::size_t i = 0; i < dim; ++i)
                out[i] = sums[r * dim + i] / totals[r];
        }
    });
}

}  // namespace percheron::ops::cpu
