#include "checkpoint/config.h"

#include <algorithm>
#include <string>

#include "checkpoint/field_reader.h"
#include "core/files.h"

namespace percheron::checkpoint {
namespace {

namespace fs = std::filesystem;
using model::FeedForwardKind;
using model::MixerKind;
using model::ModelConfig;
using model::VisionConfig;

constexpr Bytes largest_config = 64u << 20;
constexpr std::size_t most_layers = 1024;
constexpr std::size_t most_vocabulary = 1u << 26;

Result<Json> parse_json(const std::string& text, const std::string& file) {
    Json json = Json::parse(text, nullptr, false);
    if (json.is_discarded() || !json.is_object()) {
        return Error(ErrorCode::corrupt, file + ": is not a JSON object");
    }
    return json;
}

Result<Json> read_json(const fs::path& path) {
    PERCHERON_ASSIGN(const std::string text, read_text_file(path, largest_config));
    return parse_json(text, path.string());
}

void add_stop_tokens(ModelConfig& config, const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids) {
        const TokenId token{id};
        if (std::find(config.stop_tokens.begin(), config.stop_tokens.end(), token) ==
            config.stop_tokens.end()) {
            config.stop_tokens.push_back(token);
        }
    }
}

// A single optional token id.
void read_token(FieldReader& fields, std::string_view field, std::size_t vocabulary,
                TokenId& token) {
    const std::vector<std::int32_t> ids = fields.token_ids(field, vocabulary);
    if (!ids.empty()) token = TokenId{ids.front()};
}

// The fixed choices of the architecture.  A file may leave them out; it may not choose otherwise.
void check_architecture(FieldReader& text) {
    text.expect("tie_word_embeddings", false);
    text.expect("attention_bias", false);
    text.expect("hidden_act", "silu");
    text.expect("mla_use_nope", true);
    text.expect("n_group", 1);
    text.expect("topk_group", 1);
    text.expect("scoring_func", "sigmoid");
    text.expect("topk_method", "noaux_tc");
    text.expect("moe_router_dtype", "float32");
    text.expect("index_kpool_compress", true);
    text.expect("index_kpool_always_select_tail", true);
    text.expect("mhc", true);
    if (text.size("qk_rope_head_dim", 0) != 0) {
        text.fail("qk_rope_head_dim", "must be 0: this architecture has no positions");
    }
}

void read_kda(FieldReader& text, const std::string& file, const std::string& path,
              ModelConfig& config, std::vector<std::size_t>& kda_layers, Status& status) {
    FieldReader kda(file, path + "linear_attn_config.", text.object("linear_attn_config"));
    if (!text.status().ok()) return;
    config.kda_heads = kda.size("num_heads", 1);
    config.kda_dim = kda.size("head_dim", 1);
    config.kda_conv = kda.size("short_conv_kernel_size", 1, 64);
    config.kda_gate_lower_bound = kda.number("gate_lower_bound", -1e4f, -1e-6f);
    if (!text.has("layer_types")) {
        // 0-based here, unlike the list of the same name in related models.
        for (const std::int32_t layer : kda.token_ids("kda_layers", config.layers())) {
            kda_layers.push_back(static_cast<std::size_t>(layer));
        }
        if (!kda.has("kda_layers")) text.fail("layer_types", "is missing", ErrorCode::not_found);
    }
    status = kda.status();
}

void read_layer_kinds(FieldReader& text, const std::vector<std::size_t>& kda_layers,
                      ModelConfig& config) {
    const std::size_t layers = config.layers();
    if (text.has("layer_types")) {
        const std::vector<std::string> kinds = text.words("layer_types", layers);
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            if (kinds[i] == "linear_attention") {
                config.mixers[i] = MixerKind::kda;
            } else if (kinds[i] == "deepseek_sparse_attention") {
                config.mixers[i] = MixerKind::sparse_attention;
            } else {
                text.fail("layer_types", "holds the unknown kind '" + kinds[i] + "'");
            }
        }
    } else {
        std::fill(config.mixers.begin(), config.mixers.end(), MixerKind::sparse_attention);
        for (const std::size_t layer : kda_layers) {
            config.mixers[layer] = MixerKind::kda;
        }
    }
    if (text.has("mlp_layer_types")) {
        const std::vector<std::string> kinds = text.words("mlp_layer_types", layers);
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            if (kinds[i] == "dense") {
                config.feed_forward[i] = FeedForwardKind::dense;
            } else if (kinds[i] == "sparse") {
                config.feed_forward[i] = FeedForwardKind::experts;
            } else {
                text.fail("mlp_layer_types", "holds the unknown kind '" + kinds[i] + "'");
            }
        }
    } else {
        const std::size_t dense = text.size("first_k_dense_replace", 0, layers);
        for (std::size_t i = 0; i < layers; ++i) {
            config.feed_forward[i] = i < dense ? FeedForwardKind::dense : FeedForwardKind::experts;
        }
    }
    if (text.has("indexer_types")) {
        for (const std::string& kind : text.words("indexer_types", layers)) {
            if (kind != "full") {
                text.fail("indexer_types",
                          "holds '" + kind + "', this engine computes 'full' only");
            }
        }
    }
}

Result<ModelConfig> read_text(const std::string& file, const std::string& path,
                              const Json& object) {
    FieldReader text(file, path, object);
    ModelConfig config;
    check_architecture(text);
    config.vocabulary = text.size("vocab_size", 1, most_vocabulary);
    config.hidden = text.size("hidden_size", 1);
    const std::size_t layers = text.size("num_hidden_layers", 1, most_layers);
    config.mixers.resize(layers);
    config.feed_forward.resize(layers);
    config.dense_intermediate = text.size("intermediate_size", 1);
    config.expert_intermediate = text.size("moe_intermediate_size", 1);

    config.attention_heads = text.size("num_attention_heads", 1, 1u << 16);
    if (text.size_or("num_key_value_heads", config.attention_heads, 1) != config.attention_heads) {
        text.fail("num_key_value_heads", "must equal num_attention_heads");
    }
    config.query_rank = text.size("q_lora_rank", 1);
    config.latent = text.size("kv_lora_rank", 1);
    config.query_key_dim = text.size("qk_nope_head_dim", 1, 1u << 16);
    if (text.size_or("qk_head_dim", config.query_key_dim, 1) != config.query_key_dim) {
        text.fail("qk_head_dim", "must equal qk_nope_head_dim");
    }
    config.value_dim = text.size("v_head_dim", 1, 1u << 16);

    config.index_heads = text.size("index_n_heads", 1, 1u << 16);
    config.index_dim = text.size("index_head_dim", 1, 1u << 16);
    config.index_pool = text.size("index_kpool", 1, 4096);
    config.index_topk = text.size("index_topk", 1);
    if (config.index_topk % config.index_pool != 0) {
        text.fail("index_topk", "must be a multiple of index_kpool");
    }

    config.experts = text.size("n_routed_experts", 1, 1u << 16);
    config.experts_per_token = text.size("num_experts_per_tok", 1, config.experts);
    config.shared_experts = text.size("n_shared_experts", 1, 1024);
    config.normalise_router_weights = text.flag("norm_topk_prob");
    config.router_scale = text.number("routed_scaling_factor", 1e-6f, 1e6f);
    config.swiglu_limit = text.number("swiglu_limit", 1e-6f, 1e6f);

    config.streams = text.size("hc_mult", 1, 64);
    config.sinkhorn_iterations = text.size("hc_sinkhorn_iters", 1, 10000);
    config.mhc_eps = text.number("hc_eps", 0.0f, 1.0f);
    config.rms_norm_eps = text.number("rms_norm_eps", 0.0f, 1.0f);
    config.context_limit = text.size("max_position_embeddings", 1, std::size_t{1} << 31);
    config.mtp_layers = text.size_or("num_nextn_predict_layers", 0, 0, 16);

    std::vector<std::size_t> kda_layers;
    Status kda_status;
    read_kda(text, file, path, config, kda_layers, kda_status);
    PERCHERON_TRY(text.status());
    PERCHERON_TRY(kda_status);
    read_layer_kinds(text, kda_layers, config);
    add_stop_tokens(config, text.token_ids("eos_token_id", config.vocabulary));
    config.pad_token = TokenId{-1};
    read_token(text, "pad_token_id", config.vocabulary, config.pad_token);
    PERCHERON_TRY(text.status());
    return config;
}

Status read_vision(const std::string& file, const Json& object, ModelConfig& config) {
    FieldReader fields(file, "vision_config.", object);
    VisionConfig& vision = config.vision;
    fields.expect("attention_bias", true);
    fields.expect("hidden_act", "silu");
    vision.depth = fields.size("depth", 1, most_layers);
    vision.hidden = fields.size("hidden_size", 1);
    vision.heads = fields.size("num_heads", 1, 1u << 16);
    if (vision.hidden % vision.heads != 0) {
        fields.fail("num_heads", "must divide hidden_size", ErrorCode::corrupt);
    }
    vision.intermediate = fields.size("intermediate_size", 1);
    vision.patch = fields.size("patch_size", 1, 1024);
    vision.temporal_patch = fields.size("temporal_patch_size", 1, 64);
    vision.merge = fields.size("spatial_merge_size", 1, 64);
    vision.channels = fields.size("in_channels", 1, 64);
    vision.out_hidden = fields.size("out_hidden_size", 1);
    if (vision.out_hidden != config.hidden) {
        fields.fail("out_hidden_size", "must equal the text model's hidden_size",
                    ErrorCode::corrupt);
    }
    vision.projection_intermediate = fields.size("projection_intermediate_size", 1);
    vision.rms_norm_eps = fields.number("rms_norm_eps", 0.0f, 1.0f);
    vision.block_rms_norm_eps = vision.rms_norm_eps;
    vision.swiglu_limit = fields.number("swiglu_limit", 1e-6f, 1e6f);
    if (fields.has("rope_parameters")) {
        FieldReader rope(file, "vision_config.rope_parameters.", fields.object("rope_parameters"));
        rope.expect("rope_type", "axial");
        vision.rope_theta = rope.number_or("rope_theta", vision.rope_theta, 1.0f, 1e9f);
        PERCHERON_TRY(rope.status());
    }
    PERCHERON_TRY(fields.status());
    config.has_vision = true;
    return {};
}

Status read_generation(const fs::path& path, ModelConfig& config) {
    std::error_code error;
    if (!fs::exists(path, error)) return {};
    PERCHERON_ASSIGN(const Json json, read_json(path));
    FieldReader fields(path.string(), "", json);
    add_stop_tokens(config, fields.token_ids("eos_token_id", config.vocabulary));
    if (config.pad_token == TokenId{-1}) {
        read_token(fields, "pad_token_id", config.vocabulary, config.pad_token);
    }
    config.default_temperature =
        fields.number_or("temperature", config.default_temperature, 0.0f, 100.0f);
    if (fields.has("do_sample") && !fields.flag("do_sample")) config.default_temperature = 0.0f;
    config.default_top_p = fields.number_or("top_p", config.default_top_p, 1e-6f, 1.0f);
    return fields.status();
}

// `generation` need not exist.
Result<ModelConfig> config_of(const Json& json, const std::string& file,
                              const fs::path& generation) {
    FieldReader top(file, "", json);
    const bool nested = top.has("text_config");
    if (nested) {
        top.expect("model_type", "glm5_next");
    } else if (json.value("model_type", Json()) != "glm5_next") {
        top.expect("model_type", "glm5_next_text");
    }
    if (!top.has("model_type")) top.fail("model_type", "is missing", ErrorCode::not_found);
    top.expect("tie_word_embeddings", false);
    const Json& text = nested ? top.object("text_config") : json;
    PERCHERON_TRY(top.status());

    PERCHERON_ASSIGN(ModelConfig config, read_text(file, nested ? "text_config." : "", text));
    if (top.has("vision_config")) {
        const Json& vision = top.object("vision_config");
        PERCHERON_TRY(top.status());
        PERCHERON_TRY(read_vision(file, vision, config));
    }
    // The union keeps the order of the outer file: the first is what ends a document.
    std::vector<TokenId> inner = std::move(config.stop_tokens);
    config.stop_tokens.clear();
    add_stop_tokens(config, top.token_ids("eos_token_id", config.vocabulary));
    for (const TokenId token : inner) {
        add_stop_tokens(config, {to_int(token)});
    }
    if (config.pad_token == TokenId{-1}) {
        read_token(top, "pad_token_id", config.vocabulary, config.pad_token);
    }
    read_token(top, "image_token_id", config.vocabulary, config.image_token);
    read_token(top, "image_start_token_id", config.vocabulary, config.image_start_token);
    read_token(top, "image_end_token_id", config.vocabulary, config.image_end_token);
    read_token(top, "video_token_id", config.vocabulary, config.video_token);
    if (config.has_vision && config.image_token == TokenId{-1}) {
        top.fail("image_token_id", "is missing", ErrorCode::not_found);
    }
    PERCHERON_TRY(read_generation(generation, config));
    if (config.stop_tokens.empty()) {
        top.fail("eos_token_id", "is missing here, in text_config and in generation_config.json",
                 ErrorCode::not_found);
    }
    PERCHERON_TRY(top.status());
    if (config.pad_token == TokenId{-1}) config.pad_token = config.stop_tokens.front();
    return config;
}

}  // namespace

Result<ModelConfig> read_config(const fs::path& folder) {
    const fs::path path = folder / "config.json";
    PERCHERON_ASSIGN(const Json json, read_json(path));
    return config_of(json, path.string(), folder / "generation_config.json");
}

Result<ModelConfig> parse_config(const std::string& text, const std::string& name) {
    PERCHERON_ASSIGN(const Json json, parse_json(text, name));
    return config_of(json, name, {});
}

}  // namespace percheron::checkpoint
