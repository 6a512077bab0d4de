// Stages that a prompt's rows go through in another way than generated ones.
#include <algorithm>

#include "ops/cuda/cuda_stages.h"
#include "ops/cuda/prefill_attention.h"
#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/prefill_kda.h"
#include "ops/cuda/prefill_rows.h"
#include "ops/cuda/prefill_select.h"
#include "ops/cuda/stage_products.h"

namespace percheron::ops::cuda {

void CudaBackend::prompt_kda(const KdaWeights& weights, const KdaSlots& slots,
                             const RowBatch& batch, const KdaScratch& scratch) {
    const int heads = static_cast<int>(shape_.kda_heads);
    const int width = heads * static_cast<int>(shape_.kda_dim);
    std::vector<std::uint32_t> row_counts;
    for (const SequenceRows& sequence : batch.sequences)
        row_counts.push_back(sequence.row_count);
    KdaPrompt prompt;
    prompt.heads = heads;
    prompt.projections = scratch.projections;
    prompt.projection_stride = scratch.stride;
    prompt.beta = scratch.projections + 3 * width;
    prompt.beta_stride = scratch.stride;
    prompt.decay = scratch.decay;
    prompt.decay_stride = width;
    prompt.gate = scratch.gate;
    prompt.gate_stride = width;
    prompt.conv = weights.conv;
    prompt.a_log = weights.a_log;
    prompt.dt_bias = weights.dt_bias;
    prompt.out_norm = weights.out_norm;
    prompt.lower_bound = shape_.kda_gate_lower_bound;
    prompt.norm_eps = shape_.rms_eps;
    prompt.slots = slots;
    prompt.sequences = batch_.view().sequences;
    prompt.sequence_count = batch_.view().sequence_count;
    prompt.prepared = scratch.prepared;
    prompt.prepared_chunks = scratch.prepared_chunks;
    prompt.output = scratch.mixed;
    note(kda_prompt(prompt, row_counts, context_));
}

void CudaBackend::prompt_attention_of(const LatentPages& pages, const SparseScratch& s,
                                      int most_pools) {
    // As many rows' scores at a time as there is room for.
    const auto rows = static_cast<std::size_t>(batch_.view().rows);
    const std::size_t room = s.score_count / static_cast<std::size_t>(most_pools);
    for (std::size_t first = 0; first < rows; first += room)
        note(select_prompt_tokens(
            selection_of(pages, s, most_pools, first, std::min(room, rows - first)), context_));
    PromptAttention attention;
    attention.heads = static_cast<int>(shape_.attention_heads);
    attention.scale = attention_scale();
    attention.absorbed = s.absorbed;
    attention.pages = pages;
    attention.batch = batch_.view();
    attention.positions = s.positions;
    attention.positions_stride = s.positions_stride;
    attention.counts = s.counts;
    attention.read = s.read;
    note(prompt_attention(attention, context_));
}

void CudaBackend::prompt_experts(const ExpertsWeights& weights, int rows, Activations x,
                                 Activations y) {
    scratch_.restart();
    const auto& table = *static_cast<const ExpertTable*>(weights.table);
    const int hidden = static_cast<int>(shape_.hidden);
    const int inner = static_cast<int>(shape_.expert_intermediate);
    const int experts = static_cast<int>(shape_.experts);
    const int chosen = static_cast<int>(shape_.experts_per_token), pairs = rows * chosen;
    const ExpertsScratch s =
        ExpertsScratch::lay_out(scratch_, shape_, static_cast<std::size_t>(rows));

    // Every part is a row of the router's product.
    OrderedRows order;
    order.rows = rows * row_parts;
    order.columns = order.x_stride = hidden;
    order.x = parts_of(x);
    order.out = s.ordered;
    note(order_rows(order, context_));
    const FewRowProduct logits =
        product(packed_view(weights.router), s.ordered, hidden, s.logits, experts);
    multiply({&logits, 1}, rows * row_parts);
    Routing routing;
    routing.rows = rows;
    routing.hidden = hidden;
    routing.experts = experts;
    routing.chosen = chosen;
    routing.bias = weights.router_bias;
    routing.scale = shape_.router_scale;
    routing.normalise = shape_.normalise_router_weights;
    routing.logits = s.logits;
    routing.choice = s.choice;
    note(choose_experts(routing, context_));

    PairGrouping grouping;
    grouping.pairs = pairs;
    grouping.experts = experts;
    grouping.group_rows = prefill_group_rows;
    grouping.chosen = s.choice.experts;
    grouping.pair_order = s.choice.pair_order;
    grouping.groups = s.choice.groups;
    grouping.group_count = s.choice.group_count;
    grouping.touched = table.touched;
    note(group_pairs(grouping, context_));
    OrderedRows gather;
    gather.rows = pairs;
    gather.columns = hidden;
    gather.x = parts_of(x);
    gather.x_stride = row_parts * hidden;
    gather.pair_order = s.choice.pair_order;
    gather.pairs_per_row = chosen;
    gather.out = s.gathered;
    note(order_rows(gather, context_));

    PrefillExperts inside;
    inside.format = table.gate_format;
    inside.n = inner;
    inside.k = hidden;
    inside.weights = table.gates;
    inside.ups = table.ups;
    inside.scales = table.gate_scales;
    inside.up_scales = table.up_scales;
    inside.x = s.gathered;
    inside.x_stride = hidden;
    inside.pairs = pairs;
    inside.groups = s.choice.groups;
    inside.group_count = s.choice.group_count;
    inside.pair_order = s.choice.pair_order;
    inside.y = s.inside;
    inside.y_stride = inner;
    note(prefill_experts(inside, shape_.swiglu_limit, context_));
    PrefillExperts down = inside;
    down.format = table.down_format;
    down.n = hidden;
    down.k = inner;
    down.weights = table.downs;
    down.ups = nullptr;
    down.scales = table.down_scales;
    down.up_scales = nullptr;
    down.x = s.inside;
    down.x_stride = inner;
    down.y = s.pair_output;
    down.y_stride = hidden;
    note(prefill_experts(down, shape_.swiglu_limit, context_));
    feed_forward(weights.shared, rows, {s.ordered, row_parts * hidden}, s.shared_inside, s.shared,
                 context_);
    // The turn that follows adds the experts up as it reads them.
    pairs_ =
        ExpertSum{rows, hidden, {chosen, s.choice.weights, s.pair_output}, s.shared, floats(y)};
}

}  // namespace percheron::ops::cuda
