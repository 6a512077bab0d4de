#include "checkpoint/architecture.h"

#include "checkpoint/names.h"

namespace percheron::checkpoint {
namespace {

using model::FeedForwardKind;
using model::MixerKind;
using model::ModelConfig;

// Appends tensors below one prefix.
class Lister {
  public:
    Lister(std::vector<ExpectedTensor>& tensors, std::string prefix, NetworkPart part)
        : tensors_(tensors), prefix_(std::move(prefix)), part_(part) {}

    void matrix(const std::string& stem, std::size_t n, std::size_t k,
                TensorRole role = TensorRole::matrix) {
        add(stem + ".weight", {n, k}, role);
    }
    void bare_matrix(const std::string& name, std::size_t n, std::size_t k) {
        add(name, {n, k}, TensorRole::matrix);
    }
    void norm(const std::string& stem, std::size_t size) {
        add(stem + ".weight", {size}, TensorRole::plain);
    }
    void plain(const std::string& name, Shape shape) {
        add(name, std::move(shape), TensorRole::plain);
    }
    void swiglu(const std::string& stem, std::size_t intermediate, std::size_t hidden,
                TensorRole role = TensorRole::matrix) {
        matrix(stem + "gate_proj", intermediate, hidden, role);
        matrix(stem + "up_proj", intermediate, hidden, role);
        matrix(stem + "down_proj", hidden, intermediate, role);
    }
    Lister below(const std::string& name) const { return {tensors_, prefix_ + name, part_}; }
    // The same place as another part; everything in the MTP layer stays that layer's.
    Lister as(NetworkPart part) const {
        return {tensors_, prefix_, part_ == NetworkPart::mtp ? part_ : part};
    }

  private:
    void add(const std::string& name, Shape shape, TensorRole role) {
        tensors_.push_back({prefix_ + name, std::move(shape), role, part_});
    }

    std::vector<ExpectedTensor>& tensors_;
    std::string prefix_;
    NetworkPart part_;
};

void list_hyper_connections(Lister layer, const ModelConfig& config) {
    const std::size_t streams = config.streams;
    const std::size_t gates = (2 + streams) * streams;
    for (const char* sublayer : {"hc_attn", "hc_ffn"}) {
        const std::string name = sublayer;
        layer.bare_matrix(name + "_fn", gates, streams * config.hidden);
        layer.plain(name + "_base", {gates});
        layer.plain(name + "_scale", {3});
    }
}

void list_kda(Lister mixer, const ModelConfig& config) {
    const std::size_t width = config.kda_width();
    for (const char* stream : {"q", "k", "v"}) {
        const std::string name = stream;
        mixer.matrix(name + "_proj", width, config.hidden);
        mixer.plain(name + "_conv1d.weight", {width, 1, config.kda_conv});
    }
    for (const char* gate : {"f", "g"}) {
        const std::string name = gate;
        mixer.matrix(name + "_a_proj", config.kda_dim, config.hidden);
        mixer.matrix(name + "_b_proj", width, config.kda_dim);
    }
    mixer.matrix("b_proj", config.kda_heads, config.hidden);
    mixer.plain("A_log", {config.kda_heads});
    mixer.plain("dt_bias", {width});
    mixer.norm("o_norm", config.kda_dim);
    mixer.matrix("o_proj", config.hidden, width);
}

void list_sparse_attention(Lister mixer, const ModelConfig& config) {
    const std::size_t heads = config.attention_heads;
    mixer.matrix("q_a_proj", config.query_rank, config.hidden);
    mixer.norm("q_a_layernorm", config.query_rank);
    mixer.matrix("q_b_proj", heads * config.query_key_dim, config.query_rank);
    mixer.matrix("kv_a_proj_with_mqa", config.latent, config.hidden);
    mixer.norm("kv_a_layernorm", config.latent);
    mixer.matrix("kv_b_proj", heads * (config.query_key_dim + config.value_dim), config.latent);
    mixer.matrix("o_proj", config.hidden, heads * config.value_dim);
    Lister indexer = mixer.below("indexer.");
    indexer.matrix("wq_b", config.index_heads * config.index_dim, config.query_rank);
    indexer.matrix("wk", config.index_dim, config.hidden);
    indexer.norm("k_norm", config.index_dim);
    indexer.plain("k_norm.bias", {config.index_dim});
    indexer.matrix("weights_proj", config.index_heads, config.hidden);
    indexer.bare_matrix("index_kpool_compress_gate", config.index_dim, config.hidden);
    indexer.plain("index_kpool_compress_ape", {config.index_pool, config.index_dim});
}

void list_experts(const Lister& mlp, const ModelConfig& config) {
    Lister router = mlp.as(NetworkPart::router);
    Lister routed = mlp.as(NetworkPart::routed_experts);
    router.matrix("gate", config.experts, config.hidden);
    router.plain("gate.e_score_correction_bias", {config.experts});
    for (std::size_t e = 0; e < config.experts; ++e) {
        routed.swiglu("experts." + std::to_string(e) + ".", config.expert_intermediate,
                      config.hidden, TensorRole::routed_expert);
    }
    if (config.shared_experts > 0) {
        mlp.as(NetworkPart::shared_experts)
            .swiglu("shared_experts.", config.expert_intermediate * config.shared_experts,
                    config.hidden);
    }
}

void list_trunk_layer(Lister layer, const ModelConfig& config, std::size_t index) {
    list_hyper_connections(layer.as(NetworkPart::hyper_connections), config);
    layer.norm("input_layernorm", config.hidden);
    layer.norm("post_attention_layernorm", config.hidden);
    if (config.mixers[index] == MixerKind::kda) {
        list_kda(layer.as(NetworkPart::kda).below("self_attn."), config);
    } else {
        list_sparse_attention(layer.as(NetworkPart::sparse_attention).below("self_attn."), config);
    }
    if (config.feed_forward[index] == FeedForwardKind::dense) {
        layer.as(NetworkPart::dense_ffn)
            .below("mlp.")
            .swiglu("", config.dense_intermediate, config.hidden);
    } else {
        list_experts(layer.below("mlp."), config);
    }
}

void list_mtp_layer(Lister layer, const ModelConfig& config) {
    layer.norm("enorm", config.hidden);
    layer.norm("hnorm", config.hidden);
    layer.matrix("eh_proj", config.hidden, 2 * config.hidden);
    layer.norm("input_layernorm", config.hidden);
    list_sparse_attention(layer.below("self_attn."), config);
    layer.norm("post_attention_layernorm", config.hidden);
    list_experts(layer.below("mlp."), config);
    layer.norm("shared_head.norm", config.hidden);
}

}  // namespace

bool is_linear(const ExpectedTensor& tensor) {
    return tensor.role != TensorRole::plain && tensor.name.ends_with(".weight") &&
           tensor.part != NetworkPart::embedding && !tensor.name.ends_with(".mlp.gate.weight");
}

std::vector<ExpectedTensor> outer_tensors(const ModelConfig& config) {
    std::vector<ExpectedTensor> tensors;
    Lister text(tensors, std::string(text_prefix), NetworkPart::norms);
    text.as(NetworkPart::embedding).matrix("embed_tokens", config.vocabulary, config.hidden);
    text.norm("norm", config.hidden);
    Lister(tensors, "", NetworkPart::head).matrix("lm_head", config.vocabulary, config.hidden);
    return tensors;
}

std::vector<ExpectedTensor> layer_tensors(const ModelConfig& config, std::size_t index) {
    std::vector<ExpectedTensor> tensors;
    const bool trunk = index < config.layers();
    Lister layer(tensors, layer_prefix(index), trunk ? NetworkPart::norms : NetworkPart::mtp);
    if (trunk) {
        list_trunk_layer(layer, config, index);
    } else {
        list_mtp_layer(layer, config);
    }
    return tensors;
}

std::vector<ExpectedTensor> vision_tensors(const model::VisionConfig& vision) {
    std::vector<ExpectedTensor> tensors;
    Lister tower(tensors, std::string(vision_prefix), NetworkPart::vision);
    const auto with_bias = [](Lister& place, const std::string& stem, std::size_t n,
                              std::size_t k) {
        place.matrix(stem, n, k);
        place.plain(stem + ".bias", {n});
    };
    tower.plain("patch_embed.proj.weight", {vision.hidden, vision.channels, vision.temporal_patch,
                                            vision.patch, vision.patch});
    tower.plain("patch_embed.proj.bias", {vision.hidden});
    for (std::size_t i = 0; i < vision.depth; ++i) {
        Lister block = tower.below("blocks." + std::to_string(i) + ".");
        block.norm("norm1", vision.hidden);
        with_bias(block, "attn.qkv", 3 * vision.hidden, vision.hidden);
        block.norm("attn.q_norm", vision.hidden / vision.heads);
        block.norm("attn.k_norm", vision.hidden / vision.heads);
        with_bias(block, "attn.proj", vision.hidden, vision.hidden);
        block.norm("norm2", vision.hidden);
        with_bias(block, "mlp.gate_proj", vision.intermediate, vision.hidden);
        with_bias(block, "mlp.up_proj", vision.intermediate, vision.hidden);
        with_bias(block, "mlp.down_proj", vision.hidden, vision.intermediate);
    }
    tower.norm("post_layernorm", vision.hidden);
    tower.plain("downsample.weight",
                {vision.out_hidden, vision.hidden, vision.merge, vision.merge});
    tower.plain("downsample.bias", {vision.out_hidden});
    Lister merger = tower.below("merger.");
    merger.matrix("proj", vision.out_hidden, vision.out_hidden);
    merger.norm("post_projection_norm", vision.out_hidden);
    merger.plain("post_projection_norm.bias", {vision.out_hidden});
    merger.swiglu("", vision.projection_intermediate, vision.out_hidden);
    return tensors;
}

std::string_view name_of(NetworkPart part) {
    switch (part) {
        case NetworkPart::embedding:
            return "embedding";
        case NetworkPart::head:
            return "head";
        case NetworkPart::hyper_connections:
            return "hyper-connections";
        case NetworkPart::kda:
            return "KDA";
        case NetworkPart::sparse_attention:
            return "sparse attention";
        case NetworkPart::dense_ffn:
            return "dense FFN";
        case NetworkPart::router:
            return "router";
        case NetworkPart::routed_experts:
            return "routed experts";
        case NetworkPart::shared_experts:
            return "shared experts";
        case NetworkPart::norms:
            return "norms";
        case NetworkPart::mtp:
            return "MTP layer";
        case NetworkPart::vision:
            return "vision";
    }
    return "?";
}

std::string stem_of(const std::string& name) {
    constexpr std::string_view suffix = ".weight";
    if (!std::string_view(name).ends_with(suffix)) return name;
    return name.substr(0, name.size() - suffix.size());
}

}  // namespace percheron::checkpoint
