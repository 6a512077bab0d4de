// A backend in host memory whose stages are compositions of primitives: the definition of every
// stage, and the base of backends that are faster.
//
// A faster backend hands in its own Primitives, overrides whole stages, or both; what it does not
// replace keeps working.  Activations are fp32 rows in host memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/views.h"
#include "ops/backend.h"
#include "ops/composed_drafter.h"
#include "ops/composed_scratch.h"
#include "ops/composed_vision.h"
#include "ops/mtp_stages.h"
#include "ops/primitives.h"
#include "ops/scratch_arena.h"

namespace percheron::ops {

class ComposedBackend : public Backend, private MtpStages {
  public:
    ComposedBackend(std::string name, Arithmetic arithmetic,
                    std::unique_ptr<Primitives> primitives);
    ~ComposedBackend() override;

    std::string_view name() const override { return name_; }
    Arithmetic arithmetic() const override { return arithmetic_; }
    DType activation_dtype() const override { return DType::f32; }

    Result<std::unique_ptr<BackendBuffer>> allocate(Bytes bytes, std::string_view purpose) override;
    Result<std::unique_ptr<BackendBuffer>> allocate_host_readable(
        Bytes bytes, std::string_view purpose) override;
    Result<WeightMatrix> place(const WeightMatrix& stored, std::string_view name,
                               WeightUse use) override;
    Result<const float*> place(std::span<const float> vector, std::string_view name) override;
    Bytes working_bytes(const NetworkShape& shape, std::size_t rows,
                        std::size_t logit_rows) const override;
    Status prepare(const NetworkShape& shape, std::size_t rows, std::size_t logit_rows) override;

    Status run(const RowBatch& batch, const std::function<void()>& stages) override;

    void embed(const WeightMatrix& table, const RowBatch& batch, Activations streams) override;
    void mhc_turn(const MhcTurn& turn, const RowBatch& batch) override;
    void kda_mixer(const KdaWeights& weights, const KdaSlots& slots, const RowBatch& batch,
                   Activations x, Activations y) override;
    void sparse_mixer(const SparseAttentionWeights& weights, const LatentPages& pages,
                      const RowBatch& batch, Activations x, Activations y) override;
    void dense_ffn(const FeedForwardWeights& weights, const RowBatch& batch, Activations x,
                   Activations y) override;
    void moe_ffn(const ExpertsWeights& weights, const RowBatch& batch, Activations x,
                 Activations y) override;
    void head(const WeightMatrix& head, const RowBatch& batch, Activations hidden,
              Activations logits) override;
    VisionStages* vision() override { return &vision_; }
    MtpStages* mtp() override { return this; }
    DrafterStages* drafter() override { return &drafter_; }
    void read(const Activations& rows, float* out) override;

    // Shows every sparse layer's choice of tokens right after it is made, for comparing with other
    // implementations.  Empty: nobody looks.
    using SelectionObserver = std::function<void(const SelectTokens&)>;
    void observe_selections(SelectionObserver observer) {
        selection_observer_ = std::move(observer);
    }

  protected:
    Primitives& primitives() { return *primitives_; }
    const NetworkShape& shape() const { return shape_; }
    ScratchArena& scratch() { return scratch_; }

    // One product with this backend's arithmetic and the batch's class.
    Linear product(const RowBatch& batch, const WeightMatrix& weight, Rows<const float> input,
                   Rows<float> output) const;

  private:
    void mtp_input(const MtpWeights& weights, const WeightMatrix& embedding, const RowBatch& batch,
                   Activations hidden, std::span<const std::uint32_t> hidden_rows, Activations x,
                   Activations normed) override;
    // From a sparse layer's projections to its caches.
    void write_caches(const SparseAttentionWeights& weights, const LatentPages& pages,
                      const RowBatch& batch, const SparseScratch& scratch);
    // The experts' products, all at a time or, from a store, group by group as they come.
    void routed_experts(const ExpertsWeights& weights, const RowBatch& batch,
                        const ExpertsScratch& scratch, Rows<const float> input, Rows<float> output);
    // Adds gate and up of an expert's rows to the products.
    void add_expert_inputs(const FeedForwardWeights& expert, const RowBatch& batch,
                           const ExpertsScratch& scratch, Rows<const float> input,
                           std::size_t first, std::size_t count);
    void streamed_experts(const ExpertsWeights& weights, const RowBatch& batch,
                          const ExpertsScratch& scratch, Rows<const float> input,
                          Rows<float> output);
    void residual_turn(const float* norm, Activations y, Activations x,
                       Activations normed) override;
    void sparse_caches(const SparseAttentionWeights& weights, const LatentPages& pages,
                       const RowBatch& batch, Activations normed) override;

    std::string name_;
    Arithmetic arithmetic_;
    std::unique_ptr<Primitives> primitives_;
    ComposedVision vision_;
    ComposedDrafter drafter_;
    NetworkShape shape_;
    ScratchArena scratch_;
    std::vector<std::unique_ptr<float[]>> vectors_;
    std::vector<Linear> expert_products_;  // capacity reserved by prepare()
    Status fault_;                         // of the stages of the step under way
    SelectionObserver selection_observer_;
};

}  // namespace percheron::ops
