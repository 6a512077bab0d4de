#include "model/trunk_weights.h"

#include <string>

#include "model/weight_loader.h"

namespace percheron::model {
namespace {

const std::string language_model = "model.language_model.";

}  // namespace

ops::NetworkShape shape_of(const ModelConfig& config) {
    ops::NetworkShape shape;
    shape.vocabulary = config.vocabulary;
    shape.hidden = config.hidden;
    shape.streams = config.streams;
    shape.sinkhorn_iterations = config.sinkhorn_iterations;
    shape.rms_eps = config.rms_norm_eps;
    shape.mhc_eps = config.mhc_eps;
    shape.kda_heads = config.kda_heads;
    shape.kda_dim = config.kda_dim;
    shape.kda_conv = config.kda_conv;
    shape.kda_gate_lower_bound = config.kda_gate_lower_bound;
    shape.attention_heads = config.attention_heads;
    shape.query_rank = config.query_rank;
    shape.latent = config.latent;
    shape.query_key_dim = config.query_key_dim;
    shape.value_dim = config.value_dim;
    shape.index_heads = config.index_heads;
    shape.index_dim = config.index_dim;
    shape.index_pool = config.index_pool;
    shape.index_topk = config.index_topk;
    shape.experts = config.experts;
    shape.experts_per_token = config.experts_per_token;
    shape.normalise_router_weights = config.normalise_router_weights;
    shape.router_scale = config.router_scale;
    shape.swiglu_limit = config.swiglu_limit;
    shape.dense_intermediate = config.dense_intermediate;
    shape.expert_intermediate = config.expert_intermediate;
    shape.shared_intermediate = config.expert_intermediate * config.shared_experts;
    shape.context_limit = config.context_limit;
    return shape;
}

Status load_layer(const ModelConfig& config, WeightSource& source, ops::Backend& backend,
                  std::size_t index, LayerWeights& out) {
    WeightLoader loader(config, source, backend);
    const std::string at = language_model + "layers." + std::to_string(index) + ".";
    PERCHERON_TRY(loader.turn(at, "attn", "input_layernorm", out.attention_turn));
    PERCHERON_TRY(loader.turn(at, "ffn", "post_attention_layernorm", out.feed_forward_turn));
    if (config.mixers[index] == MixerKind::kda) {
        PERCHERON_TRY(loader.kda(at + "self_attn.", out.kda.emplace()));
    } else {
        PERCHERON_TRY(loader.sparse(at + "self_attn.", out.sparse.emplace()));
    }
    if (config.feed_forward[index] == FeedForwardKind::dense) {
        return loader.feed_forward(at + "mlp.", config.dense_intermediate, out.dense.emplace());
    }
    return loader.experts(at + "mlp.", out.expert_list, out.experts.emplace());
}

Result<TrunkWeights> load_trunk(const ModelConfig& config, WeightSource& source,
                                ops::Backend& backend) {
    WeightLoader loader(config, source, backend);
    TrunkWeights weights;
    PERCHERON_TRY(loader.matrix(language_model + "embed_tokens", config.vocabulary, config.hidden,
                                weights.embedding, ops::WeightUse::rows));
    PERCHERON_TRY(loader.vector(language_model + "norm.weight", config.hidden, weights.final_norm));
    PERCHERON_TRY(loader.matrix("lm_head", config.vocabulary, config.hidden, weights.head));
    weights.layers.resize(config.layers());
    for (std::size_t index = 0; index < config.layers(); ++index) {
        PERCHERON_TRY(load_layer(config, source, backend, index, weights.layers[index]));
    }
    return weights;
}

}  // namespace percheron::model
