#include "model/dflash2.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "model/weight_loader.h"
#include "ops/drafter_stages.h"

namespace percheron::model {
namespace {

ops::DrafterShape shape_of(const Dflash2Config& config, const Dflash2Options& options) {
    ops::DrafterShape shape;
    shape.hidden = config.hidden;
    shape.taps = config.target_layers.size();
    shape.heads = config.heads;
    shape.kv_heads = config.kv_heads;
    shape.head_dim = config.head_dim;
    shape.intermediate = config.intermediate;
    shape.conv_taps = config.conv_taps;
    shape.conv_width = config.conv_width;
    shape.rank = config.selector_rank;
    shape.rms_eps = config.rms_norm_eps;
    shape.rope_theta = config.rope_theta;
    shape.context_rows = options.context_rows;
    shape.block_rows = options.block_rows;
    shape.block = config.block;
    return shape;
}

// The `most` largest of `values`, descending, ties to the lower index.
void largest_of(std::span<const float> values, std::size_t most,
                std::vector<Dflash2::Candidate>& out) {
    out.clear();
    for (std::size_t id = 0; id < values.size(); ++id) {
        const float value = values[id];
        if (out.size() == most && !(value > out.back().score)) continue;
        if (out.size() == most) out.pop_back();
        const auto place = std::find_if(out.begin(), out.end(),
                                        [&](const auto& held) { return value > held.score; });
        out.insert(place, {TokenId(static_cast<int>(id)), value});
    }
}

class Drafter final : public Dflash2 {
  public:
    Drafter(const Dflash2Config& config, Network& trunk, ops::Backend& backend,
            const Dflash2Options& options)
        : config_(config),
          trunk_(trunk),
          backend_(backend),
          stages_(*backend.drafter()),
          options_(options) {}

    Status load(WeightSource& source) {
        PERCHERON_TRY(check_trunk());
        const std::size_t hidden = config_.hidden;
        WeightLoader loader(trunk_.config(), source, backend_);
        PERCHERON_TRY(loader.matrix("fc", hidden, config_.target_layers.size() * hidden, fusion_));
        PERCHERON_TRY(loader.vector("hidden_norm.weight", hidden, fusion_norm_));
        PERCHERON_TRY(loader.vector("norm.weight", hidden, final_norm_));
        layers_.resize(config_.layers());
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            PERCHERON_TRY(load_layer(loader, i));
        }
        embedding_ = trunk_.shared().embedding;
        head_ = trunk_.shared().head;
        if (config_.own_embedding) {
            PERCHERON_TRY(loader.matrix("embed_tokens", config_.vocabulary, hidden, embedding_,
                                        ops::WeightUse::rows));
        }
        if (config_.own_head) {
            PERCHERON_TRY(loader.matrix("lm_head", config_.vocabulary, hidden, head_));
        }
        if (!config_.mask.empty()) {
            PERCHERON_ASSIGN(mask_, backend_.place(config_.mask, "mask_embedding"));
        }
        if (selects()) {
            const std::string at = "candidate_selector.";
            const std::size_t rank = config_.selector_rank;
            PERCHERON_ASSIGN(predecessors_,
                             source.matrix(at + "predecessor_codebook", config_.vocabulary, rank));
            PERCHERON_ASSIGN(successors_,
                             source.matrix(at + "successor_codebook", config_.vocabulary, rank));
            PERCHERON_TRY(loader.matrix(at + "hidden_projection", rank, hidden, projection_));
        }
        PERCHERON_TRY(reserve());
        PERCHERON_TRY(trunk_.set_taps(config_.target_layers));
        return stages_.prepare(shape_of(config_, options_));
    }

    const Dflash2Config& config() const override { return config_; }
    bool selects() const override { return config_.selector_rank > 0; }

    Status add_context(ops::NumericClass numeric_class, std::span<const ops::DraftRows> rows,
                       std::span<const std::uint32_t> tap_rows,
                       std::span<const ops::ContextPages> pages) override {
        if (tap_rows.size() > options_.context_rows || pages.size() != layers_.size()) {
            return Error(ErrorCode::invalid_argument,
                         "A drafter's context of " + std::to_string(tap_rows.size()) + " rows in " +
                             std::to_string(pages.size()) +
                             " layers does not fit what it was loaded for.");
        }
        taps_.clear();
        for (std::size_t i = 0; i < config_.target_layers.size(); ++i) {
            taps_.push_back(trunk_.tap(i));
        }
        context_.rows = tap_rows.size();
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        return backend_.run(batch, [&] {
            stages_.context_features(fusion_, fusion_norm_, taps_, tap_rows, rows, numeric_class,
                                     context_);
            for (std::size_t i = 0; i < layers_.size(); ++i) {
                stages_.store_context(layers_[i], pages[i], rows, numeric_class, context_);
            }
        });
    }

    Result<std::span<const float>> name(std::span<const ops::DraftRows> blocks,
                                        std::span<const TokenId> newest,
                                        std::span<const ops::ContextPages> pages) override {
        tokens_.clear();
        places_.clear();
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            for (std::uint32_t row = 0; row < blocks[i].row_count; ++row) {
                if (row > 0) places_.push_back(static_cast<std::uint32_t>(tokens_.size()));
                tokens_.push_back(row == 0 ? newest[i] : config_.mask_token);
            }
        }
        const bool fits = std::all_of(blocks.begin(), blocks.end(), [&](const auto& block) {
            return block.row_count >= 2 && block.row_count <= config_.block;
        });
        if (!fits || tokens_.size() > options_.block_rows || pages.size() != layers_.size()) {
            return Error(ErrorCode::invalid_argument,
                         "A drafter's pass of " + std::to_string(tokens_.size()) + " rows in " +
                             std::to_string(blocks.size()) +
                             " blocks does not fit what it was loaded for.");
        }
        for (ops::Activations* activations : {&x_, &hidden_, &projected_}) {
            activations->rows = tokens_.size();
        }
        const ops::Activations logits{logits_memory_->data(), DType::f32, places_.size(),
                                      config_.vocabulary};
        ops::RowBatch batch;
        batch.logit_rows = places_;
        PERCHERON_TRY(backend_.run(batch, [&] {
            stages_.embed_blocks(embedding_, blocks, tokens_, mask_, config_.embedding_scale, x_);
            for (std::size_t i = 0; i < layers_.size(); ++i) {
                stages_.block_attention(layers_[i], pages[i], blocks, x_);
                stages_.block_feed_forward(layers_[i], blocks, x_);
            }
            stages_.block_output(final_norm_, x_, hidden_);
            if (selects()) stages_.project(projection_, hidden_, projected_);
            backend_.head(head_, batch, hidden_, logits);
        }));
        logits_ = {static_cast<float*>(logits.data), logits.rows * logits.columns};
        finish_logits();
        return std::span<const float>(logits_);
    }

    std::span<const Candidate> candidates(std::size_t place, TokenId before) override {
        const std::size_t rank = config_.selector_rank;
        const std::size_t vocabulary = config_.vocabulary;
        largest_of(logits_.subspan(place * vocabulary, vocabulary), config_.selector_top,
                   candidates_);
        ops::dequantise_row(predecessors_, static_cast<std::size_t>(to_int(before)),
                            before_.data());
        const float* const context = projected_.row<float>(places_[place]);
        for (std::size_t r = 0; r < rank; ++r) {
            before_[r] *= context[r];
        }
        for (Candidate& candidate : candidates_) {
            ops::dequantise_row(successors_, static_cast<std::size_t>(to_int(candidate.id)),
                                after_.data());
            double sum = 0;
            for (std::size_t r = 0; r < rank; ++r) {
                sum += static_cast<double>(before_[r]) * after_[r];
            }
            candidate.score += static_cast<float>(sum);
        }
        return candidates_;
    }

  private:
    Status check_trunk() const {
        const ModelConfig& trunk = trunk_.config();
        const auto differs = [](const char* what, std::size_t own, std::size_t trunks) {
            return Error(ErrorCode::invalid_argument,
                         "the drafter's " + std::string(what) + " is " + std::to_string(own) +
                             " but the model's is " + std::to_string(trunks) +
                             "; take a drafter that was made for this model");
        };
        if (config_.hidden != trunk.hidden) {
            return differs("hidden_size", config_.hidden, trunk.hidden);
        }
        if (config_.vocabulary != trunk.vocabulary) {
            return differs("vocab_size", config_.vocabulary, trunk.vocabulary);
        }
        for (const std::size_t layer : config_.target_layers) {
            if (layer >= trunk.layers()) {
                return Error(ErrorCode::invalid_argument,
                             "the drafter reads layer " + std::to_string(layer) +
                                 " (target_layer_ids) but the model has " +
                                 std::to_string(trunk.layers()) +
                                 " layers; take a drafter that was made for this model");
            }
        }
        if (options_.block_rows > trunk_.max_logit_rows() || options_.block_rows < config_.block) {
            return Error(ErrorCode::invalid_argument,
                         "a drafter's pass of " + std::to_string(options_.block_rows) +
                             " rows does not hold its block of " + std::to_string(config_.block) +
                             " or is larger than the model's " +
                             std::to_string(trunk_.max_logit_rows()) + " rows of logits");
        }
        return {};
    }

    Status load_layer(WeightLoader& loader, std::size_t index) {
        ops::DrafterLayerWeights& out = layers_[index];
        const std::string at = "layers." + std::to_string(index) + ".";
        const std::string attention = at + "self_attn.";
        const std::size_t hidden = config_.hidden;
        const std::size_t width = config_.heads * config_.head_dim;
        const std::size_t kv_width = config_.kv_heads * config_.head_dim;
        out.window = config_.windows[index];
        PERCHERON_TRY(loader.vector(at + "input_layernorm.weight", hidden, out.input_norm));
        PERCHERON_TRY(loader.matrix(attention + "q_proj", width, hidden, out.query));
        PERCHERON_TRY(loader.matrix(attention + "k_proj", kv_width, hidden, out.key));
        PERCHERON_TRY(loader.matrix(attention + "v_proj", kv_width, hidden, out.value));
        PERCHERON_TRY(loader.matrix(attention + "o_proj", hidden, width, out.out));
        PERCHERON_TRY(loader.vector(attention + "q_norm.weight", config_.head_dim, out.query_norm));
        PERCHERON_TRY(loader.vector(attention + "k_norm.weight", config_.head_dim, out.key_norm));
        PERCHERON_TRY(
            loader.vector(at + "post_attention_layernorm.weight", hidden, out.post_attention_norm));
        PERCHERON_TRY(loader.matrix(at + "mlp.gate_proj", config_.intermediate, hidden,
                                    out.feed_forward.gate));
        PERCHERON_TRY(
            loader.matrix(at + "mlp.up_proj", config_.intermediate, hidden, out.feed_forward.up));
        PERCHERON_TRY(loader.matrix(at + "mlp.down_proj", hidden, config_.intermediate,
                                    out.feed_forward.down));
        if (config_.conv_taps == 0) return {};
        PERCHERON_TRY(load_conv(loader, at + "attention_conv.", out.attention_conv));
        return load_conv(loader, at + "mlp_conv.", out.feed_forward_conv);
    }

    Status load_conv(WeightLoader& loader, const std::string& at, ops::BlockConvWeights& out) {
        const std::size_t hidden = config_.hidden;
        const std::size_t sides = 2 * config_.conv_taps;
        PERCHERON_TRY(loader.vector(at + "base_kernel", sides * hidden, out.base));
        return loader.matrix(at + "kernel_projection", sides * (hidden / config_.conv_width),
                             hidden, out.gates);
    }

    Status reserve() {
        const DType dtype = backend_.activation_dtype();
        const auto room = [&](std::size_t rows, ops::Activations& out) -> Status {
            PERCHERON_ASSIGN(auto memory, backend_.allocate(rows * config_.hidden * size_of(dtype),
                                                            "drafter activations"));
            out = {memory->data(), dtype, rows, config_.hidden};
            memory_.push_back(std::move(memory));
            return {};
        };
        PERCHERON_TRY(room(options_.context_rows, context_));
        PERCHERON_TRY(room(options_.block_rows, x_));
        PERCHERON_TRY(room(options_.block_rows, hidden_));
        PERCHERON_ASSIGN(
            projected_memory_,
            backend_.allocate_host_readable(
                options_.block_rows * config_.selector_rank * sizeof(float), "drafter candidates"));
        projected_ = {projected_memory_->data(), DType::f32, options_.block_rows,
                      config_.selector_rank};
        PERCHERON_ASSIGN(
            logits_memory_,
            backend_.allocate_host_readable(
                options_.block_rows * config_.vocabulary * sizeof(float), "drafter logits"));
        before_.resize(config_.selector_rank);
        after_.resize(config_.selector_rank);
        candidates_.reserve(config_.selector_top + 1);
        return {};
    }

    void finish_logits() {
        if (config_.logit_scale != 1.0f) {
            for (float& logit : logits_) {
                logit *= config_.logit_scale;
            }
        }
        if (config_.logit_cap > 0.0f) {
            for (float& logit : logits_) {
                logit = config_.logit_cap * std::tanh(logit / config_.logit_cap);
            }
        }
    }

    Dflash2Config config_;
    Network& trunk_;
    ops::Backend& backend_;
    ops::DrafterStages& stages_;
    Dflash2Options options_;

    ops::WeightMatrix fusion_;  // fc
    const float* fusion_norm_ = nullptr;
    const float* final_norm_ = nullptr;
    std::vector<ops::DrafterLayerWeights> layers_;
    ops::WeightMatrix embedding_, head_;
    const float* mask_ = nullptr;
    ops::WeightMatrix predecessors_, successors_;  // as stored: a few rows a place are read
    ops::WeightMatrix projection_;

    std::vector<std::unique_ptr<ops::BackendBuffer>> memory_;
    std::unique_ptr<ops::BackendBuffer> projected_memory_, logits_memory_;
    ops::Activations context_, x_, hidden_, projected_;

    // Of the latest pass.
    std::vector<ops::Activations> taps_;
    std::vector<TokenId> tokens_;
    std::vector<std::uint32_t> places_;  // their rows
    std::span<float> logits_;
    std::vector<Candidate> candidates_;
    std::vector<float> before_, after_;
};

}  // namespace

NetworkMemory Dflash2::memory(const Dflash2Config& config, const ops::Backend& backend,
                              const NetworkOptions& trunk, const Dflash2Options& options) {
    const Bytes row = config.hidden * size_of(backend.activation_dtype());
    NetworkMemory memory;
    memory.activations = (config.target_layers.size() * trunk.max_rows + options.context_rows +
                          2 * options.block_rows) *
                         row;
    memory.logits = options.block_rows * (config.selector_rank + config.vocabulary) * sizeof(float);
    if (const ops::DrafterStages* const stages = backend.drafter()) {
        memory.stages = stages->working_bytes(shape_of(config, options));
    }
    return memory;
}

Bytes Dflash2::codebook_bytes(const Dflash2Config& config) {
    return 2 * config.vocabulary * config.selector_rank * sizeof(BFloat16);
}

Result<std::unique_ptr<Dflash2>> Dflash2::load(const Dflash2Config& config, Network& trunk,
                                               WeightSource& weights, ops::Backend& backend,
                                               const Dflash2Options& options) {
    if (backend.drafter() == nullptr) {
        return Error(ErrorCode::unsupported, "the backend " + std::string(backend.name()) +
                                                 " computes no block drafter; take --draft mtp, "
                                                 "copy or off");
    }
    auto drafter = std::make_unique<Drafter>(config, trunk, backend, options);
    PERCHERON_TRY(drafter->load(weights));
    return std::unique_ptr<Dflash2>(std::move(drafter));
}

}  // namespace percheron::model
