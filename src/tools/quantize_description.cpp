#include "tools/quantize_description.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "checkpoint/quantization_config.h"
#include "core/files.h"
#include "tools/quantize_formats.h"

namespace percheron::tools {
namespace {

using checkpoint::stem_of;
using checkpoint::TensorRole;
using ops::WeightFormat;
using Json = nlohmann::ordered_json;

constexpr Bytes largest_config = 64u << 20;

// How a quantised weight will lie in the files.  What is carried over keeps its layout.
enum class Form { int4, nvfp4_modelopt, nvfp4_compressed, fp8_blocks };
constexpr std::size_t forms = 4;

std::optional<Form> form_of(const PlannedWeight& weight) {
    switch (weight.format) {
        case WeightFormat::w4a16:
            return Form::int4;
        case WeightFormat::nvfp4:
            return weight.copied() && weight.source.global_scale_is_inverse ? Form::nvfp4_compressed
                                                                            : Form::nvfp4_modelopt;
        case WeightFormat::fp8_block:
            return Form::fp8_blocks;
        case WeightFormat::bf16:
        case WeightFormat::f32:
            break;
    }
    return std::nullopt;
}

// Whether scales of a weight's inputs will lie beside it.
bool has_input_scale(const PlannedWeight& weight) {
    return weight.copied() && weight.format == WeightFormat::nvfp4 && !weight.source.unused.empty();
}

// Matches the modules of routed experts under any prefix.
constexpr const char* expert_pattern = R"(re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$)";

// All but the last are read by others; these know linear layers only, and each its own forms, so
// that a plan which has others is described in the last.
enum class Convention {
    none,                // nothing is quantised
    fp8,                 // FP8 blocks
    modelopt,            // NVFP4 as ModelOpt lays it out
    compressed_tensors,  // W4A16, and NVFP4 as compressed-tensors lays it out
    percheron,           // docs/CHECKPOINTS.md
};

// Weights that are described together.
struct Group {
    std::vector<std::string> stems;
    bool all_experts = true;   // every routed expert of the plan
    bool only_experts = true;  // and nothing else

    Json targets() const {
        return all_experts && only_experts ? Json::array({expert_pattern}) : Json(stems);
    }
};

// The plan's matrices by what is to be said of them.
struct Description {
    std::array<std::array<Group, 2>, forms> groups;  // without and with scales of inputs
    std::vector<std::string> kept;                   // unquantised
    bool linear = true;                              // whether all that are quantised are

    explicit Description(const std::vector<PlannedWeight>& plan) {
        for (const PlannedWeight& weight : plan) {
            if (weight.tensor.role == TensorRole::plain) continue;
            const auto form = form_of(weight);
            if (!form) {
                kept.push_back(stem_of(weight.tensor.name));
            } else if (!checkpoint::is_linear(weight.tensor)) {
                linear = false;
            }
            const bool expert = weight.tensor.role == TensorRole::routed_expert;
            for (std::size_t i = 0; i < forms; ++i) {
                for (const bool scaled : {false, true}) {
                    Group& group = groups[i][scaled];
                    const bool own = form && static_cast<std::size_t>(*form) == i &&
                                     has_input_scale(weight) == scaled;
                    if (own) group.stems.push_back(stem_of(weight.tensor.name));
                    if (own && !expert) group.only_experts = false;
                    if (!own && expert) group.all_experts = false;
                }
            }
        }
    }

    bool has(Form form) const {
        const auto& both = groups[static_cast<std::size_t>(form)];
        return !both[0].stems.empty() || !both[1].stems.empty();
    }

    Convention convention() const {
        const bool int4 = has(Form::int4);
        const bool modelopt = has(Form::nvfp4_modelopt);
        const bool compressed = has(Form::nvfp4_compressed);
        const bool fp8 = has(Form::fp8_blocks);
        if (!int4 && !modelopt && !compressed && !fp8) return Convention::none;
        if (!linear) return Convention::percheron;
        if (fp8 && !int4 && !modelopt && !compressed) return Convention::fp8;
        if (modelopt && !int4 && !compressed && !fp8) return Convention::modelopt;
        return modelopt || fp8 ? Convention::percheron : Convention::compressed_tensors;
    }
};

Json weights_of(Form form) {
    switch (form) {
        case Form::int4:
            return {{"num_bits", 4},       {"type", "int"},    {"symmetric", true},
                    {"strategy", "group"}, {"dynamic", false}, {"group_size", block_width},
                    {"actorder", nullptr}};
        case Form::nvfp4_modelopt:
            return {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}, {"dynamic", false}};
        case Form::nvfp4_compressed:
            return {{"num_bits", 4},     {"type", "float"},
                    {"symmetric", true}, {"strategy", "tensor_group"},
                    {"dynamic", false},  {"group_size", 16}};
        case Form::fp8_blocks:
            return {{"num_bits", 8},     {"type", "float"},
                    {"symmetric", true}, {"strategy", "block"},
                    {"dynamic", false},  {"block_structure", {block_width, block_width}}};
    }
    return {};
}

Json inputs_of(Form form, bool scaled) {
    if (!scaled) return {};
    Json inputs = weights_of(form);
    if (form == Form::nvfp4_compressed) inputs["dynamic"] = "local";
    return inputs;
}

const char* name_of(Form form) {
    switch (form) {
        case Form::int4:
            return "pack-quantized";
        case Form::nvfp4_modelopt:
            return "nvfp4";
        case Form::nvfp4_compressed:
            return checkpoint::compressed_nvfp4.data();
        case Form::fp8_blocks:
            return "fp8-block";
    }
    return "";
}

Json config_groups(const Description& description) {
    Json groups = Json::object();
    for (std::size_t i = 0; i < forms; ++i) {
        const Form form = static_cast<Form>(i);
        for (const bool scaled : {false, true}) {
            const Group& group = description.groups[i][scaled];
            if (group.stems.empty()) continue;
            groups["group_" + std::to_string(groups.size())] = {
                {"format", name_of(form)},
                {"targets", group.targets()},
                {"weights", weights_of(form)},
                {"input_activations", inputs_of(form, scaled)},
                {"output_activations", nullptr}};
        }
    }
    return groups;
}

Json quantization_of(const Description& description) {
    Json quantization;
    switch (description.convention()) {
        case Convention::none:
            return {};
        case Convention::fp8:
            return {{"quant_method", "fp8"},
                    {"fmt", "e4m3"},
                    {"activation_scheme", "dynamic"},
                    {"weight_block_size", {block_width, block_width}},
                    {"modules_to_not_convert", description.kept}};
        case Convention::modelopt:
            quantization = {{"quant_method", "modelopt"},
                            {"quant_algo", "NVFP4"},
                            {"producer", {{"name", "percheron"}}}};
            break;
        case Convention::compressed_tensors: {
            const bool int4 = description.has(Form::int4);
            const bool both = int4 && description.has(Form::nvfp4_compressed);
            quantization = {{"quant_method", "compressed-tensors"},
                            {"format", both   ? "mixed-precision"
                                       : int4 ? name_of(Form::int4)
                                              : name_of(Form::nvfp4_compressed)},
                            {"quantization_status", "compressed"}};
            break;
        }
        case Convention::percheron:
            quantization = {{"quant_method", "percheron"}, {"format", "mixed"}};
            break;
    }
    quantization["config_groups"] = config_groups(description);
    quantization["ignore"] = description.kept;
    return quantization;
}

}  // namespace

Result<std::string> quantized_config(const std::filesystem::path& folder,
                                     const std::vector<PlannedWeight>& plan) {
    const std::filesystem::path path = folder / "config.json";
    PERCHERON_ASSIGN(const std::string text, read_text_file(path, largest_config));
    Json config = Json::parse(text, nullptr, false);
    if (!config.is_object()) {
        return Error(ErrorCode::corrupt, path.string() + ": is not a JSON object");
    }
    Json quantization = quantization_of(Description(plan));
    if (quantization.is_null()) {
        config.erase("quantization_config");
    } else {
        config["quantization_config"] = std::move(quantization);
    }
    return config.dump(2) + "\n";
}

std::string modelopt_config(const std::vector<PlannedWeight>& plan) {
    const Description description(plan);
    if (description.convention() != Convention::modelopt) return {};
    const Json config = {{"producer", {{"name", "percheron"}}},
                         {"quantization",
                          {{"quant_algo", "NVFP4"},
                           {"kv_cache_quant_algo", nullptr},
                           {"group_size", 16},
                           {"exclude_modules", description.kept}}}};
    return config.dump(2) + "\n";
}

}  // namespace percheron::tools
