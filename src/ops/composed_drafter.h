// The drafter's stages as the composition of primitives, in host memory: their definition, and what
// the CPU backend uses.
#pragma once

#include "ops/drafter_stages.h"
#include "ops/primitives.h"
#include "ops/scratch_arena.h"

namespace percheron::ops {

class ComposedDrafter final : public DrafterStages {
  public:
    ComposedDrafter(Primitives& primitives, Arithmetic arithmetic)
        : primitives_(primitives), arithmetic_(arithmetic) {}

    Bytes working_bytes(const DrafterShape& shape) const override;
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
    Linear product(const WeightMatrix& weight, Rows<const float> input, Rows<float> output,
                   NumericClass numeric_class = NumericClass::decode) const;
    // The sublayer's input behind its convolution; `gates` are for both sides.
    Rows<const float> convolved(const BlockConvWeights& conv, std::span<const DraftRows> blocks,
                                Rows<const float> normed, Rows<float> gates, Rows<float> out);
    // x += conv(y; side 1)
    void add_output(const BlockConvWeights& conv, std::span<const DraftRows> blocks,
                    Rows<const float> y, Rows<const float> gates, Rows<float> x);

    Primitives& primitives_;
    Arithmetic arithmetic_;
    DrafterShape shape_;
    ScratchArena angles_;  // of the latest context_features or embed_blocks
    ScratchArena scratch_;
};

}  // namespace percheron::ops
