#include "model/weight_loader.h"

#include "model/trunk_weights.h"

namespace percheron::model {

Status WeightLoader::matrix(const std::string& stem, std::size_t n, std::size_t k,
                            ops::WeightMatrix& out, ops::WeightUse use) {
    PERCHERON_ASSIGN(const ops::WeightMatrix stored, source_.matrix(stem, n, k));
    PERCHERON_ASSIGN(out, backend_.place(stored, stem, use));
    return {};
}

Status WeightLoader::vectors(const std::vector<std::string>& names, std::size_t count,
                             const float*& out) {
    std::vector<float> values(names.size() * count);
    for (std::size_t i = 0; i < names.size(); ++i) {
        PERCHERON_TRY(source_.vector(names[i], std::span<float>(values).subspan(i * count, count)));
    }
    PERCHERON_ASSIGN(out, backend_.place(values, names.front()));
    return {};
}

Status WeightLoader::turn(const std::string& layer, const std::string& site,
                          const std::string& norm, ops::MhcWeights& out) {
    const std::size_t streams = config_.streams;
    const std::size_t gates = (2 + streams) * streams;
    PERCHERON_TRY(matrix(layer + "hc_" + site + "_fn", gates, streams * config_.hidden, out.fn,
                         ops::WeightUse::rows));
    PERCHERON_TRY(vector(layer + "hc_" + site + "_base", gates, out.base));
    PERCHERON_TRY(vector(layer + "hc_" + site + "_scale", 3, out.scale));
    return vector(layer + norm + ".weight", config_.hidden, out.norm);
}

Status WeightLoader::kda(const std::string& at, ops::KdaWeights& out) {
    const std::size_t hidden = config_.hidden;
    const std::size_t width = config_.kda_width();
    const std::size_t dim = config_.kda_dim;
    PERCHERON_TRY(matrix(at + "q_proj", width, hidden, out.q));
    PERCHERON_TRY(matrix(at + "k_proj", width, hidden, out.k));
    PERCHERON_TRY(matrix(at + "v_proj", width, hidden, out.v));
    PERCHERON_TRY(matrix(at + "f_a_proj", dim, hidden, out.f_a));
    PERCHERON_TRY(matrix(at + "f_b_proj", width, dim, out.f_b));
    PERCHERON_TRY(matrix(at + "g_a_proj", dim, hidden, out.g_a));
    PERCHERON_TRY(matrix(at + "g_b_proj", width, dim, out.g_b));
    PERCHERON_TRY(matrix(at + "b_proj", config_.kda_heads, hidden, out.beta));
    PERCHERON_TRY(vectors({at + "q_conv1d.weight", at + "k_conv1d.weight", at + "v_conv1d.weight"},
                          width * config_.kda_conv, out.conv));
    PERCHERON_TRY(vector(at + "A_log", config_.kda_heads, out.a_log));
    PERCHERON_TRY(vector(at + "dt_bias", width, out.dt_bias));
    PERCHERON_TRY(vector(at + "o_norm.weight", dim, out.out_norm));
    return matrix(at + "o_proj", hidden, width, out.out);
}

Status WeightLoader::sparse(const std::string& at, ops::SparseAttentionWeights& out) {
    const std::size_t hidden = config_.hidden;
    const std::size_t heads = config_.attention_heads;
    const std::size_t keys = config_.query_key_dim;
    const std::size_t values = config_.value_dim;
    PERCHERON_TRY(matrix(at + "q_a_proj", config_.query_rank, hidden, out.q_a));
    PERCHERON_TRY(vector(at + "q_a_layernorm.weight", config_.query_rank, out.q_a_norm));
    PERCHERON_TRY(matrix(at + "q_b_proj", heads * keys, config_.query_rank, out.q_b));
    PERCHERON_TRY(matrix(at + "kv_a_proj_with_mqa", config_.latent, hidden, out.kv_a));
    PERCHERON_TRY(vector(at + "kv_a_layernorm.weight", config_.latent, out.kv_a_norm));
    const std::string kv_b = at + "kv_b_proj";
    PERCHERON_ASSIGN(const ops::WeightMatrix stored,
                     source_.matrix(kv_b, heads * (keys + values), config_.latent));
    PERCHERON_ASSIGN(out.kv_b, backend_.place_latent_heads(stored, shape_of(config_), kv_b));
    PERCHERON_TRY(matrix(at + "o_proj", hidden, heads * values, out.out));

    const std::string index = at + "indexer.";
    const std::size_t dim = config_.index_dim;
    PERCHERON_TRY(
        matrix(index + "wq_b", config_.index_heads * dim, config_.query_rank, out.index_q));
    PERCHERON_TRY(matrix(index + "wk", dim, hidden, out.index_k));
    PERCHERON_TRY(vector(index + "k_norm.weight", dim, out.index_k_norm));
    PERCHERON_TRY(vector(index + "k_norm.bias", dim, out.index_k_bias));
    PERCHERON_TRY(
        matrix(index + "weights_proj", config_.index_heads, hidden, out.index_head_weights));
    PERCHERON_TRY(matrix(index + "index_kpool_compress_gate", dim, hidden, out.index_gate));
    return vector(index + "index_kpool_compress_ape", config_.index_pool * dim, out.index_ape);
}

Status WeightLoader::feed_forward(const std::string& at, std::size_t intermediate,
                                  ops::FeedForwardWeights& out) {
    PERCHERON_TRY(matrix(at + "gate_proj", intermediate, config_.hidden, out.gate));
    PERCHERON_TRY(matrix(at + "up_proj", intermediate, config_.hidden, out.up));
    return matrix(at + "down_proj", config_.hidden, intermediate, out.down);
}

Status WeightLoader::experts(const std::string& at, std::vector<ops::FeedForwardWeights>& list,
                             ops::ExpertsWeights& out) {
    PERCHERON_TRY(matrix(at + "gate", config_.experts, config_.hidden, out.router));
    PERCHERON_TRY(vector(at + "gate.e_score_correction_bias", config_.experts, out.router_bias));
    list.resize(config_.experts);
    for (std::size_t expert = 0; expert < config_.experts; ++expert) {
        PERCHERON_TRY(feed_forward(at + "experts." + std::to_string(expert) + ".",
                                   config_.expert_intermediate, list[expert]));
    }
    out.experts = list;
    PERCHERON_ASSIGN(out.streamed, source_.stream(at, list));
    PERCHERON_ASSIGN(out.table, backend_.place_experts(out.experts, at));
    return feed_forward(at + "shared_experts.",
                        config_.expert_intermediate * config_.shared_experts, out.shared);
}

}  // namespace percheron::model
