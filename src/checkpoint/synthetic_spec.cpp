#include "checkpoint/synthetic_spec.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

namespace percheron::checkpoint {
namespace {

using OrderedJson = nlohmann::ordered_json;
using ops::WeightFormat;
using Spec = SyntheticSpec;

constexpr SpecCount counts[] = {
    {"layers", &Spec::layers, 1, 1024, 1, "Layers of the trunk; every fourth is sparse attention"},
    {"dense-layers", &Spec::dense_layers, 0, 1024, 1, "First layers without experts"},
    {"vocabulary", &Spec::vocabulary, 16, 1u << 24, 1, "Token ids"},
    {"hidden", &Spec::hidden, 128, 1u << 17, 128, "Width of the residual streams"},
    {"intermediate", &Spec::intermediate, 128, 1u << 20, 128, "Width of the dense FFN"},
    {"experts", &Spec::experts, 1, 1u << 16, 1, "Routed experts a layer"},
    {"experts-per-token", &Spec::experts_per_token, 1, 1u << 16, 1, "Experts a token goes to"},
    {"shared-experts", &Spec::shared_experts, 1, 64, 1, "Experts every token goes to"},
    {"expert-intermediate", &Spec::expert_intermediate, 128, 1u << 20, 128, "Width of an expert"},
    {"heads", &Spec::attention_heads, 1, 1u << 12, 1, "Heads of sparse attention"},
    {"query-rank", &Spec::query_rank, 128, 1u << 16, 128, "Rank of the queries"},
    {"latent", &Spec::latent, 128, 1u << 16, 128, "Cache entry of a token"},
    {"head-dim", &Spec::query_key_dim, 16, 1u << 12, 16, "Query and key width of a head"},
    {"value-dim", &Spec::value_dim, 16, 1u << 12, 16, "Value width of a head"},
    {"index-heads", &Spec::index_heads, 1, 1u << 12, 1, "Heads of the indexer"},
    {"index-dim", &Spec::index_dim, 16, 1u << 12, 16, "Width of an indexer's head"},
    {"index-topk", &Spec::index_topk, 4, 1u << 20, 4, "Tokens that sparse attention selects"},
    {"kda-heads", &Spec::kda_heads, 1, 1u << 12, 1, "Heads of KDA"},
    {"kda-dim", &Spec::kda_dim, 16, 1u << 12, 16, "Width of a KDA head"},
    {"mtp", &Spec::mtp, 0, 1, 1, "MTP layers"},
    {"context", &Spec::context, 64, 1u << 30, 1, "Largest context"},
    {"vision", &Spec::vision, 0, 1024, 1, "Blocks of the vision tower, 0 for none"},
    {"vision-hidden", &Spec::vision_hidden, 16, 1u << 16, 16, "Width of the tower"},
    {"vision-heads", &Spec::vision_heads, 1, 1u << 12, 1, "Heads of the tower"},
    {"vision-intermediate", &Spec::vision_intermediate, 16, 1u << 20, 16, "FFN of the tower"},
    {"vision-projection", &Spec::vision_projection, 16, 1u << 20, 16, "FFN of the merger"},
};

Error invalid(std::string message) {
    return Error(ErrorCode::invalid_argument, std::move(message));
}

Result<std::uint64_t> whole_number(std::string_view key, std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
        return invalid(std::string(key) + "=" + std::string(text) + ": must be a whole number");
    }
    return value;
}

std::string keys_in_words() {
    std::string keys;
    for (const SpecCount& count : counts) {
        keys += std::string(count.key) + ", ";
    }
    return keys + "format and seed";
}

Status set(SyntheticSpec& spec, std::string_view key, std::string_view value) {
    if (key == "format") {
        PERCHERON_ASSIGN(spec.format, spec_format(value));
        return {};
    }
    if (key == "seed") {
        PERCHERON_ASSIGN(spec.seed, whole_number(key, value));
        return {};
    }
    for (const SpecCount& count : counts) {
        if (key == count.key) {
            PERCHERON_ASSIGN(spec.*count.member, whole_number(key, value));
            return {};
        }
    }
    return invalid(std::string(key) + ": is no key of a made-up model; the keys are " +
                   keys_in_words());
}

struct SpecialIds {
    std::vector<std::size_t> stop;
    std::size_t image, video, image_start, image_end, video_start, video_end;
};

SpecialIds special_ids(std::size_t vocabulary) {
    if (vocabulary >= embedded_vocabulary) {
        return {{8155, 8162, 8164}, 8189, 8190, 8165, 8166, 8167, 8168};
    }
    const std::size_t end = vocabulary;
    return {{end - 9, end - 8, end - 7}, end - 2, end - 1, end - 6, end - 5, end - 4, end - 3};
}

bool is_sparse(std::size_t layer) {
    return layer % 4 == 3;
}

OrderedJson text_config(const SyntheticSpec& spec, const SpecialIds& ids) {
    std::vector<std::string> mixers;
    std::vector<std::string> feed_forward;
    std::vector<std::size_t> kda_layers;
    std::vector<std::size_t> sparse_layers;
    for (std::size_t layer = 0; layer < spec.layers; ++layer) {
        mixers.emplace_back(is_sparse(layer) ? "deepseek_sparse_attention" : "linear_attention");
        feed_forward.emplace_back(layer < spec.dense_layers ? "dense" : "sparse");
        (is_sparse(layer) ? sparse_layers : kda_layers).push_back(layer);
    }
    return {{"model_type", "glm5_next_text"},
            {"dtype", "bfloat16"},
            {"vocab_size", spec.vocabulary},
            {"hidden_size", spec.hidden},
            {"num_hidden_layers", spec.layers},
            {"intermediate_size", spec.intermediate},
            {"moe_intermediate_size", spec.expert_intermediate},
            {"num_attention_heads", spec.attention_heads},
            {"num_key_value_heads", spec.attention_heads},
            {"q_lora_rank", spec.query_rank},
            {"kv_lora_rank", spec.latent},
            {"qk_nope_head_dim", spec.query_key_dim},
            {"qk_rope_head_dim", 0},
            {"qk_head_dim", spec.query_key_dim},
            {"v_head_dim", spec.value_dim},
            {"head_dim", 0},
            {"mla_use_nope", true},
            {"attention_bias", false},
            {"attention_dropout", 0.0},
            {"hidden_act", "silu"},
            {"swiglu_limit", 10.0},
            {"rms_norm_eps", 1e-5},
            {"max_position_embeddings", spec.context},
            {"n_routed_experts", spec.experts},
            {"n_shared_experts", spec.shared_experts},
            {"num_experts_per_tok", spec.experts_per_token},
            {"n_group", 1},
            {"topk_group", 1},
            {"scoring_func", "sigmoid"},
            {"topk_method", "noaux_tc"},
            {"norm_topk_prob", true},
            {"routed_scaling_factor", 2.5},
            {"moe_router_dtype", "float32"},
            {"first_k_dense_replace", std::min(spec.dense_layers, spec.layers)},
            {"mlp_layer_types", feed_forward},
            {"layer_types", mixers},
            {"linear_attn_config",
             {{"num_heads", spec.kda_heads},
              {"head_dim", spec.kda_dim},
              {"short_conv_kernel_size", 4},
              {"gate_lower_bound", -5.0},
              {"kda_layers", kda_layers},
              {"full_attn_layers", sparse_layers}}},
            {"index_n_heads", spec.index_heads},
            {"index_head_dim", spec.index_dim},
            {"index_topk", spec.index_topk},
            {"index_kpool", 4},
            {"index_kpool_compress", true},
            {"index_kpool_always_select_tail", true},
            {"indexer_types", std::vector<std::string>(spec.layers, "full")},
            {"mhc", true},
            {"hc_mult", 4},
            {"hc_sinkhorn_iters", 20},
            {"hc_eps", 1e-6},
            {"num_nextn_predict_layers", spec.mtp},
            {"pad_token_id", ids.stop.front()},
            {"eos_token_id", ids.stop},
            {"initializer_range", 0.02}};
}

OrderedJson vision_config(const SyntheticSpec& spec) {
    return {{"model_type", "glm5_next_vision"},
            {"depth", spec.vision},
            {"hidden_size", spec.vision_hidden},
            {"num_heads", spec.vision_heads},
            {"intermediate_size", spec.vision_intermediate},
            {"patch_size", 14},
            {"temporal_patch_size", 2},
            {"spatial_merge_size", 2},
            {"in_channels", 3},
            {"out_hidden_size", spec.hidden},
            {"projection_intermediate_size", spec.vision_projection},
            {"image_size", 448},
            {"rms_norm_eps", 1e-5},
            {"hidden_act", "silu"},
            {"attention_bias", true},
            {"swiglu_limit", 10.0},
            {"attention_dropout", 0.0}};
}

}  // namespace

std::span<const SpecCount> spec_counts() {
    return counts;
}

Result<WeightFormat> spec_format(std::string_view name) {
    for (const WeightFormat format :
         {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::w4a16, WeightFormat::nvfp4}) {
        if (name == spec_name(format)) return format;
    }
    return invalid("format=" + std::string(name) + ": must be bf16, fp8, w4a16 or nvfp4");
}

std::string_view spec_name(WeightFormat format) {
    return format == WeightFormat::fp8_block ? "fp8" : ops::name_of(format);
}

Result<SyntheticSpec> parse_spec(std::string_view text) {
    SyntheticSpec spec;
    std::vector<std::string_view> seen;
    while (!text.empty()) {
        const std::string_view entry = text.substr(0, text.find(','));
        text.remove_prefix(std::min(entry.size() + 1, text.size()));
        const std::size_t equals = entry.find('=');
        if (equals == std::string_view::npos) {
            return invalid(std::string(entry) + ": write key=value, separated by commas");
        }
        const std::string_view key = entry.substr(0, equals);
        if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
            return invalid("the key '" + std::string(key) + "' is there twice");
        }
        seen.push_back(key);
        PERCHERON_TRY(set(spec, key, entry.substr(equals + 1)));
    }
    PERCHERON_TRY(check_spec(spec));
    return spec;
}

Status check_spec(const SyntheticSpec& spec) {
    for (const SpecCount& count : counts) {
        const std::size_t value = spec.*count.member;
        const std::string what = std::string(count.key) + "=" + std::to_string(value);
        if (value < count.least || value > count.most) {
            return invalid(what + ": must be " + std::to_string(count.least) + " to " +
                           std::to_string(count.most));
        }
        if (value % count.multiple != 0) {
            return invalid(what + ": must be a multiple of " + std::to_string(count.multiple));
        }
    }
    if (spec.experts < spec.experts_per_token) {
        return invalid("experts=" + std::to_string(spec.experts) +
                       ": must be at least experts-per-token, which is " +
                       std::to_string(spec.experts_per_token));
    }
    if (spec.vision > 0 && spec.vision_hidden % spec.vision_heads != 0) {
        return invalid("vision-heads=" + std::to_string(spec.vision_heads) +
                       ": must divide vision-hidden, which is " +
                       std::to_string(spec.vision_hidden));
    }
    return {};
}

std::string config_text(const SyntheticSpec& spec) {
    const SpecialIds ids = special_ids(spec.vocabulary);
    OrderedJson json = {{"architectures", {"Glm5NextForConditionalGeneration"}},
                        {"model_type", "glm5_next"},
                        {"dtype", "bfloat16"},
                        {"tie_word_embeddings", false},
                        {"image_token_id", ids.image},
                        {"video_token_id", ids.video},
                        {"image_start_token_id", ids.image_start},
                        {"image_end_token_id", ids.image_end},
                        {"video_start_token_id", ids.video_start},
                        {"video_end_token_id", ids.video_end},
                        {"eos_token_id", ids.stop},
                        {"pad_token_id", ids.stop.front()},
                        {"text_config", text_config(spec, ids)}};
    if (spec.vision > 0) json["vision_config"] = vision_config(spec);
    return json.dump(2) + "\n";
}

WeightFormat format_of(const SyntheticSpec& spec, const ExpectedTensor& tensor) {
    if (tensor.role == TensorRole::plain || spec.format == WeightFormat::bf16) {
        return WeightFormat::bf16;
    }
    const bool trunk_expert = tensor.part == NetworkPart::routed_experts;
    const bool dense = tensor.part == NetworkPart::dense_ffn;
    bool quantised = trunk_expert;
    if (spec.format == WeightFormat::nvfp4) quantised = trunk_expert || dense;
    if (spec.format == WeightFormat::fp8_block) {
        const std::string stem = stem_of(tensor.name);
        const bool attention =
            tensor.part == NetworkPart::sparse_attention || tensor.part == NetworkPart::mtp;
        quantised =
            tensor.role == TensorRole::routed_expert || dense ||
            stem.find(".shared_experts.") != std::string::npos ||
            (attention && (stem.ends_with(".q_a_proj") || stem.ends_with(".q_b_proj") ||
                           stem.ends_with(".kv_a_proj_with_mqa") || stem.ends_with(".o_proj")));
    }
    return quantised ? spec.format : WeightFormat::bf16;
}

}  // namespace percheron::checkpoint
