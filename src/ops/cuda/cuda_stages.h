// The backend's class: memory and steps in cuda_backend.cpp, the trunk's stages in
// cuda_stages.cpp, the MTP layer's own in cuda_mtp.cpp; cuda_vision.h has the vision tower's,
// cuda_drafter.h a block drafter's.
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_digests.h"
#include "ops/cuda/cuda_drafter.h"
#include "ops/cuda/cuda_vision.h"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/row_parts.h"
#include "ops/cuda/select_tokens.h"
#include "ops/cuda/sparse_rows.h"
#include "ops/cuda/stage_scratch.h"
#include "ops/cuda/step_batch.h"
#include "ops/cuda/step_graphs.h"
#include "ops/cuda/weight_placement.h"
#include "ops/mtp_stages.h"

namespace percheron::ops::cuda {

// A second stream, and the events at which it leaves the first and comes back.
struct SideStream {
    cudaStream_t stream = nullptr;
    cudaEvent_t leaves = nullptr, returns = nullptr;
};

// Where behind the logits of so many rows others may lie, in floats: kernels copy 16 bytes at once.
constexpr std::size_t rows_behind_logits(std::size_t rows, std::size_t vocabulary) {
    return (rows * vocabulary + 3) / 4 * 4;
}

// Rows as a stage's first products read them.
struct StageInputs {
    const __nv_bfloat16* x = nullptr;
    int stride = 0;
};

class CudaBackend final : public Backend, private MtpStages {
  public:
    CudaBackend(int device, int multiprocessors, cudaStream_t stream, SideStream side, bool graphs);
    ~CudaBackend() override;

    std::string_view name() const override { return name_; }
    Arithmetic arithmetic() const override { return Arithmetic::standard; }
    DType activation_dtype() const override { return DType::f32; }

    Result<std::unique_ptr<BackendBuffer>> allocate(Bytes bytes, std::string_view purpose) override;
    Result<std::unique_ptr<BackendBuffer>> allocate_host_readable(
        Bytes bytes, std::string_view purpose) override;
    void clear(void* data, Bytes bytes) override;
    void copy(void* to, const void* from, Bytes bytes) override;
    void copy_to_host(void* host, const void* from, Bytes bytes) override;
    void copy_from_host(void* to, const void* host, Bytes bytes) override;
    Result<MachineMemory> memory() const override;
    bool has_own_memory() const override { return true; }
    Status check_shape(const NetworkShape& shape, std::size_t rows) const override;
    Status read_from(WeightFiles& files) override;
    Status finish_reading() override;
    Result<WeightMatrix> place(const WeightMatrix& stored, std::string_view name,
                               WeightUse use) override;
    Result<const float*> place(std::span<const float> vector, std::string_view name) override;
    Result<WeightMatrix> place_latent_heads(const WeightMatrix& stored, const NetworkShape& shape,
                                            std::string_view name) override;
    Result<const void*> place_experts(std::span<const FeedForwardWeights> experts,
                                      std::string_view layer) override;
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
    using Backend::vision;
    VisionStages* vision() override { return &vision_; }
    using Backend::drafter;
    DrafterStages* drafter() override { return &drafter_; }
    MtpStages* mtp() override { return this; }
    LogitDigests* digests() override { return &digests_; }
    void read(const Activations& rows, float* out) override;

    Result<CudaStepFacts> facts() const;

  private:
    // ---- the MTP layer
    void mtp_input(const MtpWeights& weights, const WeightMatrix& embedding, const RowBatch& batch,
                   Activations hidden, std::span<const std::uint32_t> hidden_rows, Activations x,
                   Activations normed) override;
    void residual_turn(const float* norm, Activations y, Activations x,
                       Activations normed) override;
    void sparse_caches(const SparseAttentionWeights& weights, const LatentPages& pages,
                       const RowBatch& batch, Activations normed) override;
    void residual_turn_of(const float* norm, const float* y, Activations x, Activations normed);

    // ---- a step
    Status launch_all(const RowBatch& batch, const std::function<void()>& stages);
    Result<cudaGraphExec_t> record(std::uint64_t fingerprint, const RowBatch& batch,
                                   const std::function<void()>& stages);
    std::uint64_t fingerprint_of(const RowBatch& batch, const std::function<void()>& stages);
    Status use_device() const;

    // Stages are called twice for a step that may be recorded: first only to see what they would
    // launch.  True: noted, nothing more to do.
    template <class... Values>
    bool only_noted(const Values&... values) {
        if (fingerprint_ == nullptr) return failed();
        (fingerprint_->add(values), ...);
        return true;
    }
    // The step's first error; later launches are skipped.
    void note(const Status& status);
    // Makes the device current; false after an error.
    bool is_ready();
    bool failed() const { return error_.has_value(); }

    // ---- what stages share
    // Rows of x in parts (row_parts.h): those that the last turn left beside it, or split now.
    const __nv_bfloat16* parts_of(const Activations& x);
    // The first part of those rows; of prompts, ordered (prefill_rows.h).
    StageInputs inputs_of(const Activations& x);
    // Rows that another kernel left, as products read them: of prompts ordered, in `room`.
    const __nv_bfloat16* as_input(const __nv_bfloat16* rows, int count, int columns,
                                  __nv_bfloat16* room);
    // Where the same rows lie times raised_by; nullptr: no layer's experts read them.
    __nv_bfloat16* raised_rows() const {
        return raises_rows_ ? reinterpret_cast<__nv_bfloat16*>(parts_memory_.data()) +
                                  most_rows_ * row_parts * shape_.hidden
                            : nullptr;
    }
    // Launches the sum that the last expert stage left to the turn, if no turn has taken it.
    void settle_pairs();
    // A sparse layer's rows on their way from the projections to the caches; no queries.
    SparseRows cached_rows(const SparseAttentionWeights& weights, const LatentPages& pages,
                           const SparseScratch& scratch) const;
    // Products that share their rows and k, one launch a format.
    void multiply(std::span<const FewRowProduct> products, int rows,
                  const WeightsAhead& ahead = {});
    void multiply(std::span<const FewRowProduct> products, int rows, const LaunchContext& context,
                  const WeightsAhead& ahead = {});
    void feed_forward(const FeedForwardWeights& weights, int rows, const StageInputs& x,
                      __nv_bfloat16* inside, float* y, const LaunchContext& context,
                      const WeightsAhead& ahead = {});
    // Choice of the tokens of rows first .. first + count, and the attention of all rows, from
    // queries to what they read.
    TokenSelection selection_of(const LatentPages& pages, const SparseScratch& scratch,
                                int most_pools, std::size_t first, std::size_t count) const;
    void attend(const LatentPages& pages, const SparseScratch& scratch, int most_pools,
                int most_tokens);
    float attention_scale() const {
        return 1.0f / std::sqrt(static_cast<float>(shape_.query_key_dim));
    }
    // What is a prompt's alone (cuda_prompt.cpp): the KDA recurrence in chunks, from projections,
    // decay and gate of the scratch to its mixed rows, the attention, whose rows come out ordered,
    // and the layer with experts.
    void prompt_kda(const KdaWeights& weights, const KdaSlots& slots, const RowBatch& batch,
                    const KdaScratch& scratch);
    void prompt_attention_of(const LatentPages& pages, const SparseScratch& scratch,
                             int most_pools);
    void prompt_experts(const ExpertsWeights& weights, int rows, Activations x, Activations y);
    // This is what the mixer behind the latest layer with experts begins with: it is asked for
    // while the next step chooses that layer's experts.
    void note_behind(const WeightsAhead& ahead);

    int device_;
    std::string name_;
    cudaStream_t stream_;
    SideStream side_;  // work beside the step's main line
    bool use_graphs_;
    bool wide_products_;   // this device has the kernels of the prefill class
    bool prompt_ = false;  // this step is of it and uses them
    LaunchContext context_;
    WeightPlacement weights_;
    NetworkShape shape_;
    std::size_t most_rows_ = 0;
    DeviceMemory scratch_memory_;
    DeviceScratch scratch_;
    DeviceMemory parts_memory_;  // [rows][row_parts][hidden] and, raised, [rows][hidden]
    bool raises_rows_ = false;
    DeviceMemory ordered_memory_;       // [rows][hidden], of prompts
    DeviceMemory turn_memory_;          // prompt_turn_floats() of every row, of prompts
    const void* parts_from_ = nullptr;  // whose rows parts_memory_ holds
    std::optional<ExpertSum> pairs_;    // what pairs_->y still lacks
    // What came behind a layer's experts in the last step, by the router's weights: the layer that
    // is recorded does not know it yet.
    std::map<const void*, WeightsAhead> behind_;
    const void* latest_router_ = nullptr;
    DeviceMemory logits_memory_;
    // Which rows an MTP step reads, on the host and where its kernels find them.
    PinnedMemory hidden_rows_host_;
    DeviceMemory hidden_rows_;
    CudaDigests digests_;
    StepBatch batch_;
    StepGraphs graphs_;
    Fingerprint* fingerprint_ = nullptr;  // set while stages are only noted
    std::optional<Error> error_;
    CudaVision vision_;
    CudaDrafter drafter_;
};

}  // namespace percheron::ops::cuda
