#include "checkpoint/drafter.h"

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/field_reader.h"
#include "checkpoint/formats.h"
#include "checkpoint/names.h"
#include "checkpoint/torch_vector.h"
#include "core/files.h"

namespace percheron::checkpoint {
namespace {

namespace fs = std::filesystem;
using model::Dflash2Config;

constexpr Bytes largest_drafter_config = Bytes{1} << 20;
constexpr const char* mask_file = "mask_embedding.pt";

// A field of `dflash_config`, or else of the top level.
class TwoPlaces {
  public:
    TwoPlaces(FieldReader& own, FieldReader& top) : own_(own), top_(top) {}
    FieldReader& of(std::string_view field) { return own_.has(field) ? own_ : top_; }

  private:
    FieldReader& own_;
    FieldReader& top_;
};

// Whether convolutions and selector are there: by the class, or without one by their fields.
bool is_dflash2(FieldReader& top, TwoPlaces& fields) {
    if (!top.has("architectures")) return fields.of("selector_rank").has("selector_rank");
    const std::vector<std::string> names = top.words("architectures", 1);
    if (names.empty() || names[0] == "DFlash2DraftModel") return true;
    if (names[0] != "DFlashDraftModel") {
        top.fail("architectures",
                 "is '" + names[0] + "', drafters are DFlash2DraftModel or DFlashDraftModel");
    }
    return false;
}

void read_layers(FieldReader& top, Dflash2Config& config) {
    const std::size_t layers = top.size("num_hidden_layers", 1, 256);
    config.windows.assign(layers, 0);
    if (!top.has("layer_types")) return;
    const std::vector<std::string> kinds = top.words("layer_types", layers);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        if (kinds[i] == "sliding_attention") {
            config.windows[i] =
                static_cast<std::uint32_t>(top.size("sliding_window", 1, std::size_t{1} << 30));
        } else if (kinds[i] != "full_attention") {
            top.fail("layer_types", "holds the unknown kind '" + kinds[i] + "'");
        }
    }
}

void read_targets(FieldReader& from, std::size_t target_layers, Dflash2Config& config) {
    config.target_layers = from.sizes("target_layer_ids", 0, 4095);
    const std::set<std::size_t> distinct(config.target_layers.begin(), config.target_layers.end());
    if (config.target_layers.empty()) {
        from.fail("target_layer_ids", "names no layer of the model", ErrorCode::corrupt);
    } else if (distinct.size() != config.target_layers.size()) {
        from.fail("target_layer_ids", "names a layer twice", ErrorCode::corrupt);
    } else if (target_layers > 0 && *distinct.rbegin() >= target_layers) {
        from.fail("target_layer_ids",
                  "names layer " + std::to_string(*distinct.rbegin()) + " of a model of " +
                      std::to_string(target_layers) + " layers (num_target_layers)",
                  ErrorCode::corrupt);
    }
}

// The angles' base, whichever of its two homes it has.  Nothing but the plain rotation is computed.
void read_rope(const std::string& name, FieldReader& top, Dflash2Config& config, Status& status) {
    top.expect("rope_scaling", nullptr);
    if (!top.has("rope_parameters")) {
        config.rope_theta = top.number("rope_theta", 1.0f, 1e12f);
        return;
    }
    FieldReader rope(name, "rope_parameters.", top.object("rope_parameters"));
    rope.expect("rope_type", "default");
    config.rope_theta = rope.number("rope_theta", 1.0f, 1e12f);
    status = rope.status();
}

}  // namespace

Result<DrafterConfig> parse_drafter_config(const std::string& text, const std::string& name) {
    const Json json = Json::parse(text, nullptr, false);
    if (json.is_discarded() || !json.is_object()) {
        return Error(ErrorCode::corrupt, name + ": is not a JSON object");
    }
    FieldReader top(name, "", json);
    static const Json nothing = Json::object();
    const Json& nested = top.has("dflash_config") ? top.object("dflash_config") : nothing;
    FieldReader own(name, "dflash_config.", nested);
    TwoPlaces fields(own, top);

    DrafterConfig result;
    Dflash2Config& config = result.shape;
    top.expect("attention_bias", false);
    top.expect("hidden_act", "silu");
    top.expect("is_causal", false);
    config.vocabulary = top.size("vocab_size", 1, 1u << 26);
    config.hidden = top.size("hidden_size", 1);
    config.intermediate = top.size("intermediate_size", 1);
    config.heads = top.size("num_attention_heads", 1, 1u << 16);
    config.kv_heads = top.size_or("num_key_value_heads", config.heads, 1, 1u << 16);
    config.head_dim =
        top.size_or("head_dim", std::max<std::size_t>(config.hidden / config.heads, 1), 2, 4096);
    if (config.heads % config.kv_heads != 0) {
        top.fail("num_key_value_heads", "must divide num_attention_heads", ErrorCode::corrupt);
    }
    if (config.head_dim % 2 != 0) {
        top.fail("head_dim", "must be even, its halves are turned together", ErrorCode::corrupt);
    }
    config.rms_norm_eps = top.number("rms_norm_eps", 0.0f, 1.0f);
    config.context_limit = top.size("max_position_embeddings", 1, std::size_t{1} << 31);
    read_layers(top, config);
    Status rope_status;
    read_rope(name, top, config, rope_status);

    result.target_layer_count = top.size_or("num_target_layers", 0, 0, 4096);
    read_targets(fields.of("target_layer_ids"), result.target_layer_count, config);
    config.block = fields.of("block_size").size("block_size", 2, 64);
    config.mask_token = TokenId(static_cast<int>(
        fields.of("mask_token_id")
            .size("mask_token_id", 0, config.vocabulary > 0 ? config.vocabulary - 1 : 0)));
    if (is_dflash2(top, fields)) {
        config.conv_taps = fields.of("conv_kernel_size").size("conv_kernel_size", 1, config.block);
        config.conv_width = fields.of("conv_group_size").size("conv_group_size", 1);
        if (config.hidden % config.conv_width != 0) {
            fields.of("conv_group_size")
                .fail("conv_group_size", "must divide hidden_size", ErrorCode::corrupt);
        }
        config.selector_rank = fields.of("selector_rank").size("selector_rank", 1, 1u << 16);
        config.selector_top =
            fields.of("selector_top_k")
                .size("selector_top_k", 1, std::min<std::size_t>(config.vocabulary, 4096));
    }
    config.embedding_scale =
        fields.of("input_embedding_scale").number_or("input_embedding_scale", 1.0f, -1e6f, 1e6f);
    config.logit_scale =
        fields.of("output_multiplier").number_or("output_multiplier", 1.0f, 0.0f, 1e6f);
    config.logit_cap =
        fields.of("final_logit_softcapping").number_or("final_logit_softcapping", 0.0f, 0.0f, 1e6f);
    PERCHERON_TRY(top.status());
    PERCHERON_TRY(own.status());
    PERCHERON_TRY(rope_status);
    return result;
}

std::vector<ExpectedTensor> drafter_tensors(const Dflash2Config& config) {
    std::vector<ExpectedTensor> tensors;
    const std::size_t hidden = config.hidden;
    const auto matrix = [&](std::string name, std::size_t n, std::size_t k) {
        tensors.push_back({std::move(name), {n, k}, TensorRole::matrix, NetworkPart::dense_ffn});
    };
    const auto plain = [&](std::string name, Shape shape) {
        tensors.push_back({std::move(name), std::move(shape)});
    };
    if (config.own_embedding) {
        tensors.push_back({"embed_tokens.weight",
                           {config.vocabulary, hidden},
                           TensorRole::matrix,
                           NetworkPart::embedding});
    }
    if (config.own_head) matrix("lm_head.weight", config.vocabulary, hidden);
    matrix("fc.weight", hidden, config.target_layers.size() * hidden);
    plain("hidden_norm.weight", {hidden});
    plain("norm.weight", {hidden});
    for (std::size_t i = 0; i < config.layers(); ++i) {
        const std::string at = "layers." + std::to_string(i) + ".";
        const std::size_t width = config.heads * config.head_dim;
        const std::size_t kv_width = config.kv_heads * config.head_dim;
        plain(at + "input_layernorm.weight", {hidden});
        plain(at + "post_attention_layernorm.weight", {hidden});
        matrix(at + "self_attn.q_proj.weight", width, hidden);
        matrix(at + "self_attn.k_proj.weight", kv_width, hidden);
        matrix(at + "self_attn.v_proj.weight", kv_width, hidden);
        matrix(at + "self_attn.o_proj.weight", hidden, width);
        plain(at + "self_attn.q_norm.weight", {config.head_dim});
        plain(at + "self_attn.k_norm.weight", {config.head_dim});
        matrix(at + "mlp.gate_proj.weight", config.intermediate, hidden);
        matrix(at + "mlp.up_proj.weight", config.intermediate, hidden);
        matrix(at + "mlp.down_proj.weight", hidden, config.intermediate);
        if (config.conv_taps == 0) continue;
        for (const char* conv : {"attention_conv.", "mlp_conv."}) {
            plain(at + conv + "base_kernel", {2, config.conv_taps, hidden});
            matrix(at + conv + "kernel_projection.weight",
                   2 * config.conv_taps * (hidden / config.conv_width), hidden);
        }
    }
    if (config.selector_rank > 0) {
        const std::string at = "candidate_selector.";
        plain(at + "predecessor_codebook", {config.vocabulary, config.selector_rank});
        plain(at + "successor_codebook", {config.vocabulary, config.selector_rank});
        matrix(at + "hidden_projection.weight", config.selector_rank, hidden);
    }
    return tensors;
}

Result<std::unique_ptr<Drafter>> Drafter::open(const fs::path& folder) {
    const fs::path config = folder / "config.json";
    PERCHERON_ASSIGN(const std::string text, read_text_file(config, largest_drafter_config));
    std::unique_ptr<Drafter> drafter(new Drafter);
    PERCHERON_ASSIGN(drafter->config_, parse_drafter_config(text, config.string()));
    PERCHERON_TRY(drafter->examine(folder));
    return drafter;
}

Status Drafter::examine(const fs::path& folder) {
    std::vector<Error> problems;
    shards_ = ShardSet::scan(folder, problems);
    if (!problems.empty()) return problems.front();
    Dflash2Config& config = config_.shape;
    config.own_embedding = has("embed_tokens");
    config.own_head = has("lm_head");

    std::set<const StoredTensor*> used;
    for (const ExpectedTensor& tensor : drafter_tensors(config)) {
        const std::string stem = stem_of(tensor.name);
        if (!has(stem)) {
            return Error(ErrorCode::not_found, folder.string() + ": tensor " + tensor.name +
                                                   " is in none of the files; the drafter's "
                                                   "config.json says it has one");
        }
        PERCHERON_ASSIGN(const WeightParts parts,
                         find_weight(shards_, canonical_name(stem), tensor.shape));
        for (const TensorPlace& place : parts.all()) {
            used.insert(place.tensor);
        }
    }
    for (const auto& [name, place] : shards_.tensors()) {
        if (!used.contains(place.tensor)) left_over_.push_back(place.tensor->name);
    }
    std::sort(left_over_.begin(), left_over_.end());

    std::error_code ignored;
    if (fs::exists(folder / mask_file, ignored)) {
        PERCHERON_ASSIGN(config.mask, read_torch_vector(folder / mask_file, config.hidden));
    } else if (config.own_embedding) {
        return Error(ErrorCode::not_found,
                     folder.string() + ": " + mask_file +
                         " is missing; a drafter with embeddings of its own (embed_tokens) comes "
                         "with the vector of its masked places in that file");
    }
    return {};
}

}  // namespace percheron::checkpoint
