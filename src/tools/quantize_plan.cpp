#include "tools/quantize_plan.h"

#include <nlohmann/json.hpp>

#include "core/files.h"

namespace percheron::tools {
namespace {

using checkpoint::ExpectedTensor;
using checkpoint::Shape;
using checkpoint::stem_of;
using checkpoint::TensorRole;
using ops::WeightFormat;
using Json = nlohmann::ordered_json;

constexpr std::size_t block_width = 128;
constexpr Bytes largest_config = 64u << 20;

std::size_t blocks(std::size_t count) {
    return (count + block_width - 1) / block_width;
}

bool is_quantised(WeightFormat format) {
    return format != WeightFormat::bf16 && format != WeightFormat::f32;
}

Result<WeightFormat> wanted_format(const ExpectedTensor& tensor, WeightFormat stored,
                                   const QuantizeOptions& options) {
    if (tensor.role == TensorRole::plain) return stored;
    const bool multiples = tensor.shape[0] % block_width == 0 && tensor.shape[1] % block_width == 0;
    if (tensor.role == TensorRole::matrix) {
        return multiples && options.rest.has_value() ? *options.rest : stored;
    }
    if (tensor.shape[1] % block_width != 0 && options.experts == WeightFormat::w4a16) {
        return Error(ErrorCode::invalid_argument,
                     "tensor " + tensor.name + ": its rows of " + std::to_string(tensor.shape[1]) +
                         " do not divide into groups of 128; use --format fp8");
    }
    return options.experts;
}

// What a weight consists of once it is in its format.
std::vector<checkpoint::TensorHeader> output_headers(const PlannedWeight& weight) {
    const std::string& name = weight.tensor.name;
    const std::string stem = stem_of(name);
    const Shape& shape = weight.tensor.shape;
    if (weight.copied()) {
        std::vector<checkpoint::TensorHeader> headers;
        for (const checkpoint::TensorPlace& place : weight.source.all()) {
            headers.push_back({checkpoint::canonical_name(place.tensor->name), place.tensor->dtype,
                               place.tensor->shape});
        }
        return headers;
    }
    if (weight.format == WeightFormat::fp8_block) {
        return {{name, DType::f8_e4m3, shape},
                {name + "_scale_inv", DType::f32, {blocks(shape[0]), blocks(shape[1])}}};
    }
    return {{stem + ".weight_packed", DType::i32, {shape[0], shape[1] / 8}},
            {stem + ".weight_scale", DType::bf16, {shape[0], shape[1] / block_width}},
            {stem + ".weight_shape", DType::i64, {2}}};
}

Json int4_weights() {
    return {{"num_bits", 4},    {"type", "int"},       {"symmetric", true},  {"strategy", "group"},
            {"dynamic", false}, {"group_size", block_width}, {"actorder", nullptr}};
}

Json fp8_weights() {
    return {{"num_bits", 8},       {"type", "float"},  {"symmetric", true},
            {"strategy", "block"}, {"dynamic", false}, {"block_structure", {block_width, block_width}}};
}

Json group(const char* format, Json targets, Json weights) {
    return {{"format", format},
            {"targets", std::move(targets)},
            {"weights", std::move(weights)},
            {"input_activations", nullptr},
            {"output_activations", nullptr}};
}

// Matches the modules of routed experts under any prefix.
constexpr const char* expert_pattern = R"(re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$)";

}  // namespace

Result<std::vector<PlannedWeight>> plan_quantization(const checkpoint::Checkpoint& model,
                                                     const QuantizeOptions& options) {
    const model::ModelConfig& config = model.config();
    std::vector<std::vector<ExpectedTensor>> parts;
    parts.push_back(checkpoint::outer_tensors(config));
    for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i) {
        parts.push_back(checkpoint::layer_tensors(config, i));
    }
    if (config.has_vision) parts.push_back(checkpoint::vision_tensors(config.vision));

    std::vector<PlannedWeight> plan;
    for (std::vector<ExpectedTensor>& part : parts) {
        for (ExpectedTensor& tensor : part) {
            PlannedWeight weight;
            weight.tensor = std::move(tensor);
            PERCHERON_ASSIGN(weight.source,
                             checkpoint::find_weight(model.shards(), stem_of(weight.tensor.name),
                                                     weight.tensor.shape));
            PERCHERON_ASSIGN(weight.format,
                             wanted_format(weight.tensor, weight.source.format, options));
            weight.outputs = output_headers(weight);
            plan.push_back(std::move(weight));
        }
    }
    return plan;
}

Result<std::string> quantized_config(const std::filesystem::path& folder,
                                     const std::vector<PlannedWeight>& plan,
                                     const QuantizeOptions& options) {
    const std::filesystem::path path = folder / "config.json";
    PERCHERON_ASSIGN(const std::string text, read_text_file(path, largest_config));
    Json config = Json::parse(text, nullptr, false);
    if (!config.is_object()) {
        return Error(ErrorCode::corrupt, path.string() + ": is not a JSON object");
    }
    Json kept = Json::array();
    Json rest = Json::array();
    for (const PlannedWeight& weight : plan) {
        if (weight.tensor.role == TensorRole::plain) continue;
        if (!is_quantised(weight.format)) {
            kept.push_back(stem_of(weight.tensor.name));
        } else if (weight.tensor.role == TensorRole::matrix) {
            rest.push_back(stem_of(weight.tensor.name));
        }
    }
    Json quantization;
    if (options.experts == WeightFormat::fp8_block) {
        quantization = {{"quant_method", "fp8"},
                        {"fmt", "e4m3"},
                        {"activation_scheme", "dynamic"},
                        {"weight_block_size", {block_width, block_width}},
                        {"modules_to_not_convert", std::move(kept)}};
    } else if (rest.empty()) {
        quantization = {
            {"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"quantization_status", "compressed"},
            {"config_groups",
             {{"group_0", group("pack-quantized", Json::array({expert_pattern}), int4_weights())}}},
            {"ignore", std::move(kept)}};
    } else {
        quantization = {
            {"quant_method", "percheron"},
            {"format", "mixed"},
            {"config_groups",
             {{"group_0", group("pack-quantized", Json::array({expert_pattern}), int4_weights())},
              {"group_1", group("fp8-block", std::move(rest), fp8_weights())}}},
            {"ignore", std::move(kept)}};
    }
    config["quantization_config"] = std::move(quantization);
    return config.dump(2) + "\n";
}

}  // namespace percheron::tools
