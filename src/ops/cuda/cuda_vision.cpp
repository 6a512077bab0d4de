#include "ops/cuda/cuda_vision.h"

#include <string>
#include <utility>

#include "ops/cuda/patch_attention.h"
#include "ops/cuda/patch_rows.h"
#include "ops/cuda/stage_products.h"
#include "ops/cuda/weight_placement.h"

namespace percheron::ops::cuda {
namespace {

constexpr float layer_norm_eps = 1e-5f;

std::size_t whole_blocks(std::size_t columns) {
    return (columns + block_columns - 1) / block_columns * block_columns;
}

struct EmbedScratch {
    float* pixels = nullptr;           // [R, values]
    __nv_bfloat16* rounded = nullptr;  // [R, values in whole blocks]
    float* output = nullptr;           // [R, D]
    static EmbedScratch lay_out(DeviceScratch& scratch, const VisionShape& shape,
                                std::size_t rows) {
        EmbedScratch s;
        s.pixels = scratch.take<float>(rows * shape.patch_values);
        s.rounded = scratch.take<__nv_bfloat16>(rows * whole_blocks(shape.patch_values));
        s.output = scratch.take<float>(rows * shape.hidden);
        return s;
    }
};

struct HeadsScratch {
    PatchPlace* places = nullptr;     // [R]
    __nv_bfloat16* normed = nullptr;  // [R, D]
    float* projected = nullptr;       // [R, 3 D]
    static HeadsScratch lay_out(DeviceScratch& scratch, const VisionShape& shape,
                                std::size_t rows) {
        HeadsScratch s;
        s.places = scratch.take<PatchPlace>(rows);
        s.normed = scratch.take<__nv_bfloat16>(rows * shape.hidden);
        s.projected = scratch.take<float>(rows * 3 * shape.hidden);
        return s;
    }
};

struct BlockScratch {
    __nv_bfloat16* attended = nullptr;     // [R, D]
    float* output = nullptr;               // [R, D]
    __nv_bfloat16* normed = nullptr;       // [R, D]
    float *gate = nullptr, *up = nullptr;  // [R, I]
    __nv_bfloat16* inside = nullptr;       // [R, I]
    static BlockScratch lay_out(DeviceScratch& scratch, const VisionShape& shape,
                                std::size_t rows) {
        BlockScratch s;
        s.attended = scratch.take<__nv_bfloat16>(rows * shape.hidden);
        s.output = scratch.take<float>(rows * shape.hidden);
        s.normed = scratch.take<__nv_bfloat16>(rows * shape.hidden);
        s.gate = scratch.take<float>(rows * shape.intermediate);
        s.up = scratch.take<float>(rows * shape.intermediate);
        s.inside = scratch.take<__nv_bfloat16>(rows * shape.intermediate);
        return s;
    }
};

// T: tokens, R / merge^2.
struct MergeScratch {
    __nv_bfloat16* cells = nullptr;    // [T, D merge^2]
    float* output = nullptr;           // [T, O]
    __nv_bfloat16* rounded = nullptr;  // [T, O]
    __nv_bfloat16* inside = nullptr;   // [T, P]
    static MergeScratch lay_out(DeviceScratch& scratch, const VisionShape& shape,
                                std::size_t rows) {
        const std::size_t tokens = rows / shape.merged();
        MergeScratch s;
        s.cells = scratch.take<__nv_bfloat16>(rows * shape.hidden);
        s.output = scratch.take<float>(tokens * shape.out_hidden);
        s.rounded = scratch.take<__nv_bfloat16>(tokens * shape.out_hidden);
        s.inside = scratch.take<__nv_bfloat16>(tokens * shape.projection);
        return s;
    }
};

std::size_t scratch_bytes(const VisionShape& shape, std::size_t rows) {
    DeviceScratch scratch;
    EmbedScratch::lay_out(scratch, shape, rows);
    scratch.restart();
    HeadsScratch::lay_out(scratch, shape, rows);
    scratch.restart();
    BlockScratch::lay_out(scratch, shape, rows);
    scratch.restart();
    MergeScratch::lay_out(scratch, shape, rows);
    return scratch.peak();
}

}  // namespace

CudaVision::CudaVision(const LaunchContext& context, std::function<bool()> ready,
                       std::function<void(const Status&)> note)
    : context_(context), ready_(std::move(ready)), note_(std::move(note)) {
    // Uploads lie between the kernels, and pictures are not what is waited for.
    context_.dependent = false;
}

Bytes CudaVision::working_bytes(const VisionShape& shape, std::size_t rows,
                                std::size_t /*patches*/) const {
    return scratch_bytes(shape, rows);
}

Status CudaVision::prepare(const VisionShape& shape, std::size_t rows, std::size_t /*patches*/) {
    const auto unsuited = [](const std::string& what, std::size_t is, const std::string& needed) {
        return Error(ErrorCode::unsupported, "The CUDA kernels need " + what + " to be " + needed +
                                                 ", this vision tower's is " + std::to_string(is) +
                                                 "; use --device cpu.");
    };
    if (shape.head_dim() != patch_head_dim)
        return unsuited("the head dimension", shape.head_dim(), std::to_string(patch_head_dim));
    if (shape.merge != 2) return unsuited("the merged patches' side", shape.merge, "2");
    for (const auto& [what, is] : {std::pair{"the hidden size", shape.hidden},
                                   {"the feed-forward's width", shape.intermediate},
                                   {"the features' width", shape.out_hidden},
                                   {"the merger's width", shape.projection}}) {
        if (is % block_columns != 0) return unsuited(what, is, "a multiple of 128");
    }
    if (!ready_()) return Error(ErrorCode::internal, "the device is lost");
    shape_ = shape;
    PERCHERON_ASSIGN(memory_, DeviceMemory::allocate(scratch_bytes(shape, rows), "pictures"));
    scratch_.use(memory_.data());
    return {};
}

void CudaVision::multiply(std::span<const FewRowProduct> products, int rows) {
    multiply_by_format(products, rows, shape_.swiglu_limit, context_, note_);
}

void CudaVision::multiply(const BiasedMatrix& weight, const __nv_bfloat16* x, int rows, float* y) {
    const PackedMatrix matrix = packed_view(weight.matrix);
    const FewRowProduct one = product(matrix, x, matrix.blocks() * block_columns, y, matrix.n);
    multiply({&one, 1}, rows);
}

void CudaVision::wait(std::string_view what) {
    note_(check(cudaStreamSynchronize(context_.stream), what));
}

void CudaVision::embed_patches(const BiasedMatrix& weights, Rows<const float> patches,
                               Activations z) {
    if (!ready_()) return;
    scratch_.restart();
    const EmbedScratch s = EmbedScratch::lay_out(scratch_, shape_, z.rows);
    const int rows = static_cast<int>(z.rows), values = static_cast<int>(shape_.patch_values);
    note_(
        check(cudaMemcpyAsync(s.pixels, patches.data, z.rows * shape_.patch_values * sizeof(float),
                              cudaMemcpyHostToDevice, context_.stream),
              "uploading patches"));
    note_(round_rows(
        {rows, values, s.pixels, s.rounded, static_cast<int>(whole_blocks(shape_.patch_values))},
        context_));
    multiply(weights, s.rounded, rows, s.output);
    UpdatedRows update;
    update.rows = rows;
    update.columns = static_cast<int>(shape_.hidden);
    update.y = s.output;
    update.bias = weights.bias;
    update.z = floats(z);
    note_(update_rows(update, context_));
    wait("embedding patches");  // the pixels' memory is the caller's
}

void CudaVision::project_heads(const VisionBlockWeights& weights,
                               std::span<const PatchPlace> places, std::size_t first, Activations z,
                               const PatchHeads& heads) {
    if (!ready_()) return;
    scratch_.restart();
    const HeadsScratch s = HeadsScratch::lay_out(scratch_, shape_, z.rows);
    // From pageable memory: the call returns when the places have been read.
    note_(check(cudaMemcpyAsync(s.places, places.data(), places.size_bytes(),
                                cudaMemcpyHostToDevice, context_.stream),
                "uploading patches' places"));
    UpdatedRows norm;
    norm.rows = static_cast<int>(z.rows);
    norm.columns = static_cast<int>(shape_.hidden);
    norm.z = floats(z);
    norm.norm = weights.norm1;
    norm.eps = shape_.block_rms_eps;
    norm.out = s.normed;
    note_(update_rows(norm, context_));
    multiply(weights.qkv, s.normed, norm.rows, s.projected);
    PatchHeadRows store;
    store.rows = norm.rows;
    store.projected = s.projected;
    store.bias = weights.qkv.bias;
    store.query_norm = weights.query_norm;
    store.key_norm = weights.key_norm;
    store.eps = shape_.rms_eps;
    store.theta = shape_.rope_theta;
    store.places = s.places;
    store.first = first;
    store.heads = heads;
    note_(store_patch_heads(store, context_));
}

void CudaVision::finish_block(const VisionBlockWeights& weights, const PatchHeads& heads,
                              std::size_t first, Activations z) {
    if (!ready_()) return;
    scratch_.restart();
    const BlockScratch s = BlockScratch::lay_out(scratch_, shape_, z.rows);
    const int rows = static_cast<int>(z.rows), hidden = static_cast<int>(shape_.hidden);
    const int inner = static_cast<int>(shape_.intermediate);
    note_(patch_attention({rows, first, heads, s.attended}, context_));
    multiply(weights.out, s.attended, rows, s.output);
    UpdatedRows update;
    update.rows = rows;
    update.columns = hidden;
    update.y = s.output;
    update.bias = weights.out.bias;
    update.add = true;
    update.z = floats(z);
    update.norm = weights.norm2;
    update.eps = shape_.block_rms_eps;
    update.out = s.normed;
    note_(update_rows(update, context_));
    const FewRowProduct in[] = {
        product(packed_view(weights.gate.matrix), s.normed, hidden, s.gate, inner),
        product(packed_view(weights.up.matrix), s.normed, hidden, s.up, inner)};
    multiply(in, rows);
    note_(gate_rows({rows, inner, s.gate, s.up, weights.gate.bias, weights.up.bias,
                     shape_.swiglu_limit, s.inside},
                    context_));
    multiply(weights.down, s.inside, rows, s.output);
    update.bias = weights.down.bias;
    update.norm = nullptr;
    update.out = nullptr;
    note_(update_rows(update, context_));
}

void CudaVision::merge(const VisionMergerWeights& weights, Activations z, Rows<float> features) {
    if (!ready_()) return;
    scratch_.restart();
    const MergeScratch s = MergeScratch::lay_out(scratch_, shape_, z.rows);
    const int tokens = static_cast<int>(z.rows / shape_.merged());
    const int wide = static_cast<int>(shape_.out_hidden);
    const int inner = static_cast<int>(shape_.projection);
    UpdatedRows norm;
    norm.rows = static_cast<int>(z.rows);
    norm.columns = static_cast<int>(shape_.hidden);
    norm.z = floats(z);
    norm.norm = weights.post_norm;
    norm.eps = shape_.rms_eps;
    norm.out = s.cells;
    norm.merged = static_cast<int>(shape_.merged());
    note_(update_rows(norm, context_));
    multiply(weights.downsample, s.cells, tokens, s.output);
    UpdatedRows biased;
    biased.rows = tokens;
    biased.columns = wide;
    biased.y = s.output;
    biased.bias = weights.downsample.bias;
    biased.out = s.rounded;
    note_(update_rows(biased, context_));
    multiply({weights.projection, nullptr}, s.rounded, tokens, s.output);
    note_(settle_rows({tokens, wide, s.output, weights.projection_norm,
                       weights.projection_norm_bias, layer_norm_eps, s.rounded},
                      context_));
    FewRowProduct gate =
        product(packed_view(weights.feed_forward.gate), s.rounded, wide, s.inside, inner);
    gate.up = packed_view(weights.feed_forward.up);
    multiply({&gate, 1}, tokens);
    multiply({weights.feed_forward.down, nullptr}, s.inside, tokens, s.output);
    note_(
        check(cudaMemcpyAsync(features.data, s.output,
                              static_cast<std::size_t>(tokens) * shape_.out_hidden * sizeof(float),
                              cudaMemcpyDeviceToHost, context_.stream),
              "reading a picture's features"));
    wait("merging patches");
}

}  // namespace percheron::ops::cuda
