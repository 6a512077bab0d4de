// Small networks with random weights in memory, no files.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "model/config.h"
#include "model/weight_source.h"

namespace percheron::tests {

// Odd sizes everywhere; KDA and sparse layers, dense and expert feed-forwards.  topk 16 of pools of
// 4: the first token count that can drop something is 20.
inline model::ModelConfig small_config() {
    using model::FeedForwardKind;
    using model::MixerKind;
    model::ModelConfig config;
    config.vocabulary = 61;
    config.hidden = 40;
    config.dense_intermediate = 56;
    config.expert_intermediate = 24;
    config.mixers = {MixerKind::kda, MixerKind::sparse_attention, MixerKind::kda,
                     MixerKind::sparse_attention, MixerKind::kda};
    config.feed_forward = {FeedForwardKind::dense, FeedForwardKind::experts,
                           FeedForwardKind::experts, FeedForwardKind::dense,
                           FeedForwardKind::experts};
    config.attention_heads = 3;
    config.query_rank = 32;
    config.latent = 48;
    config.query_key_dim = 24;
    config.value_dim = 16;
    config.index_heads = 6;
    config.index_dim = 16;
    config.index_pool = 4;
    config.index_topk = 16;
    config.kda_heads = 2;
    config.kda_dim = 16;
    config.experts = 5;
    config.experts_per_token = 2;
    config.shared_experts = 1;
    config.router_scale = 1.5f;
    config.swiglu_limit = 2.0f;
    config.context_limit = 4096;
    return config;
}

// Every tensor of any name, made from the name and a seed.  Matrices have about unit gain; "absent"
// is a stem the source claims not to have.
class RandomWeights final : public model::WeightSource {
  public:
    explicit RandomWeights(std::uint64_t seed, std::string absent = "")
        : seed_(seed), absent_(std::move(absent)) {}

    bool has(std::string_view stem) const override { return stem != absent_; }

    Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n, std::size_t k) override {
        if (stem == absent_) {
            return Error(ErrorCode::not_found, "No tensor " + std::string(stem) + ".");
        }
        std::vector<BFloat16>& values = matrices_[std::string(stem)];
        if (values.empty()) {
            std::mt19937_64 random = generator(stem);
            std::normal_distribution<float> normal(
                0.0f,
                stem.ends_with("embed_tokens") ? 1.0f : 1.0f / std::sqrt(static_cast<float>(k)));
            for (std::size_t i = 0; i < n * k; ++i) {
                values.emplace_back(normal(random));
            }
        }
        ops::WeightMatrix view;
        view.n = n;
        view.k = k;
        view.data = values.data();
        return view;
    }

    Status vector(std::string_view name, std::span<float> out) override {
        if (name == absent_) {
            return Error(ErrorCode::not_found, "No tensor " + std::string(name) + ".");
        }
        const bool around_one = name.ends_with("norm.weight") || name.ends_with("_scale");
        std::mt19937_64 random = generator(name);
        std::normal_distribution<float> normal(around_one ? 1.0f : 0.0f, around_one ? 0.2f : 0.7f);
        for (float& value : out) {
            value = normal(random);
        }
        return {};
    }

  private:
    std::mt19937_64 generator(std::string_view name) const {
        std::uint64_t hash = 1469598103934665603ull ^ seed_;
        for (const char c : name) {
            hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
        }
        return std::mt19937_64(hash);
    }

    std::uint64_t seed_;
    std::string absent_;
    std::map<std::string, std::vector<BFloat16>> matrices_;
};

inline std::vector<TokenId> random_tokens(std::size_t count, std::size_t vocabulary,
                                          std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < count; ++i) {
        tokens.push_back(static_cast<TokenId>(random() % vocabulary));
    }
    return tokens;
}

}  // namespace percheron::tests
