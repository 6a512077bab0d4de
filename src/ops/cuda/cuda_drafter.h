// A block drafter's stages on CUDA.  Its products are those of the decode class for any number of
// rows, so that no result depends on how a prompt is cut or on which blocks share a pass.
//
// Stages are launched one by one inside a step of the backend; rows and pages go up in one copy
// with context_features() or embed_blocks().
#pragma once

#include <functional>
#include <span>

#include "ops/cuda/device_memory.h"
#include "ops/cuda/drafter_rows.h"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/stage_scratch.h"
#include "ops/drafter_stages.h"

namespace percheron::ops::cuda {

class CudaDrafter final : public DrafterStages {
  public:
    // `note` takes every launch's status, and `ready` makes the device current: false where an
    // error has been noted.
    CudaDrafter(const LaunchContext& context, std::function<bool()> ready,
                std::function<void(const Status&)> note);

    Bytes working_bytes(const DrafterShape& shape) const override;
    // Errors: unsupported (a shape that the kernels are not made for), out_of_memory.
    Status prepare(const DrafterShape& shape) override;

    void context_features(const WeightMatrix& fusion, const float* norm,
                          std::span<const Activations> taps,
                          std::span<const std::uint32_t> tap_rows, std::span<const DraftRows> rows,
                          NumericClass numeric_class, Activations c) override;
    void store_context(const DrafterLayerWeights& layer, const ContextPages& pages,
                       std::span<const DraftRows> rows, NumericClass numeric_class,
                       Activations c) override;
    void embed_blocks(const WeightMatrix& embedding, std::span<const DraftRows> blocks,
                      std::span<const TokenId> tokens, const float* mask, float scale,
                      Activations x) override;
    void block_attention(const DrafterLayerWeights& layer, const ContextPages& pages,
                         std::span<const DraftRows> blocks, Activations x) override;
    void block_feed_forward(const DrafterLayerWeights& layer, std::span<const DraftRows> blocks,
                            Activations x) override;
    void block_output(const float* norm, Activations x, Activations hidden) override;
    void project(const WeightMatrix& weight, Activations hidden, Activations out) override;

  private:
    // Rows, their pages and a number a row, to the device; false where something went wrong.
    bool upload(std::span<const DraftRows> rows, std::span<const std::uint32_t> numbers);
    void multiply(std::span<const FewRowProduct> products, int rows);
    void norm(const float* in, const float* weight, int rows, float* out, __nv_bfloat16* rounded);
    // What a sublayer's products read: its normed rows behind the first side of `conv`, whose gates
    // of both sides are left in `gates`.
    const __nv_bfloat16* convolved(const BlockConvWeights& conv, float* normed,
                                   __nv_bfloat16* rounded, float* gates, __nv_bfloat16* out);
    // x += the second side of `conv` over y
    void add_output(const BlockConvWeights& conv, const float* y, const float* gates, float* x);

    LaunchContext context_;
    std::function<bool()> ready_;
    std::function<void(const Status&)> note_;
    DrafterShape shape_;
    DeviceMemory memory_;
    DeviceScratch scratch_;
    DeviceMemory angles_, rounded_context_;  // of the latest rows
    PinnedMemory rows_host_;
    DeviceMemory rows_;
    DraftTable table_;                        // in rows_
    const std::uint32_t* numbers_ = nullptr;  // the same
};

}  // namespace percheron::ops::cuda
