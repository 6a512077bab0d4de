#include "model/network.h"

#include <algorithm>
#include <string>
#include <utility>

#include "model/digested_logits.h"
#include "model/trunk_weights.h"

namespace percheron::model {
namespace {

class TextTrunk final : public Network {
  public:
    TextTrunk(const ModelConfig& config, ops::Backend& backend, const NetworkOptions& options)
        : config_(config), backend_(backend), options_(options) {}

    Status load(WeightSource& source) {
        PERCHERON_TRY(backend_.check_shape(shape_of(config_), options_.max_rows));
        PERCHERON_ASSIGN(weights_, load_trunk(config_, source, backend_));
        const std::size_t streams = config_.streams;
        const DType dtype = backend_.activation_dtype();
        PERCHERON_TRY(reserve(dtype, streams * config_.hidden, "residual streams", streams_));
        PERCHERON_TRY(reserve(dtype, config_.hidden, "sublayer inputs", normed_));
        PERCHERON_TRY(reserve(dtype, config_.hidden, "sublayer outputs", output_));
        PERCHERON_TRY(reserve(DType::f32, streams, "hyper-connection gates", post_));
        PERCHERON_TRY(reserve(DType::f32, streams * streams, "hyper-connection gates", comb_));
        PERCHERON_ASSIGN(
            logits_memory_,
            backend_.allocate_host_readable(
                options_.max_logit_rows * config_.vocabulary * sizeof(float), "logits"));
        return backend_.prepare(shape_of(config_), options_.max_rows, options_.max_logit_rows);
    }

    const ModelConfig& config() const override { return config_; }
    SharedMatrices shared() const override { return {weights_.embedding, weights_.head}; }

    Result<std::span<const float>> forward(const ops::RowBatch& batch,
                                           const CacheViews& caches) override {
        PERCHERON_TRY(check(batch, caches));
        for (ops::Activations* activations : {&streams_, &normed_, &output_, &post_, &comb_}) {
            activations->rows = batch.rows();
        }
        for (ops::Activations& tap : taps_) {
            tap.rows = batch.rows();
        }
        const ops::Activations logits = logits_for(batch);
        PERCHERON_TRY(backend_.run(batch, [&] { compute(batch, caches, logits); }));
        return values_of(logits);
    }

    Result<std::span<const float>> logits_of(const ops::RowBatch& latest,
                                             std::span<const std::uint32_t> rows) override {
        ops::RowBatch batch = latest;
        batch.logit_rows = rows;
        batch.digests = {};
        PERCHERON_TRY(check_size(batch));
        const ops::Activations logits = logits_for(batch);
        PERCHERON_TRY(
            backend_.run(batch, [&] { backend_.head(weights_.head, batch, normed_, logits); }));
        return values_of(logits);
    }
    std::size_t max_logit_rows() const override { return options_.max_logit_rows; }

    Status use_digests(std::span<const TokenId> excluded) override {
        ops::LogitDigests* const digests = backend_.digests();
        if (digests == nullptr) return Network::use_digests(excluded);
        PERCHERON_TRY(digests->exclude(excluded, config_.vocabulary));
        digested_ = std::make_unique<DigestedLogits>(
            *digests, ops::Activations{logits_memory_->data(), DType::f32, options_.max_logit_rows,
                                       config_.vocabulary});
        return {};
    }
    ops::DigestedRows* digested() const override { return digested_.get(); }

    Status set_taps(std::vector<std::size_t> layers) override {
        for (const std::size_t layer : layers) {
            if (layer >= config_.layers()) {
                return Error(ErrorCode::invalid_argument,
                             "Layer " + std::to_string(layer) + " cannot be tapped: the network " +
                                 "has " + std::to_string(config_.layers()) + " layers.");
            }
        }
        std::vector<ops::Activations> taps(layers.size());
        for (ops::Activations& tap : taps) {
            PERCHERON_TRY(
                reserve(backend_.activation_dtype(), config_.hidden, "layer outputs", tap));
        }
        tapped_layers_ = std::move(layers);
        taps_ = std::move(taps);
        return {};
    }
    ops::Activations tap(std::size_t index) const override { return taps_[index]; }
    ops::Activations hidden() const override { return normed_; }

  private:
    // Room for the largest step's rows.
    Status reserve(DType dtype, std::size_t columns, std::string_view purpose,
                   ops::Activations& out) {
        PERCHERON_ASSIGN(auto memory,
                         backend_.allocate(options_.max_rows * columns * size_of(dtype), purpose));
        out = {memory->data(), dtype, options_.max_rows, columns};
        memory_.push_back(std::move(memory));
        return {};
    }

    ops::Activations logits_for(const ops::RowBatch& batch) const {
        return {logits_memory_->data(), DType::f32, batch.logit_rows.size(), config_.vocabulary};
    }
    static std::span<const float> values_of(const ops::Activations& logits) {
        return {static_cast<const float*>(logits.data), logits.rows * logits.columns};
    }

    Status check_size(const ops::RowBatch& batch) const {
        if (batch.rows() > options_.max_rows || batch.logit_rows.size() > options_.max_logit_rows) {
            return Error(ErrorCode::invalid_argument,
                         "A step of " + std::to_string(batch.rows()) + " rows with " +
                             std::to_string(batch.logit_rows.size()) +
                             " wanted logits is larger than the network was loaded for.");
        }
        if (!batch.digests.empty() &&
            (!digested_ || batch.digests.size() != batch.logit_rows.size())) {
            return Error(ErrorCode::invalid_argument,
                         "A step asks for digests of logits that were not prepared, or not for one "
                         "of each row.");
        }
        return {};
    }

    Status check(const ops::RowBatch& batch, const CacheViews& caches) const {
        PERCHERON_TRY(ops::check_batch(batch, config_.vocabulary));
        PERCHERON_TRY(check_size(batch));
        const auto kda_layers = static_cast<std::size_t>(
            std::count(config_.mixers.begin(), config_.mixers.end(), MixerKind::kda));
        if (caches.kda.size() < kda_layers ||
            caches.latent.size() < config_.layers() - kda_layers) {
            return Error(ErrorCode::invalid_argument,
                         "The caches handed to the step lack layers of the network.");
        }
        return {};
    }

    // The network, from embedding to logits.
    void compute(const ops::RowBatch& batch, const CacheViews& caches,
                 const ops::Activations& logits) {
        backend_.embed(weights_.embedding, batch, streams_);
        std::size_t kda_layer = 0;
        std::size_t sparse_layer = 0;
        const ops::Activations* output = nullptr;  // of the sublayer before, not yet in the streams
        for (std::size_t index = 0; index < weights_.layers.size(); ++index) {
            const LayerWeights& layer = weights_.layers[index];
            const ops::Activations* const tap = index > 0 ? tap_of(index - 1) : nullptr;
            turn(batch, output, tap, &layer.attention_turn, nullptr);
            output = &output_;
            if (layer.kda) {
                backend_.kda_mixer(*layer.kda, caches.kda[kda_layer++], batch, normed_, output_);
            } else {
                backend_.sparse_mixer(*layer.sparse, caches.latent[sparse_layer++], batch, normed_,
                                      output_);
            }
            turn(batch, output, nullptr, &layer.feed_forward_turn, nullptr);
            if (layer.dense) {
                backend_.dense_ffn(*layer.dense, batch, normed_, output_);
            } else {
                backend_.moe_ffn(*layer.experts, batch, normed_, output_);
            }
        }
        turn(batch, output, tap_of(weights_.layers.size() - 1), nullptr, weights_.final_norm);
        backend_.head(weights_.head, batch, normed_, logits);
    }

    // From one sublayer's output to the next one's input.
    void turn(const ops::RowBatch& batch, const ops::Activations* output,
              const ops::Activations* tap, const ops::MhcWeights* next, const float* final_norm) {
        ops::MhcTurn turn;
        turn.streams = streams_;
        turn.output = output;
        turn.gates = {post_, comb_};
        turn.next = next;
        turn.final_norm = final_norm;
        turn.normed = normed_;
        turn.tap = tap;
        backend_.mhc_turn(turn, batch);
    }

    const ops::Activations* tap_of(std::size_t layer) const {
        const auto found = std::find(tapped_layers_.begin(), tapped_layers_.end(), layer);
        if (found == tapped_layers_.end()) return nullptr;
        return &taps_[static_cast<std::size_t>(found - tapped_layers_.begin())];
    }

    ModelConfig config_;
    ops::Backend& backend_;
    NetworkOptions options_;
    TrunkWeights weights_;
    std::vector<std::unique_ptr<ops::BackendBuffer>> memory_;
    std::unique_ptr<ops::BackendBuffer> logits_memory_;
    std::unique_ptr<DigestedLogits> digested_;
    ops::Activations streams_, normed_, output_;
    ops::Activations post_, comb_;
    std::vector<std::size_t> tapped_layers_;
    std::vector<ops::Activations> taps_;
};

}  // namespace

NetworkMemory Network::memory(const ModelConfig& config, const ops::Backend& backend,
                              const NetworkOptions& options) {
    const std::size_t streams = config.streams;
    const Bytes row = (streams + 2) * config.hidden * size_of(backend.activation_dtype()) +
                      (streams + streams * streams) * sizeof(float);
    NetworkMemory memory;
    memory.activations = options.max_rows * row;
    memory.stages =
        backend.working_bytes(shape_of(config), options.max_rows, options.max_logit_rows);
    memory.logits = options.max_logit_rows * config.vocabulary * sizeof(float);
    return memory;
}

Result<std::unique_ptr<Network>> Network::load(const ModelConfig& config, WeightSource& weights,
                                               ops::Backend& backend,
                                               const NetworkOptions& options) {
    auto trunk = std::make_unique<TextTrunk>(config, backend, options);
    PERCHERON_TRY(trunk->load(weights));
    return std::unique_ptr<Network>(std::move(trunk));
}

}  // namespace percheron::model
