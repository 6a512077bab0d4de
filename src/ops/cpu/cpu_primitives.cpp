#include "ops/cpu/cpu_primitives.h"

#include <cassert>
#include <new>
#include <string>

namespace percheron::ops::cpu {
namespace {

// Vector operations of n elements with `each` operations a vector; only to size tasks.
std::size_t vector_cost(std::size_t n, std::size_t each) {
    return n * each / 16;
}

constexpr std::size_t cost_of_exponential = 20;

// The `chosen` largest of scores + bias in descending order, ties to the lower index, in one pass.
// values: room for `chosen` floats.
void choose_experts(const float* scores, const float* bias, std::size_t experts, std::size_t chosen,
                    std::uint32_t* choice, float* values) {
    std::size_t count = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
        const float score = scores[expert] + bias[expert];
        if (count == chosen && !(score > values[count - 1])) continue;
        if (count < chosen) ++count;
        std::size_t place = count - 1;
        for (; place > 0 && score > values[place - 1]; --place) {
            values[place] = values[place - 1];
            choice[place] = choice[place - 1];
        }
        values[place] = score;
        choice[place] = static_cast<std::uint32_t>(expert);
    }
}

}  // namespace

CpuPrimitives::CpuPrimitives(const Kernels& kernels, ThreadPool& pool)
    : kernels_(kernels),
      pool_(pool),
      products_(kernels, pool),
      ranking_(pool.threads()),
      fetched_slots_(pool.threads()) {}

CpuPrimitives::Sizes CpuPrimitives::sizes(const NetworkShape& shape, std::size_t rows,
                                          std::size_t logit_rows) {
    const std::size_t chosen_rows = rows * shape.experts_per_token;
    const std::size_t kda_width = shape.kda_heads * shape.kda_dim;
    const std::size_t value_width = shape.attention_heads * shape.value_dim;
    const auto packed = [](std::size_t count, std::size_t k) { return count * packed_width(k); };
    Sizes sizes;
    sizes.rows = rows * std::max(shape.experts, (3 + shape.streams) * shape.streams);
    // The largest set of inputs that one stage packs at a time; an input read by weights of both
    // layouts is packed twice.
    sizes.packed = std::max({
        packed(chosen_rows, shape.hidden) + 2 * packed(rows, shape.hidden),
        packed(chosen_rows, shape.expert_intermediate) + packed(rows, shape.shared_intermediate),
        packed(rows, shape.dense_intermediate),
        packed(rows, kda_width),
        4 * packed(rows, shape.kda_dim),
        packed(rows, value_width),
        packed(rows * shape.attention_heads, shape.latent),
        packed(rows * shape.attention_heads, shape.query_key_dim),
        2 * packed(rows, shape.hidden) + 2 * packed(rows, shape.query_rank),
        packed(rows, shape.streams * shape.hidden),
        packed(logit_rows, shape.hidden),
    });
    // Every piece starts on a cache line.
    sizes.packed += 16 * (shape.experts + 8);
    sizes.thread = std::max(
        {kda_thread_floats(shape.kda_dim), shape.index_heads * (packed_width(shape.index_dim) + 1),
         attention_thread_floats(shape.latent, shape.index_topk + shape.index_pool)});
    sizes.widest_input =
        std::max({shape.hidden * shape.streams, shape.dense_intermediate, shape.latent,
                  shape.query_key_dim, shape.query_rank, shape.expert_intermediate,
                  shape.shared_intermediate, kda_width, value_width});
    return sizes;
}

Bytes CpuPrimitives::working_bytes(const NetworkShape& shape, std::size_t rows,
                                   std::size_t logit_rows) const {
    const Sizes needed = sizes(shape, rows, logit_rows);
    const std::size_t each_thread = needed.thread + panel_room(needed.widest_input);
    return sizeof(float) * (needed.rows + needed.packed + pool_.threads() * each_thread);
}

Status CpuPrimitives::prepare(const NetworkShape& shape, std::size_t rows, std::size_t logit_rows) {
    const Sizes needed = sizes(shape, rows, logit_rows);
    try {
        rows_.reserve(needed.rows);
        for (auto& list : fetched_slots_)
            list.reserve(2 * rows + 1);
        products_.reserve(needed.packed, needed.widest_input,
                          2 * shape.experts + shape.attention_heads + 8);
        zeros_.resize(3 * shape.kda_heads * shape.kda_dim, 0.0f);
        reserve_thread_scratch(needed.thread);
    } catch (const std::bad_alloc&) {
        return Error(ErrorCode::out_of_memory,
                     "No memory for the products' working space of " +
                         std::to_string(working_bytes(shape, rows, logit_rows)) +
                         " bytes: lower the rows of a step.");
    }
    return {};
}

void CpuPrimitives::reserve_thread_scratch(std::size_t floats) {
    if (floats <= thread_stride_) return;
    thread_stride_ = (floats + 15) / 16 * 16;
    thread_scratch_.reserve(pool_.threads() * thread_stride_);
}

float* CpuPrimitives::thread_scratch(std::size_t thread, std::size_t floats) {
    assert(floats <= thread_stride_);
    (void)floats;
    return thread_scratch_.data() + thread * thread_stride_;
}

// ---- norms and activations

void CpuPrimitives::rms_norm(const RmsNorm& op) {
    in_blocks(op.input.rows, vector_cost(op.input.columns, 4),
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row)
                      kernels_.rms_norm(op.input.row(row), op.weight, op.eps, op.input.columns,
                                        op.output.row(row));
              });
}

void CpuPrimitives::layer_norm(const LayerNorm& op) {
    in_blocks(op.input.rows, vector_cost(op.input.columns, 12),
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row)
                      kernels_.layer_norm(op.input.row(row), op.weight, op.bias, op.eps,
                                          op.input.columns, op.output.row(row));
              });
}

void CpuPrimitives::gated_norm(const GatedNorm& op) {
    const std::size_t heads = op.input.columns / op.dim;
    in_blocks(op.input.rows, vector_cost(op.input.columns, cost_of_exponential + 6),
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row)
                      for (std::size_t head = 0; head < heads; ++head)
                          kernels_.gated_norm(op.input.row(row) + head * op.dim,
                                              op.gate.row(row) + head * op.dim, op.weight, op.eps,
                                              op.dim, op.output.row(row) + head * op.dim);
              });
}

void CpuPrimitives::swiglu(const Swiglu& op) {
    in_blocks(op.gate.rows, vector_cost(op.gate.columns, cost_of_exponential + 6),
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row)
                      kernels_.swiglu(op.gate.row(row), op.up.row(row), op.limit, op.gate.columns,
                                      op.output.row(row));
              });
}

// ---- products

void CpuPrimitives::products(std::span<const Linear> ops) {
    products_.run(ops);
}

// ---- hyper-connections

void CpuPrimitives::mhc_gates(const MhcGateComputation& op) {
    const std::size_t rows = op.state.rows;
    const std::size_t width = op.fn.n;
    assert(op.streams <= most_streams && width == (2 + op.streams) * op.streams);
    rows_.reserve(rows * width);
    products_.start();
    const PackedRows input = products_.pack(op.state, layout_for(op.fn.format), false);
    products_.add({op.fn, 0, width, input, rows_.data(), width});
    products_.run();
    in_blocks(rows, 600 + vector_cost(op.fn.k, 2),
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row) {
                      const float* const state = op.state.row(row);
                      const MhcRow gates{
                          op.streams,
                          op.iterations,
                          op.rms_eps,
                          op.mhc_eps,
                          kernels_.sum_of_squares(state, op.fn.k) / static_cast<float>(op.fn.k),
                          rows_.data() + row * width,
                          op.base,
                          op.scale,
                          op.pre.row(row),
                          op.post.row(row),
                          op.comb.row(row)};
                      kernels_.mhc_gates({&gates, 1});
                  }
              });
}

void CpuPrimitives::mhc_update(const MhcUpdate& op) {
    assert(op.streams <= most_streams);
    in_blocks(op.state.rows, vector_cost(op.state.columns, op.streams + 3),
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row)
                      kernels_.mhc_update(op.output.row(row), op.post.row(row), op.comb.row(row),
                                          op.streams, op.output.columns, op.state.row(row));
              });
}

void CpuPrimitives::mhc_collapse_row(const MhcCollapse& op, std::size_t row) const {
    float mean[most_streams];
    const float* pre = mean;
    if (op.pre.data != nullptr)
        pre = op.pre.row(row);
    else
        std::fill_n(mean, op.streams, 1.0f / static_cast<float>(op.streams));
    float* const out = op.output.row(row);
    kernels_.mhc_mix(op.state.row(row), pre, op.streams, op.output.columns, out);
    if (op.norm != nullptr) kernels_.rms_norm(out, op.norm, op.rms_eps, op.output.columns, out);
}

void CpuPrimitives::mhc_collapse(const MhcCollapse& op) {
    assert(op.streams <= most_streams);
    in_blocks(op.state.rows, vector_cost(op.state.columns, 4),
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row)
                      mhc_collapse_row(op, row);
              });
}

bool CpuPrimitives::mhc_turn(const MhcTurn& turn, const NetworkShape& shape) {
    const std::size_t S = shape.streams, D = turn.streams.columns / S;
    const std::size_t rows = turn.streams.rows, width = (2 + S) * S;
    assert(S <= most_streams);
    if (turn.next != nullptr) {
        const WeightMatrix& fn = turn.next->fn;
        constexpr std::size_t worth_splitting = 200'000;
        if (layout_for(fn.format) != PackedLayout::natural || packed_width(fn.k) != fn.k ||
            (rows < pool_.threads() && fn.n * fn.k > worth_splitting))
            return false;
        rows_.reserve(rows * (width + S));
        products_.reserve_panels(fn.k);
    }
    const auto matrix = [rows](const Activations& a) {
        return Rows<float>(static_cast<float*>(a.data), rows, a.columns);
    };
    const Rows<float> state = matrix(turn.streams);
    // Rows of one product at a time; one row is never worth a second thread here.
    constexpr std::size_t block = 8;
    const auto compute = [&](std::size_t first, std::size_t last, std::size_t thread) {
        const std::size_t count = last - first;
        for (std::size_t row = first; row < last; ++row) {
            if (turn.output != nullptr)
                kernels_.mhc_update(matrix(*turn.output).row(row), matrix(turn.gates.post).row(row),
                                    matrix(turn.gates.comb).row(row), S, D, state.row(row));
            if (turn.tap != nullptr)
                mhc_collapse_row({S, state, {}, nullptr, shape.rms_eps, matrix(*turn.tap)}, row);
            if (turn.final_norm != nullptr)
                mhc_collapse_row(
                    {S, state, {}, turn.final_norm, shape.rms_eps, matrix(turn.normed)}, row);
        }
        if (turn.next == nullptr) return;
        const MhcWeights& next = *turn.next;
        float* const products = rows_.data() + first * width;
        kernels_.product(next.fn, 0, width, {state.row(first), state.stride, count}, products,
                         width, products_.panel(thread), nullptr);
        const Rows<float> pre(rows_.data() + rows * width, rows, S);
        MhcRow gates[block];
        for (std::size_t row = first; row < last; ++row) {
            const float squares = kernels_.sum_of_squares(state.row(row), next.fn.k);
            gates[row - first] = {S,
                                  shape.sinkhorn_iterations,
                                  shape.rms_eps,
                                  shape.mhc_eps,
                                  squares / static_cast<float>(next.fn.k),
                                  rows_.data() + row * width,
                                  next.base,
                                  next.scale,
                                  pre.row(row),
                                  matrix(turn.gates.post).row(row),
                                  matrix(turn.gates.comb).row(row)};
        }
        kernels_.mhc_gates({gates, count});
        for (std::size_t row = first; row < last; ++row)
            mhc_collapse_row({S, state, pre, next.norm, shape.rms_eps, matrix(turn.normed)}, row);
    };
    // A thread's share of the rows, but no more than a product reads its weights for.
    const std::size_t share = (rows + pool_.threads() - 1) / pool_.threads();
    const std::size_t each = std::max<std::size_t>(1, std::min(block, share));
    pool_.parallel_for((rows + each - 1) / each, [&](std::size_t task, std::size_t thread) {
        compute(task * each, std::min(rows, (task + 1) * each), thread);
    });
    return true;
}

// ---- experts

void CpuPrimitives::router(const Router& op) {
    const std::size_t rows = op.input.rows;
    const std::size_t experts = op.weight.n;
    const std::size_t chosen = op.experts.columns;
    rows_.reserve(rows * experts);
    products_.start();
    const PackedRows input = products_.pack(op.input, layout_for(op.weight.format), false);
    products_.add({op.weight, 0, experts, input, rows_.data(), experts});
    products_.run();
    in_blocks(rows, vector_cost(experts, cost_of_exponential) + chosen * experts / 2,
              [&](std::size_t first, std::size_t last, std::size_t) {
                  for (std::size_t row = first; row < last; ++row) {
                      float* const scores = rows_.data() + row * experts;
                      kernels_.sigmoid(scores, experts, scores);
                      std::uint32_t* const choice = op.experts.row(row);
                      float* const weights = op.weights.row(row);
                      choose_experts(scores, op.bias, experts, chosen, choice, weights);
                      float sum = 0;
                      for (std::size_t j = 0; j < chosen; ++j) {
                          weights[j] = scores[choice[j]];
                          sum += weights[j];
                      }
                      const float scale = op.normalise ? op.scale / (sum + 1e-20f) : op.scale;
                      for (std::size_t j = 0; j < chosen; ++j)
                          weights[j] *= scale;
                  }
              });
}

void CpuPrimitives::combine_experts(const CombineExperts& op) {
    const std::size_t chosen = op.place.columns;
    in_blocks(op.output.rows, vector_cost(op.output.columns, 2 * chosen + 2),
              [&](std::size_t first, std::size_t last, std::size_t) {
                  constexpr std::size_t at_once = 16;
                  const float* from[at_once];
                  assert(chosen <= at_once);
                  for (std::size_t row = first; row < last; ++row) {
                      for (std::size_t j = 0; j < chosen; ++j)
                          from[j] = op.expert_output.row(op.place.row(row)[j]);
                      kernels_.weighted_sum(from, op.weights.row(row), chosen, op.shared.row(row),
                                            op.output.columns, op.output.row(row));
                  }
              });
}

}  // namespace percheron::ops::cpu
