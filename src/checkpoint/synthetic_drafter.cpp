#include "checkpoint/synthetic_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

namespace percheron::checkpoint {
namespace {

using model::Dflash2Config;
using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t published_width = 1024;  // models narrower than this get smaller drafters

// `count` layers from a ninth of the model on to the last but two, evenly spread.
std::vector<std::size_t> spread_layers(std::size_t layers, std::size_t count) {
    const std::size_t first = layers / 9;
    const std::size_t last = layers - 3;
    count = std::min(count, last - first + 1);
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < count; ++i) {
        const double share =
            count == 1 ? 0.0 : static_cast<double>(i) / static_cast<double>(count - 1);
        result.push_back(first + static_cast<std::size_t>(
                                     std::lround(share * static_cast<double>(last - first))));
    }
    return result;
}

SyntheticTensor normal(const ExpectedTensor& tensor, double deviation, double mean = 0.0) {
    const double scale = deviation / std::sqrt(normal_square);
    return {{tensor.name, DType::bf16, tensor.shape},
            ValueKind::normal,
            static_cast<float>(scale),
            static_cast<float>(mean),
            {}};
}

SyntheticTensor values_of(const ExpectedTensor& tensor, const Dflash2Config& config) {
    const std::string& name = tensor.name;
    if (name.ends_with("base_kernel")) return normal(tensor, 0.3, 0.5);
    if (name.ends_with("codebook")) {
        return normal(tensor, std::pow(static_cast<double>(config.selector_rank), -0.25));
    }
    if (tensor.shape.size() == 1) return normal(tensor, 0.2, 1.0);
    if (tensor.part == NetworkPart::embedding) return normal(tensor, 1.0);
    const double gain = name.find("kernel_projection") != std::string::npos ? 0.3 : 1.0;
    return normal(tensor, gain / std::sqrt(static_cast<double>(tensor.shape[1])));
}

}  // namespace

Result<SyntheticDrafter> make_synthetic_drafter(std::string_view kind,
                                                const model::ModelConfig& target,
                                                std::uint64_t seed) {
    const bool full = kind == "full";
    if (!full && kind != "reference") {
        return Error(ErrorCode::invalid_argument,
                     "--drafter " + std::string(kind) + " is unknown; use reference or full");
    }
    if (target.layers() < 3) {
        return Error(ErrorCode::invalid_argument,
                     "a drafter needs a model of at least 3 layers to read from, this one has " +
                         std::to_string(target.layers()));
    }
    const bool wide = target.hidden >= published_width;
    SyntheticDrafter drafter;
    drafter.seed = seed;
    drafter.target_layer_count = target.layers();
    Dflash2Config& config = drafter.config;
    config.vocabulary = target.vocabulary;
    config.hidden = target.hidden;
    config.intermediate = wide ? 3 * target.hidden : 1024;
    config.head_dim = 128;
    config.heads = wide ? target.hidden / config.head_dim : 4;
    config.kv_heads = config.heads % 4 == 0 && wide ? config.heads / 4 : config.heads / 2;
    config.windows.assign(full ? 8 : 5, full ? 0 : wide ? 2048 : 64);
    config.target_layers = spread_layers(target.layers(), full ? 9 : 5);
    config.block = 8;
    config.conv_taps = 2;
    config.conv_width = target.hidden % 16 == 0 ? 16 : 1;
    config.selector_rank = wide ? 256 : 32;
    config.selector_top = std::min<std::size_t>(wide ? 16 : 8, target.vocabulary);
    config.mask_token = TokenId(static_cast<int>(target.vocabulary - 1));
    config.own_embedding = config.own_head = full;
    config.context_limit = target.context_limit;
    fill_synthetic_drafter(drafter);
    return drafter;
}

void fill_synthetic_drafter(SyntheticDrafter& drafter) {
    Dflash2Config& config = drafter.config;
    drafter.weights.clear();
    for (ExpectedTensor& tensor : drafter_tensors(config)) {
        SyntheticWeight weight;
        weight.parts = {values_of(tensor, config)};
        weight.tensor = std::move(tensor);
        drafter.weights.push_back(std::move(weight));
    }
    if (config.own_embedding) {
        const SyntheticTensor mask = normal({"mask_embedding", {config.hidden}}, 1.0);
        std::vector<BFloat16> values(config.hidden);
        make_values(mask, drafter.seed, 0, std::as_writable_bytes(std::span(values)));
        config.mask.clear();
        for (const BFloat16 value : values) {
            config.mask.push_back(static_cast<float>(value));
        }
    }
}

std::string written_config(const SyntheticDrafter& drafter) {
    const Dflash2Config& config = drafter.config;
    OrderedJson kinds = OrderedJson::array();
    for (const std::uint32_t window : config.windows) {
        kinds.push_back(window > 0 ? "sliding_attention" : "full_attention");
    }
    OrderedJson own = {{"target_layer_ids", config.target_layers},
                       {"block_size", config.block},
                       {"mask_token_id", to_int(config.mask_token)}};
    if (config.conv_taps > 0) {
        own["conv_kernel_size"] = config.conv_taps;
        own["conv_group_size"] = config.conv_width;
        own["selector_rank"] = config.selector_rank;
        own["selector_top_k"] = config.selector_top;
    }
    const char* const kind = config.conv_taps > 0 ? "DFlash2DraftModel" : "DFlashDraftModel";
    OrderedJson json = {
        {"architectures", {kind}},
        {"model_type", "qwen3"},
        {"dtype", "bfloat16"},
        {"vocab_size", config.vocabulary},
        {"hidden_size", config.hidden},
        {"intermediate_size", config.intermediate},
        {"num_hidden_layers", config.layers()},
        {"num_attention_heads", config.heads},
        {"num_key_value_heads", config.kv_heads},
        {"head_dim", config.head_dim},
        {"hidden_act", "silu"},
        {"attention_bias", false},
        {"is_causal", false},
        {"tie_word_embeddings", false},
        {"rms_norm_eps", config.rms_norm_eps},
        {"max_position_embeddings", config.context_limit},
        {"rope_parameters", {{"rope_theta", config.rope_theta}, {"rope_type", "default"}}},
        {"layer_types", std::move(kinds)},
        {"use_sliding_window", config.window() > 0},
        {"sliding_window", nullptr},
        {"max_window_layers", config.layers()},
        {"num_target_layers", drafter.target_layer_count},
        {"dflash_config", std::move(own)}};
    const std::uint32_t window = *std::max_element(config.windows.begin(), config.windows.end());
    if (window > 0) json["sliding_window"] = window;
    return json.dump(2) + "\n";
}

}  // namespace percheron::checkpoint
