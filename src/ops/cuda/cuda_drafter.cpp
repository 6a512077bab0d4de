#include "ops/cuda/cuda_drafter.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops/cuda/drafter_attention.h"
#include "ops/cuda/embed_rows.h"
#include "ops/cuda/stage_products.h"
#include "ops/cuda/weight_placement.h"

namespace percheron::ops::cuda {
namespace {

struct FeaturesScratch {
    __nv_bfloat16* joined = nullptr;  // [R, taps D]
    static FeaturesScratch lay_out(DeviceScratch& scratch, const DrafterShape& shape,
                                   std::size_t rows) {
        return {scratch.take<__nv_bfloat16>(rows * shape.taps * shape.hidden)};
    }
};

struct ContextScratch {
    float *keys = nullptr, *values = nullptr;  // [R, G d]
    static ContextScratch lay_out(DeviceScratch& scratch, const DrafterShape& shape,
                                  std::size_t rows) {
        ContextScratch s;
        s.keys = scratch.take<float>(rows * shape.kv_heads * shape.head_dim);
        s.values = scratch.take<float>(rows * shape.kv_heads * shape.head_dim);
        return s;
    }
};

// What both sublayers begin and end with.
struct SublayerScratch {
    float* normed = nullptr;           // [R, D]
    __nv_bfloat16* rounded = nullptr;  // [R, D]
    float* gates = nullptr;            // [R, 2 taps groups]
    __nv_bfloat16* input = nullptr;    // [R, D]
    float* output = nullptr;           // [R, D]
    static SublayerScratch lay_out(DeviceScratch& scratch, const DrafterShape& shape,
                                   std::size_t rows) {
        SublayerScratch s;
        s.normed = scratch.take<float>(rows * shape.hidden);
        s.rounded = scratch.take<__nv_bfloat16>(rows * shape.hidden);
        s.gates = scratch.take<float>(rows * 2 * shape.gates());
        s.input = scratch.take<__nv_bfloat16>(rows * shape.hidden);
        s.output = scratch.take<float>(rows * shape.hidden);
        return s;
    }
};

struct AttentionScratch {
    SublayerScratch layer;
    float *query = nullptr, *key = nullptr, *value = nullptr;
    __nv_bfloat16 *turned_query = nullptr, *turned_key = nullptr, *rounded_value = nullptr;
    float* partial = nullptr;
    __nv_bfloat16* attended = nullptr;
    static AttentionScratch lay_out(DeviceScratch& scratch, const DrafterShape& shape,
                                    std::size_t rows) {
        const std::size_t wide = rows * shape.heads * shape.head_dim;
        const std::size_t narrow = rows * shape.kv_heads * shape.head_dim;
        AttentionScratch s;
        s.layer = SublayerScratch::lay_out(scratch, shape, rows);
        s.query = scratch.take<float>(wide);
        s.key = scratch.take<float>(narrow);
        s.value = scratch.take<float>(narrow);
        s.turned_query = scratch.take<__nv_bfloat16>(wide);
        s.turned_key = scratch.take<__nv_bfloat16>(narrow);
        s.rounded_value = scratch.take<__nv_bfloat16>(narrow);
        s.partial = scratch.take<float>(partial_floats(rows, shape.heads, shape.head_dim));
        s.attended = scratch.take<__nv_bfloat16>(wide);
        return s;
    }
};

struct FeedForwardScratch {
    SublayerScratch layer;
    __nv_bfloat16* inside = nullptr;  // [R, I]
    static FeedForwardScratch lay_out(DeviceScratch& scratch, const DrafterShape& shape,
                                      std::size_t rows) {
        FeedForwardScratch s;
        s.layer = SublayerScratch::lay_out(scratch, shape, rows);
        s.inside = scratch.take<__nv_bfloat16>(rows * shape.intermediate);
        return s;
    }
};

struct ProjectScratch {
    __nv_bfloat16* rounded = nullptr;  // [R, D]
    float* output = nullptr;           // [R, rank]
    static ProjectScratch lay_out(DeviceScratch& scratch, const DrafterShape& shape,
                                  std::size_t rows) {
        ProjectScratch s;
        s.rounded = scratch.take<__nv_bfloat16>(rows * shape.hidden);
        s.output = scratch.take<float>(rows * std::max<std::size_t>(shape.rank, 1));
        return s;
    }
};

Bytes scratch_bytes(const DrafterShape& shape) {
    DeviceScratch scratch;
    FeaturesScratch::lay_out(scratch, shape, shape.context_rows);
    scratch.restart();
    ContextScratch::lay_out(scratch, shape, shape.context_rows);
    scratch.restart();
    AttentionScratch::lay_out(scratch, shape, shape.block_rows);
    scratch.restart();
    FeedForwardScratch::lay_out(scratch, shape, shape.block_rows);
    scratch.restart();
    ProjectScratch::lay_out(scratch, shape, shape.block_rows);
    return scratch.peak();
}

std::size_t most_rows(const DrafterShape& shape) {
    return std::max(shape.context_rows, shape.block_rows);
}

Bytes angle_bytes(const DrafterShape& shape) {
    return most_rows(shape) * shape.head_dim * sizeof(float);
}

Bytes rounded_context_bytes(const DrafterShape& shape) {
    return shape.context_rows * shape.hidden * sizeof(__nv_bfloat16);
}

// The buffer of a pass's rows: runs, then three lists of 32-bit numbers, the pages last.
struct RowsLayout {
    std::size_t run_of_row, numbers, pages, end;
    RowsLayout(std::size_t rows, std::size_t page_count) {
        const auto after = [](std::size_t start, std::size_t bytes) {
            return (start + bytes + 63) / 64 * 64;
        };
        run_of_row = after(0, rows * sizeof(DeviceDraftRows));
        numbers = after(run_of_row, rows * sizeof(std::uint32_t));
        pages = after(numbers, rows * sizeof(std::uint32_t));
        end = after(pages, page_count * sizeof(std::uint32_t));
    }
};

// Pages of a few long contexts; more are made room for when they come.
std::size_t pages_at_first(const DrafterShape& shape) {
    return std::max<std::size_t>(16384, most_rows(shape));
}

}  // namespace

CudaDrafter::CudaDrafter(const LaunchContext& context, std::function<bool()> ready,
                         std::function<void(const Status&)> note)
    : context_(context), ready_(std::move(ready)), note_(std::move(note)) {
    // Uploads lie between the kernels.
    context_.dependent = false;
}

Bytes CudaDrafter::working_bytes(const DrafterShape& shape) const {
    return scratch_bytes(shape) + angle_bytes(shape) + rounded_context_bytes(shape) +
           RowsLayout(most_rows(shape), pages_at_first(shape)).end;
}

Status CudaDrafter::prepare(const DrafterShape& shape) {
    const auto unsuited = [](const std::string& what, std::size_t is, const std::string& needed) {
        return Error(ErrorCode::unsupported, "The CUDA kernels need " + what + " to be " + needed +
                                                 ", this drafter's is " + std::to_string(is) +
                                                 "; use --device cpu, --draft mtp, copy or off.");
    };
    if (shape.head_dim != 64 && shape.head_dim != 128)
        return unsuited("the head dimension", shape.head_dim, "64 or 128");
    if (shape.taps > most_drafter_taps) {
        return unsuited("the number of tapped layers", shape.taps,
                        "at most " + std::to_string(most_drafter_taps));
    }
    if (shape.kv_heads == 0 || shape.heads % shape.kv_heads != 0 ||
        shape.heads / shape.kv_heads * shape.block > most_block_queries) {
        return unsuited("the heads that share keys, times the rows of a block,",
                        shape.kv_heads == 0 ? 0 : shape.heads / shape.kv_heads * shape.block,
                        "at most " + std::to_string(most_block_queries));
    }
    for (const auto& [what, is] : {std::pair{"the hidden size", shape.hidden},
                                   {"the heads' width", shape.heads * shape.head_dim},
                                   {"the feed-forward's width", shape.intermediate}}) {
        if (is % block_columns != 0) return unsuited(what, is, "a multiple of 128");
    }
    if (!ready_()) return Error(ErrorCode::internal, "the device is lost");
    shape_ = shape;
    PERCHERON_ASSIGN(memory_, DeviceMemory::allocate(scratch_bytes(shape), "a drafter's stages"));
    scratch_.use(memory_.data());
    PERCHERON_ASSIGN(angles_, DeviceMemory::allocate(angle_bytes(shape), "a drafter's angles"));
    PERCHERON_ASSIGN(rounded_context_, DeviceMemory::allocate(rounded_context_bytes(shape),
                                                              "a drafter's context rows"));
    const Bytes rows = RowsLayout(most_rows(shape), pages_at_first(shape)).end;
    PERCHERON_ASSIGN(rows_, DeviceMemory::allocate(rows, "the rows of a drafter's pass"));
    PERCHERON_ASSIGN(rows_host_, PinnedMemory::allocate(rows, "the rows of a drafter's pass"));
    return {};
}

bool CudaDrafter::upload(std::span<const DraftRows> rows, std::span<const std::uint32_t> numbers) {
    if (!ready_()) return false;
    std::size_t pages = 0;
    for (const DraftRows& run : rows)
        pages += run.context.pages.size();
    const RowsLayout layout(numbers.size(), pages);
    if (layout.end > rows_.size()) {
        auto device = DeviceMemory::allocate(2 * layout.end, "the rows of a drafter's pass");
        auto host = PinnedMemory::allocate(2 * layout.end, "the rows of a drafter's pass");
        if (!device.ok() || !host.ok()) {
            note_(device.ok() ? host.error() : device.error());
            return false;
        }
        rows_ = std::move(device).value();
        rows_host_ = std::move(host).value();
    }
    auto* const runs = reinterpret_cast<DeviceDraftRows*>(rows_host_.data());
    const auto list = [&](std::size_t at) {
        return reinterpret_cast<std::uint32_t*>(rows_host_.data() + at);
    };
    std::uint32_t next_page = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const DraftRows& run = rows[i];
        runs[i] = {run.first_row,     run.row_count,   run.first_position,
                   run.context.begin, run.context.end, next_page};
        for (const PageId page : run.context.pages)
            list(layout.pages)[next_page++] = to_int(page);
        std::fill_n(list(layout.run_of_row) + run.first_row, run.row_count,
                    static_cast<std::uint32_t>(i));
    }
    std::copy(numbers.begin(), numbers.end(), list(layout.numbers));
    note_(check(cudaMemcpyAsync(rows_.data(), rows_host_.data(), layout.end, cudaMemcpyHostToDevice,
                                context_.stream),
                "uploading the rows of a drafter's pass"));
    const auto on_device = [&](std::size_t at) {
        return reinterpret_cast<const std::uint32_t*>(rows_.data() + at);
    };
    table_.rows = static_cast<int>(numbers.size());
    table_.runs = static_cast<int>(rows.size());
    table_.run = reinterpret_cast<const DeviceDraftRows*>(rows_.data());
    table_.run_of_row = on_device(layout.run_of_row);
    table_.pages = on_device(layout.pages);
    numbers_ = on_device(layout.numbers);
    return true;
}

void CudaDrafter::multiply(std::span<const FewRowProduct> products, int rows) {
    multiply_by_format(products, rows, std::numeric_limits<float>::infinity(), context_, note_);
}

void CudaDrafter::norm(const float* in, const float* weight, int rows, float* out,
                       __nv_bfloat16* rounded) {
    note_(
        norm_rows({rows, static_cast<int>(shape_.hidden), in, weight, shape_.rms_eps, out, rounded},
                  context_));
}

void CudaDrafter::context_features(const WeightMatrix& fusion, const float* weight,
                                   std::span<const Activations> taps,
                                   std::span<const std::uint32_t> tap_rows,
                                   std::span<const DraftRows> rows, NumericClass /*numeric_class*/,
                                   Activations c) {
    if (!upload(rows, tap_rows)) return;
    scratch_.restart();
    const FeaturesScratch s = FeaturesScratch::lay_out(scratch_, shape_, tap_rows.size());
    const int width = static_cast<int>(shape_.hidden);
    JoinedTaps join;
    join.rows = table_.rows;
    join.taps = static_cast<int>(taps.size());
    join.columns = width;
    for (std::size_t tap = 0; tap < taps.size(); ++tap)
        join.tap[tap] = floats(taps[tap]);
    join.tap_rows = numbers_;
    join.joined = s.joined;
    note_(join_taps(join, context_));
    const FewRowProduct fused =
        product(packed_view(fusion), s.joined, join.taps * width, floats(c), width);
    multiply({&fused, 1}, table_.rows);
    norm(floats(c), weight, table_.rows, floats(c),
         reinterpret_cast<__nv_bfloat16*>(rounded_context_.data()));
    note_(rope_angles(table_, static_cast<int>(shape_.head_dim), shape_.rope_theta,
                      reinterpret_cast<float*>(angles_.data()), context_));
}

void CudaDrafter::store_context(const DrafterLayerWeights& layer, const ContextPages& pages,
                                std::span<const DraftRows> /*rows*/, NumericClass /*numeric_class*/,
                                Activations c) {
    if (!ready_()) return;
    scratch_.restart();
    const ContextScratch s = ContextScratch::lay_out(scratch_, shape_, c.rows);
    const int width = static_cast<int>(shape_.hidden);
    const int out = static_cast<int>(shape_.kv_heads * shape_.head_dim);
    const auto* const in = reinterpret_cast<const __nv_bfloat16*>(rounded_context_.data());
    const FewRowProduct products[] = {product(packed_view(layer.key), in, width, s.keys, out),
                                      product(packed_view(layer.value), in, width, s.values, out)};
    multiply(products, table_.rows);
    note_(cuda::store_context({table_, pages, s.keys, s.values, layer.key_norm, shape_.rms_eps,
                               reinterpret_cast<const float*>(angles_.data())},
                              context_));
}

void CudaDrafter::embed_blocks(const WeightMatrix& embedding, std::span<const DraftRows> blocks,
                               std::span<const TokenId> tokens, const float* mask, float scale,
                               Activations x) {
    std::vector<std::uint32_t> ids;
    ids.reserve(tokens.size());
    for (const TokenId token : tokens)
        ids.push_back(static_cast<std::uint32_t>(to_int(token)));
    if (!upload(blocks, ids)) return;
    Embedding table;
    table.table = embedding;
    table.tokens = numbers_;
    table.rows = table_.rows;
    table.streams = 1;
    table.out = floats(x);
    note_(embed_rows(table, context_));
    if (mask != nullptr || scale != 1.0f) {
        note_(mask_rows(table_, static_cast<int>(shape_.hidden), mask, scale, floats(x), context_));
    }
    note_(rope_angles(table_, static_cast<int>(shape_.head_dim), shape_.rope_theta,
                      reinterpret_cast<float*>(angles_.data()), context_));
}

const __nv_bfloat16* CudaDrafter::convolved(const BlockConvWeights& conv, float* normed,
                                            __nv_bfloat16* rounded, float* gates,
                                            __nv_bfloat16* out) {
    if (conv.base == nullptr) return rounded;
    const int width = static_cast<int>(shape_.hidden);
    const int both = static_cast<int>(2 * shape_.gates());
    const FewRowProduct one = product(packed_view(conv.gates), rounded, width, gates, both);
    multiply({&one, 1}, table_.rows);
    ConvolvedRows side;
    side.table = table_;
    side.columns = width;
    side.taps = static_cast<int>(shape_.conv_taps);
    side.width = static_cast<int>(shape_.conv_width);
    side.in = normed;
    side.base = conv.base;
    side.gates = gates;
    side.gates_stride = both;
    side.rounded = out;
    note_(convolve_rows(side, context_));
    return out;
}

void CudaDrafter::add_output(const BlockConvWeights& conv, const float* y, const float* gates,
                             float* x) {
    ConvolvedRows side;
    side.table = table_;
    side.columns = static_cast<int>(shape_.hidden);
    side.in = y;
    side.x = x;
    if (conv.base != nullptr) {
        side.taps = static_cast<int>(shape_.conv_taps);
        side.width = static_cast<int>(shape_.conv_width);
        side.base = conv.base + shape_.conv_taps * shape_.hidden;
        side.gates = gates + shape_.gates();
        side.gates_stride = static_cast<int>(2 * shape_.gates());
    }
    note_(convolve_rows(side, context_));
}

void CudaDrafter::block_attention(const DrafterLayerWeights& layer, const ContextPages& pages,
                                  std::span<const DraftRows> blocks, Activations x) {
    if (!ready_()) return;
    scratch_.restart();
    const AttentionScratch s = AttentionScratch::lay_out(scratch_, shape_, x.rows);
    const int rows = table_.rows, width = static_cast<int>(shape_.hidden);
    norm(floats(x), layer.input_norm, rows, s.layer.normed, s.layer.rounded);
    const __nv_bfloat16* const in = convolved(layer.attention_conv, s.layer.normed, s.layer.rounded,
                                              s.layer.gates, s.layer.input);
    BlockHeads heads;
    heads.rows = rows;
    heads.heads = static_cast<int>(shape_.heads);
    heads.kv_heads = static_cast<int>(shape_.kv_heads);
    heads.dim = static_cast<int>(shape_.head_dim);
    const int wide = heads.heads * heads.dim, narrow = heads.kv_heads * heads.dim;
    const FewRowProduct projections[] = {
        product(packed_view(layer.query), in, width, s.query, wide),
        product(packed_view(layer.key), in, width, s.key, narrow),
        product(packed_view(layer.value), in, width, s.value, narrow)};
    multiply(projections, rows);
    heads.query = s.query;
    heads.key = s.key;
    heads.value = s.value;
    heads.query_norm = layer.query_norm;
    heads.key_norm = layer.key_norm;
    heads.eps = shape_.rms_eps;
    heads.angles = reinterpret_cast<const float*>(angles_.data());
    heads.turned_query = s.turned_query;
    heads.turned_key = s.turned_key;
    heads.rounded_value = s.rounded_value;
    note_(turn_heads(heads, context_));
    DrafterAttention attention;
    attention.table = table_;
    attention.pages = pages;
    attention.heads = heads.heads;
    for (const DraftRows& block : blocks)
        attention.most_rows = std::max(attention.most_rows, static_cast<int>(block.row_count));
    attention.window = layer.window;
    attention.query = s.turned_query;
    attention.key = s.turned_key;
    attention.value = s.rounded_value;
    attention.partial = s.partial;
    attention.attended = s.attended;
    note_(attend_block(attention, context_));
    const FewRowProduct out =
        product(packed_view(layer.out), s.attended, wide, s.layer.output, width);
    multiply({&out, 1}, rows);
    add_output(layer.attention_conv, s.layer.output, s.layer.gates, floats(x));
}

void CudaDrafter::block_feed_forward(const DrafterLayerWeights& layer,
                                     std::span<const DraftRows> /*blocks*/, Activations x) {
    if (!ready_()) return;
    scratch_.restart();
    const FeedForwardScratch s = FeedForwardScratch::lay_out(scratch_, shape_, x.rows);
    const int rows = table_.rows, width = static_cast<int>(shape_.hidden);
    const int inner = static_cast<int>(shape_.intermediate);
    norm(floats(x), layer.post_attention_norm, rows, s.layer.normed, s.layer.rounded);
    const __nv_bfloat16* const in = convolved(layer.feed_forward_conv, s.layer.normed,
                                              s.layer.rounded, s.layer.gates, s.layer.input);
    FewRowProduct pair = product(packed_view(layer.feed_forward.gate), in, width, s.inside, inner);
    pair.up = packed_view(layer.feed_forward.up);
    multiply({&pair, 1}, rows);
    const FewRowProduct down =
        product(packed_view(layer.feed_forward.down), s.inside, inner, s.layer.output, width);
    multiply({&down, 1}, rows);
    add_output(layer.feed_forward_conv, s.layer.output, s.layer.gates, floats(x));
}

void CudaDrafter::block_output(const float* weight, Activations x, Activations hidden) {
    if (!ready_()) return;
    norm(floats(x), weight, static_cast<int>(x.rows), floats(hidden), nullptr);
}

void CudaDrafter::project(const WeightMatrix& weight, Activations hidden, Activations out) {
    if (!ready_()) return;
    scratch_.restart();
    const ProjectScratch s = ProjectScratch::lay_out(scratch_, shape_, hidden.rows);
    const int rows = static_cast<int>(hidden.rows), columns = static_cast<int>(out.columns);
    norm(floats(hidden), nullptr, rows, nullptr, s.rounded);
    const FewRowProduct one =
        product(packed_view(weight), s.rounded, static_cast<int>(shape_.hidden), s.output, columns);
    multiply({&one, 1}, rows);
    // To where the host reads it; run() waits.
    note_(check(cudaMemcpyAsync(out.data, s.output, hidden.rows * out.columns * sizeof(float),
                                cudaMemcpyDeviceToHost, context_.stream),
                "reading a drafter's candidates"));
}

}  // namespace percheron::ops::cuda
