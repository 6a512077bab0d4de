// The shape of a GLM-5.3-Flash network (MODEL.md section 1), as plain numbers.  Parsed from
// config.json by src/checkpoint, made up by `synth`; field names are the checkpoint's in full
// words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "percheron/types.h"

namespace percheron::model {

enum class MixerKind : std::uint8_t { kda, sparse_attention };
enum class FeedForwardKind : std::uint8_t { dense, experts };

struct VisionConfig {
    std::size_t depth = 0;
    std::size_t hidden = 0;
    std::size_t heads = 0;
    std::size_t intermediate = 0;
    std::size_t patch = 14;
    std::size_t temporal_patch = 2;
    std::size_t merge = 2;
    std::size_t channels = 3;
    std::size_t out_hidden = 0;
    std::size_t projection_intermediate = 0;
    float rms_norm_eps = 1e-5f;        // q/k norms and post_layernorm
    float block_rms_norm_eps = 1e-5f;  // norm1 and norm2 (MODEL.md 2.10 [differs])
    float swiglu_limit = 10.0f;
    float rope_theta = 10000.0f;
};

struct ModelConfig {
    std::size_t vocabulary = 0;
    std::size_t hidden = 0;
    std::size_t dense_intermediate = 0;
    std::size_t expert_intermediate = 0;
    std::vector<MixerKind> mixers;              // one a layer
    std::vector<FeedForwardKind> feed_forward;  // one a layer

    // Multi-head latent attention without positions.
    std::size_t attention_heads = 0;
    std::size_t query_rank = 0;     // q_lora_rank
    std::size_t latent = 0;         // kv_lora_rank: the whole cache entry of a token
    std::size_t query_key_dim = 0;  // qk_nope_head_dim; the rope part must be 0
    std::size_t value_dim = 0;      // v_head_dim

    // The pooled indexer of the sparse layers.
    std::size_t index_heads = 0;
    std::size_t index_dim = 0;
    std::size_t index_pool = 4;  // tokens pooled into one key (index_kpool)
    std::size_t index_topk = 0;  // tokens selected; index_topk / index_pool pools

    // KDA linear attention; key dim = value dim = kda_dim.
    std::size_t kda_heads = 0;
    std::size_t kda_dim = 0;
    std::size_t kda_conv = 4;  // short_conv_kernel_size
    float kda_gate_lower_bound = -5.0f;

    // Experts.
    std::size_t experts = 0;
    std::size_t experts_per_token = 0;
    std::size_t shared_experts = 0;
    bool normalise_router_weights = true;
    float router_scale = 1.0f;  // routed_scaling_factor
    float swiglu_limit = 10.0f;

    // Hyper-connections.
    std::size_t streams = 4;
    std::size_t sinkhorn_iterations = 20;
    float mhc_eps = 1e-6f;

    float rms_norm_eps = 1e-5f;
    std::size_t context_limit = 0;  // max_position_embeddings
    std::size_t mtp_layers = 0;     // num_nextn_predict_layers; stored as layer `layers()`

    std::vector<TokenId> stop_tokens;  // union over config, text_config and generation_config
    TokenId pad_token{};
    TokenId image_token{-1};
    TokenId image_start_token{-1};
    TokenId image_end_token{-1};
    TokenId video_token{-1};
    bool has_vision = false;
    VisionConfig vision;

    // Defaults for requests that name no value (generation_config.json).
    float default_temperature = 1.0f;
    float default_top_p = 0.95f;

    std::size_t layers() const { return mixers.size(); }
    std::size_t kda_width() const { return kda_heads * kda_dim; }
};

}  // namespace percheron::model
