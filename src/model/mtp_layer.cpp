#include "model/mtp_layer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/digested_logits.h"
#include "model/weight_loader.h"

namespace percheron::model {
namespace {

class Layer final : public MtpLayer {
  public:
    Layer(const Network& trunk, ops::Backend& backend, const NetworkOptions& options)
        : trunk_(trunk), backend_(backend), stages_(*backend.mtp()), options_(options) {}

    Status load(WeightSource& source) {
        const ModelConfig& config = trunk_.config();
        const std::size_t hidden = config.hidden;
        PERCHERON_TRY(load_mtp_layer(config, source, backend_, weights_));
        for (ops::Activations* activations : {&residual_, &normed_, &output_, &hidden_}) {
            const DType dtype = backend_.activation_dtype();
            PERCHERON_ASSIGN(
                auto memory,
                backend_.allocate(options_.max_rows * hidden * size_of(dtype), "MTP activations"));
            *activations = {memory->data(), dtype, options_.max_rows, hidden};
            memory_.push_back(std::move(memory));
        }
        PERCHERON_ASSIGN(
            logits_memory_,
            backend_.allocate_host_readable(
                options_.max_logit_rows * config.vocabulary * sizeof(float), "MTP logits"));
        if (backend_.digests() != nullptr) {
            digested_ = std::make_unique<DigestedLogits>(
                *backend_.digests(), ops::Activations{logits_memory_->data(), DType::f32,
                                                      options_.max_logit_rows, config.vocabulary});
        }
        return {};
    }

    Result<std::span<const float>> forward(const ops::RowBatch& batch, ops::Activations hidden,
                                           std::span<const std::uint32_t> hidden_rows,
                                           const ops::LatentPages& pages) override {
        const std::size_t vocabulary = trunk_.config().vocabulary;
        PERCHERON_TRY(check(batch, hidden, hidden_rows));
        for (ops::Activations* activations : {&residual_, &normed_, &output_, &hidden_}) {
            activations->rows = batch.rows();
        }
        const ops::Activations logits{logits_memory_->data(), DType::f32, batch.logit_rows.size(),
                                      vocabulary};
        PERCHERON_TRY(
            backend_.run(batch, [&] { compute(batch, hidden, hidden_rows, pages, logits); }));
        return std::span<const float>(static_cast<const float*>(logits.data),
                                      logits.rows * logits.columns);
    }

    Status keep(const ops::RowBatch& batch, ops::Activations hidden,
                std::span<const std::uint32_t> hidden_rows,
                const ops::LatentPages& pages) override {
        PERCHERON_TRY(check(batch, hidden, hidden_rows));
        residual_.rows = normed_.rows = batch.rows();
        return backend_.run(batch, [&] {
            stages_.mtp_input(weights_.stages, trunk_.shared().embedding, batch, hidden,
                              hidden_rows, residual_, normed_);
            stages_.sparse_caches(weights_.stages.attention, pages, batch, normed_);
        });
    }

    ops::Activations hidden() const override { return hidden_; }

    ops::DigestedRows* digested() const override {
        return trunk_.digested() != nullptr ? digested_.get() : nullptr;
    }

  private:
    Status check(const ops::RowBatch& batch, const ops::Activations& hidden,
                 std::span<const std::uint32_t> hidden_rows) const {
        PERCHERON_TRY(ops::check_batch(batch, trunk_.config().vocabulary));
        if (batch.rows() > options_.max_rows || batch.logit_rows.size() > options_.max_logit_rows ||
            hidden_rows.size() != batch.rows() ||
            (!batch.digests.empty() && batch.digests.size() != batch.logit_rows.size()) ||
            std::any_of(hidden_rows.begin(), hidden_rows.end(),
                        [&](std::uint32_t row) { return row >= hidden.rows; })) {
            return Error(ErrorCode::invalid_argument,
                         "An MTP step of " + std::to_string(batch.rows()) + " rows with " +
                             std::to_string(batch.logit_rows.size()) + " wanted logits and " +
                             std::to_string(hidden_rows.size()) + " of " +
                             std::to_string(hidden.rows) +
                             " hidden rows does not fit what the layer was loaded for.");
        }
        return {};
    }

    void compute(const ops::RowBatch& batch, ops::Activations hidden,
                 std::span<const std::uint32_t> hidden_rows, const ops::LatentPages& pages,
                 const ops::Activations& logits) {
        const SharedMatrices shared = trunk_.shared();
        stages_.mtp_input(weights_.stages, shared.embedding, batch, hidden, hidden_rows, residual_,
                          normed_);
        backend_.sparse_mixer(weights_.stages.attention, pages, batch, normed_, output_);
        stages_.residual_turn(weights_.stages.post_attention_norm, output_, residual_, normed_);
        backend_.moe_ffn(weights_.stages.experts, batch, normed_, output_);
        stages_.residual_turn(weights_.stages.output_norm, output_, residual_, hidden_);
        backend_.head(shared.head, batch, hidden_, logits);
    }

    const Network& trunk_;
    ops::Backend& backend_;
    ops::MtpStages& stages_;
    NetworkOptions options_;
    MtpLayerWeights weights_;
    std::vector<std::unique_ptr<ops::BackendBuffer>> memory_;
    std::unique_ptr<ops::BackendBuffer> logits_memory_;
    std::unique_ptr<DigestedLogits> digested_;
    ops::Activations residual_, normed_, output_, hidden_;
};

}  // namespace

Status load_mtp_layer(const ModelConfig& config, WeightSource& source, ops::Backend& backend,
                      MtpLayerWeights& out) {
    ops::MtpWeights& weights = out.stages;
    const std::size_t hidden = config.hidden;
    WeightLoader loader(config, source, backend);
    const std::string at = "model.language_model.layers." + std::to_string(config.layers()) + ".";
    PERCHERON_TRY(loader.vector(at + "enorm.weight", hidden, weights.embedding_norm));
    PERCHERON_TRY(loader.vector(at + "hnorm.weight", hidden, weights.hidden_norm));
    PERCHERON_TRY(loader.matrix(at + "eh_proj", hidden, 2 * hidden, weights.projection));
    PERCHERON_TRY(loader.vector(at + "input_layernorm.weight", hidden, weights.input_norm));
    PERCHERON_TRY(loader.sparse(at + "self_attn.", weights.attention));
    PERCHERON_TRY(
        loader.vector(at + "post_attention_layernorm.weight", hidden, weights.post_attention_norm));
    PERCHERON_TRY(loader.experts(at + "mlp.", out.expert_list, weights.experts));
    PERCHERON_TRY(loader.vector(at + "shared_head.norm.weight", hidden, weights.output_norm));
    return {};
}

NetworkMemory MtpLayer::memory(const ModelConfig& config, const ops::Backend& backend,
                               const NetworkOptions& options) {
    NetworkMemory memory;
    memory.activations = 4 * options.max_rows * config.hidden * size_of(backend.activation_dtype());
    memory.logits = options.max_logit_rows * config.vocabulary * sizeof(float);
    return memory;
}

Result<std::unique_ptr<MtpLayer>> MtpLayer::load(const Network& trunk, WeightSource& weights,
                                                 ops::Backend& backend,
                                                 const NetworkOptions& options) {
    if (backend.mtp() == nullptr) {
        return Error(ErrorCode::unsupported,
                     "the backend " + std::string(backend.name()) + " has no MTP layer");
    }
    auto layer = std::make_unique<Layer>(trunk, backend, options);
    PERCHERON_TRY(layer->load(weights));
    return std::unique_ptr<MtpLayer>(std::move(layer));
}

}  // namespace percheron::model
