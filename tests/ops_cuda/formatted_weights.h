// Weights of a network that suits the CUDA kernels, random, each tensor in the format that a test
// asks for.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/weight_source.h"
#include "ops_cuda/support.h"

namespace percheron::check {

// Every kind of layer, the widths that the kernels are made for, counts that are not round.
inline model::ModelConfig cuda_config() {
    using model::FeedForwardKind;
    using model::MixerKind;
    model::ModelConfig config;
    config.vocabulary = 331;
    config.hidden = 256;
    config.dense_intermediate = 384;
    config.expert_intermediate = 256;
    config.mixers = {MixerKind::kda, MixerKind::sparse_attention, MixerKind::kda,
                     MixerKind::sparse_attention};
    config.feed_forward = {FeedForwardKind::dense, FeedForwardKind::experts,
                           FeedForwardKind::experts, FeedForwardKind::experts};
    config.attention_heads = 3;
    config.query_rank = 128;
    config.latent = 512;
    config.query_key_dim = 256;
    config.value_dim = 128;
    config.index_heads = 5;
    config.index_dim = 128;
    config.index_pool = 4;
    config.index_topk = 32;
    config.kda_heads = 3;
    config.kda_dim = 128;
    config.experts = 13;
    config.experts_per_token = 4;
    config.shared_experts = 1;
    config.router_scale = 1.5f;
    config.swiglu_limit = 4.0f;
    config.context_limit = 2048;
    return config;
}

class FormattedWeights final : public model::WeightSource {
  public:
    // Which format a matrix has, by its stem.  Hyper-connections and router are always bf16.
    using Choice = std::function<ops::WeightFormat(std::string_view stem)>;
    FormattedWeights(std::uint64_t seed, Choice choice) : seed_(seed), choice_(std::move(choice)) {}

    bool has(std::string_view) const override { return true; }

    Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n, std::size_t k) override {
        auto& stored = matrices_[std::string(stem)];
        if (stored == nullptr) {
            Random random(hash(stem));
            const bool plain = stem.ends_with("_fn") || stem.ends_with("mlp.gate");
            stored = std::make_unique<StoredMatrix>(plain ? ops::WeightFormat::bf16 : choice_(stem),
                                                    n, k, random);
        }
        return stored->view();
    }

    Status vector(std::string_view name, std::span<float> out) override {
        Random random(hash(name));
        const bool around_one = name.ends_with("norm.weight") || name.ends_with("_scale");
        for (float& value : out)
            value = around_one ? 1.0f + 0.2f * random.normal() : 0.7f * random.normal();
        return {};
    }

  private:
    std::uint64_t hash(std::string_view name) const {
        std::uint64_t hash = 1469598103934665603ull ^ seed_;
        for (const char c : name)
            hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
        return hash;
    }

    std::uint64_t seed_;
    Choice choice_;
    std::map<std::string, std::unique_ptr<StoredMatrix>> matrices_;
};

inline ops::WeightFormat all_bf16(std::string_view) {
    return ops::WeightFormat::bf16;
}

// The released network: all but the experts in bf16.
inline FormattedWeights::Choice experts_in(ops::WeightFormat format) {
    return [format](std::string_view stem) {
        return stem.find(".experts.") != std::string_view::npos ? format : ops::WeightFormat::bf16;
    };
}

// As quantised checkpoints mix them: 4-bit experts, fp8 trunk, some bf16 in between.
inline FormattedWeights::Choice mixed(ops::WeightFormat experts) {
    return [experts](std::string_view stem) {
        if (stem.find(".experts.") != std::string_view::npos) return experts;
        if (stem.ends_with("b_proj") && stem.find("kv_b") == std::string_view::npos)
            return ops::WeightFormat::bf16;
        if (stem.find("layers.1.") != std::string_view::npos && stem.ends_with("kv_b_proj"))
            return ops::WeightFormat::bf16;
        return ops::WeightFormat::fp8_block;
    };
}

}  // namespace percheron::check
