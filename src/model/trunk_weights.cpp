#include "model/trunk_weights.h"

#include <string>

#include "model/weight_loader.h"

namespace percheron::model {
namespace {

const std::string language_model = "model.language_model.";

// One layer of the trunk.
Status load_layer(const ModelConfig& config, WeightLoader& loader, std::size_t index,
                  LayerWeights& out) {
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

}  // namespace

Result<TrunkWeights> load_trunk(const ModelConfig& config, WeightSource& source,
                                ops::Backend& backend) {
    WeightLoader loader(config, source, backend);
    TrunkWeights weights;
    PERCHERON_TRY(loader.matrix(language_model + "embed_tokens", config.vocabulary, config.hidden,
                                weights.embedding));
    PERCHERON_TRY(loader.vector(language_model + "norm.weight", config.hidden, weights.final_norm));
    PERCHERON_TRY(loader.matrix("lm_head", config.vocabulary, config.hidden, weights.head));
    weights.layers.resize(config.layers());
    for (std::size_t index = 0; index < config.layers(); ++index) {
        PERCHERON_TRY(load_layer(config, loader, index, weights.layers[index]));
    }
    return weights;
}

}  // namespace percheron::model
