// The vision stages as the composition of primitives, in host memory: their definition, and what
// the CPU backend uses.
#pragma once

#include "ops/primitives.h"
#include "ops/scratch_arena.h"
#include "ops/vision_stages.h"

namespace percheron::ops {

class ComposedVision final : public VisionStages {
  public:
    ComposedVision(Primitives& primitives, Arithmetic arithmetic)
        : primitives_(primitives), arithmetic_(arithmetic) {}

    Bytes working_bytes(const VisionShape& shape, std::size_t rows,
                        std::size_t patches) const override;
    Status prepare(const VisionShape& shape, std::size_t rows, std::size_t patches) override;
    DType heads_dtype() const override;

    void embed_patches(const BiasedMatrix& weights, Rows<const float> patches,
                       Activations z) override;
    void project_heads(const VisionBlockWeights& weights, std::span<const PatchPlace> places,
                       std::size_t first, Activations z, const PatchHeads& heads) override;
    void finish_block(const VisionBlockWeights& weights, const PatchHeads& heads, std::size_t first,
                      Activations z) override;
    void merge(const VisionMergerWeights& weights, Activations z, Rows<float> features) override;

  private:
    void product(const WeightMatrix& weight, Rows<const float> input, Rows<float> output);
    // output = weight input + bias (+ residual)
    void biased(const BiasedMatrix& weight, Rows<const float> input, Rows<float> output,
                Rows<const float> residual = {});

    Primitives& primitives_;
    Arithmetic arithmetic_;
    VisionShape shape_;
    ScratchArena scratch_;
};

}  // namespace percheron::ops
