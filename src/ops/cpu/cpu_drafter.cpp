// The primitives that only a block drafter uses.
#include <algorithm>
#include <cmath>
#include <new>
#include <string>

#include "ops/cpu/cpu_primitives.h"
#include "ops/drafter_stages.h"
#include "ops/stored_values.h"

namespace percheron::ops::cpu {
namespace {

constexpr std::size_t page_stride = packed_width(page_tokens);

// Of the attention of one kv head's queries of one block: packed queries, their scores over a page,
// what they read of it and of all before, largest score and sum of weights; the keys or values of a
// page that is not stored as the kernels read it, and the block's own.
struct AttentionScratch {
    float* queries = nullptr;  // [rows][packed_width(dim)]
    float* scores = nullptr;   // [rows][page_stride]
    float* page_read = nullptr;
    float* read = nullptr;     // [rows][dim], as page_read
    float* largest = nullptr;  // [rows], as total
    float* total = nullptr;
    float* widened = nullptr;  // [64][dim]
    float* own = nullptr;      // [block][dim] keys, then values

    static std::size_t floats(std::size_t rows, std::size_t block, std::size_t dim) {
        return rows * (packed_width(dim) + page_stride + 2 * dim + 2) +
               (page_tokens + 2 * block) * dim;
    }
    AttentionScratch(float* memory, std::size_t rows, std::size_t dim) {
        const auto take = [&memory](std::size_t count) {
            float* const piece = memory;
            memory += count;
            return piece;
        };
        queries = take(rows * packed_width(dim));
        scores = take(rows * page_stride);
        page_read = take(rows * dim);
        read = take(rows * dim);
        widened = take(page_tokens * dim);
        largest = take(rows);
        total = take(rows);
        own = take(0);
    }
};

WeightMatrix float_rows(const float* data, std::size_t rows, std::size_t dim) {
    WeightMatrix matrix;
    matrix.format = WeightFormat::f32;
    matrix.n = rows;
    matrix.k = dim;
    matrix.data = data;
    return matrix;
}

// 64 rows of a page from value `at` on, in a form that the kernels read.
WeightMatrix page_rows(const ContextPages& pages, PageId page, std::size_t at, float* widened) {
    const void* const data = pages.page(page);
    if (pages.dtype == DType::f8_e4m3) {
        for (std::size_t i = 0; i < page_tokens * pages.dim; ++i) {
            widened[i] = load_stored(data, pages.dtype, at + i);
        }
        return float_rows(widened, page_tokens, pages.dim);
    }
    WeightMatrix matrix = float_rows(nullptr, page_tokens, pages.dim);
    matrix.format = pages.dtype == DType::f32 ? WeightFormat::f32 : WeightFormat::bf16;
    matrix.data = static_cast<const std::byte*>(data) + at * size_of(pages.dtype);
    return matrix;
}

}  // namespace

Bytes CpuPrimitives::drafter_working_bytes(const DrafterShape& shape) const {
    const DrafterSizes needed = drafter_sizes(shape);
    return sizeof(float) *
           (needed.packed + pool_.threads() * (needed.thread + panel_room(needed.widest_input)));
}

CpuPrimitives::DrafterSizes CpuPrimitives::drafter_sizes(const DrafterShape& shape) {
    const std::size_t width = shape.heads * shape.head_dim;
    DrafterSizes sizes;
    sizes.widest_input = std::max(
        {shape.taps * shape.hidden, shape.intermediate, width, shape.head_dim, page_tokens});
    // One input a set, but its weights may be of both layouts.
    sizes.packed =
        2 * std::max(shape.context_rows * packed_width(shape.taps * shape.hidden),
                     shape.block_rows *
                         packed_width(std::max({shape.hidden, width, shape.intermediate}))) +
        16;
    sizes.thread = AttentionScratch::floats(shape.heads / shape.kv_heads * shape.block, shape.block,
                                            shape.head_dim);
    return sizes;
}

Status CpuPrimitives::prepare_drafter(const DrafterShape& shape) {
    const DrafterSizes needed = drafter_sizes(shape);
    try {
        products_.reserve(needed.packed, needed.widest_input, 8);
        reserve_thread_scratch(needed.thread);
    } catch (const std::bad_alloc&) {
        return Error(ErrorCode::out_of_memory,
                     "No memory for the drafter's working space of " +
                         std::to_string(drafter_working_bytes(shape)) +
                         " bytes: start without --draft-model or free memory.");
    }
    return {};
}

void CpuPrimitives::rope_angles(const RopeAngles& op) {
    const std::size_t half = op.angles.columns / 2;
    constexpr std::size_t cost_of_an_angle = 4;
    for (const DraftRows& rows : op.rows) {
        in_blocks(rows.row_count, half * cost_of_an_angle,
                  [&](std::size_t first, std::size_t last, std::size_t) {
                      for (std::size_t j = 0; j < half; ++j) {
                          const double power = -static_cast<double>(j) / static_cast<double>(half);
                          const double rate = std::pow(static_cast<double>(op.theta), power);
                          for (std::size_t i = first; i < last; ++i) {
                              const double angle =
                                  static_cast<double>(rows.first_position + i) * rate;
                              float* const out = op.angles.row(rows.first_row + i);
                              out[j] = static_cast<float>(std::cos(angle));
                              out[j + half] = static_cast<float>(std::sin(angle));
                          }
                      }
                  });
    }
}

void CpuPrimitives::rotate_heads(const RotateHeads& op) {
    const std::size_t half = op.dim / 2;
    in_blocks(op.output.rows, op.output.columns / 4,
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row) {
                      const float* const cosine = op.angles.row(row);
                      const float* const sine = cosine + half;
                      for (std::size_t at = 0; at < op.output.columns; at += op.dim) {
                          const float* const in = op.input.row(row) + at;
                          float* const out = op.output.row(row) + at;
                          const float mean =
                              kernels_.sum_of_squares(in, op.dim) / static_cast<float>(op.dim);
                          const float scale = 1.0f / std::sqrt(mean + op.eps);
                          for (std::size_t j = 0; j < half; ++j) {
                              const float a = in[j] * scale * op.norm[j];
                              const float b = in[j + half] * scale * op.norm[j + half];
                              out[j] = a * cosine[j] - b * sine[j];
                              out[j + half] = b * cosine[j] + a * sine[j];
                          }
                      }
                  }
              });
}

void CpuPrimitives::store_context(const StoreContext& op) {
    const ContextPages& pages = op.pages;
    const auto store = [&](void* page, std::size_t at, const float* values) {
        for (std::size_t d = 0; d < pages.dim; ++d) {
            store_rounded(page, pages.dtype, at + d, values[d]);
        }
    };
    for (const DraftRows& rows : op.rows) {
        in_blocks(rows.row_count, pages.heads * pages.dim / 2,
                  [&](std::size_t first, std::size_t last, std::size_t) {
                      for (std::size_t i = first; i < last; ++i) {
                          const auto position = static_cast<Position>(rows.first_position + i);
                          void* const page = pages.page(rows.context.page_of(position));
                          const std::size_t place = position % page_tokens * pages.dim;
                          const std::size_t row = rows.first_row + i;
                          for (std::size_t head = 0; head < pages.heads; ++head) {
                              store(page, pages.keys_at(head) + place,
                                    op.keys.row(row) + head * pages.dim);
                              store(page, pages.values_at(head) + place,
                                    op.values.row(row) + head * pages.dim);
                          }
                      }
                  });
    }
}

// The queries of one kv head over a page after the other, then over the block: scores, weights
// relative to the page's largest score, and what they read, joined with what was read before by
// rescaling to the common largest.
void CpuPrimitives::attend_block(const BlockAttention& op, const DraftRows& block, std::size_t head,
                                 std::size_t thread) {
    const ContextPages& pages = op.pages;
    const DraftContext& context = block.context;
    const std::size_t dim = pages.dim;
    const std::size_t packed = packed_width(dim);
    const std::size_t shared = op.heads() / pages.heads;
    const std::size_t rows = shared * block.row_count;
    const bool round = op.arithmetic == Arithmetic::standard;
    const AttentionScratch s(
        thread_scratch(thread, AttentionScratch::floats(rows, block.row_count, dim)), rows, dim);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));

    // Row r: head r / row_count of this kv head's, the block's row r % row_count.
    for (std::size_t r = 0; r < rows; ++r) {
        const float* const query = op.query.row(block.first_row + r % block.row_count) +
                                   (head * shared + r / block.row_count) * dim;
        kernels_.pack_row(PackedLayout::natural, round, query, dim, s.queries + r * packed);
    }
    std::fill_n(s.read, rows * dim, 0.0f);
    std::fill_n(s.largest, rows, -INFINITY);
    std::fill_n(s.total, rows, 0.0f);

    // Keys and values [skipped, count) of a matrix whose row 0 is that of position `first`.
    const auto attend = [&](const auto& keys, const auto& values, std::size_t skipped,
                            std::size_t count, Position first) {
        const std::size_t seen_by_all = count - skipped;
        kernels_.product(keys(), skipped, count, {s.queries, packed, rows}, s.scores, page_stride,
                         products_.panel(thread), nullptr);
        for (std::size_t r = 0; r < rows; ++r) {
            const auto here = static_cast<Position>(block.first_position + r % block.row_count);
            const auto seen = [&](std::size_t i) {
                return in_window(here, static_cast<Position>(first + skipped + i), op.window);
            };
            // A window leaves one run of them.
            std::size_t begin = 0, end = seen_by_all;
            while (begin < end && !seen(begin))
                ++begin;
            while (end > begin && !seen(end - 1))
                --end;
            float* const scores = s.scores + r * page_stride;
            std::fill(scores, scores + begin, 0.0f);
            std::fill(scores + end, scores + seen_by_all, 0.0f);
            if (begin == end) continue;
            for (std::size_t i = begin; i < end; ++i) {
                scores[i] *= scale;
            }
            const float before = s.largest[r];
            const float here_largest = *std::max_element(scores + begin, scores + end);
            const float sum = kernels_.exponentials(scores + begin, end - begin);
            s.largest[r] = std::max(before, here_largest);
            const float old = before == -INFINITY ? 0.0f : std::exp(before - s.largest[r]);
            const float now = std::exp(here_largest - s.largest[r]);
            s.total[r] = s.total[r] * old + sum * now;
            for (std::size_t d = 0; d < dim; ++d) {
                s.read[r * dim + d] *= old;
            }
            for (std::size_t i = begin; i < end; ++i) {
                scores[i] *= now;
            }
        }
        kernels_.product_transposed(values(), skipped, seen_by_all, 0, dim,
                                    {s.scores, page_stride, rows}, s.page_read, dim,
                                    products_.panel(thread));
        for (std::size_t i = 0; i < rows * dim; ++i) {
            s.read[i] += s.page_read[i];
        }
    };

    const Position known = std::min(context.end, block.first_position);
    // What the block's first row sees, its others do or see less of.
    Position from = context.begin;
    if (op.window > 0 && block.first_position >= op.window) {
        from = std::max(from, block.first_position - op.window + 1);
    }
    constexpr auto page_positions = static_cast<Position>(page_tokens);
    for (Position first = from / page_positions * page_positions; first < known;
         first += page_positions) {
        const Position skipped = from - std::min(from, first);
        const PageId page = context.page_of(first + skipped);
        const std::size_t count = std::min(page_positions, known - first);
        attend([&] { return page_rows(pages, page, pages.keys_at(head), s.widened); },
               [&] { return page_rows(pages, page, pages.values_at(head), s.widened); }, skipped,
               count, first);
    }

    const std::size_t own = block.row_count * dim;
    for (std::uint32_t i = 0; i < block.row_count; ++i) {
        const float* const key = op.key.row(block.first_row + i) + head * dim;
        const float* const value = op.value.row(block.first_row + i) + head * dim;
        for (std::size_t d = 0; d < dim; ++d) {
            s.own[i * dim + d] = round ? rounded_to_bf16(key[d]) : key[d];
            s.own[own + i * dim + d] = round ? rounded_to_bf16(value[d]) : value[d];
        }
    }
    attend([&] { return float_rows(s.own, block.row_count, dim); },
           [&] { return float_rows(s.own + own, block.row_count, dim); }, 0, block.row_count,
           block.first_position);

    for (std::size_t r = 0; r < rows; ++r) {
        float* const out = op.output.row(block.first_row + r % block.row_count) +
                           (head * shared + r / block.row_count) * dim;
        for (std::size_t d = 0; d < dim; ++d) {
            out[d] = s.read[r * dim + d] / s.total[r];
        }
    }
}

void CpuPrimitives::block_attention(const BlockAttention& op) {
    products_.reserve_panels(std::max(op.pages.dim, page_tokens));
    pool_.parallel_for(
        op.blocks.size() * op.pages.heads, [&](std::size_t task, std::size_t thread) {
            attend_block(op, op.blocks[task / op.pages.heads], task % op.pages.heads, thread);
        });
}

void CpuPrimitives::block_conv(const BlockConv& op) {
    const std::size_t channels = op.output.columns;
    const std::size_t groups = channels / op.width;
    for (const DraftRows& block : op.blocks) {
        // A row reads rows before it of its input alone, which nothing here writes.
        in_blocks(block.row_count, channels * op.taps / 4,
                  [&](std::size_t first, std::size_t last, std::size_t) {
                      for (std::size_t i = first; i < last; ++i) {
                          const std::size_t row = block.first_row + i;
                          float* const out = op.output.row(row);
                          if (!op.add) std::fill_n(out, channels, 0.0f);
                          for (std::size_t tap = 0; tap < op.taps && tap <= i; ++tap) {
                              const float* const in = op.input.row(row - tap);
                              const float* const base = op.base + tap * channels;
                              const float* const gates = op.gates.row(row) + tap * groups;
                              for (std::size_t group = 0; group < groups; ++group) {
                                  for (std::size_t c = group * op.width; c < (group + 1) * op.width;
                                       ++c) {
                                      out[c] += (base[c] + gates[group]) * in[c];
                                  }
                              }
                          }
                      }
                  });
    }
}

}  // namespace percheron::ops::cpu
