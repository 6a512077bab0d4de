#include "checkpoint/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/config.h"

namespace percheron::checkpoint {
namespace {

using ops::WeightFormat;
using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t block = 128;
constexpr std::size_t fp4_group = 16;
constexpr Bytes slice = Bytes{1} << 20;  // of one task

std::size_t blocks(std::size_t count) {
    return (count + block - 1) / block;
}

// 1 / sqrt(square), for values of mean square `square` to get unit variance.
float unit_scale(double square) {
    return static_cast<float>(1.0 / std::sqrt(square));
}

SyntheticTensor tensor_of(std::string name, DType dtype, Shape shape, ValueKind kind,
                          float scale = 1.0f, float offset = 0.0f) {
    return {{std::move(name), dtype, std::move(shape)}, kind, scale, offset, {}};
}

SyntheticTensor normal(const ExpectedTensor& tensor, DType dtype, double deviation) {
    const double scale = deviation / std::sqrt(normal_square);
    return tensor_of(tensor.name, dtype, tensor.shape, ValueKind::normal,
                     static_cast<float>(scale));
}

SyntheticTensor constant(const ExpectedTensor& tensor, DType dtype, float value) {
    return tensor_of(tensor.name, dtype, tensor.shape, ValueKind::constant, 0.0f, value);
}

SyntheticTensor uniform(const ExpectedTensor& tensor, float from, float to) {
    return tensor_of(tensor.name, DType::f32, tensor.shape, ValueKind::uniform, to - from, from);
}

// Inputs of one output: the product of all extents but the first.
std::size_t inputs(const Shape& shape) {
    std::size_t count = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) {
        count *= shape[i];
    }
    return count;
}

SyntheticTensor plain_values(const ExpectedTensor& tensor) {
    const std::string& name = tensor.name;
    if (name.ends_with(".A_log")) return uniform(tensor, -0.5f, 0.5f);
    if (name.ends_with(".dt_bias")) return uniform(tensor, -6.9f, -2.3f);
    if (name.ends_with("_base")) return constant(tensor, DType::f32, 0.0f);
    if (name.ends_with("_scale")) return constant(tensor, DType::f32, 1.0f);
    if (name.ends_with(".e_score_correction_bias")) return normal(tensor, DType::f32, 0.01);
    if (name.ends_with(".weight") && tensor.shape.size() == 1) {
        return constant(tensor, DType::bf16, 1.0f);
    }
    if (name.ends_with(".weight")) {
        return normal(tensor, DType::bf16, unit_scale(static_cast<double>(inputs(tensor.shape))));
    }
    return normal(tensor, DType::bf16, 0.02);
}

std::vector<SyntheticTensor> parts_of(const ExpectedTensor& tensor, WeightFormat format) {
    if (tensor.role == TensorRole::plain) return {plain_values(tensor)};
    const std::string stem = stem_of(tensor.name);
    const std::size_t n = tensor.shape[0];
    const std::size_t k = tensor.shape[1];
    const auto fan_in = static_cast<double>(k);
    switch (format) {
        case WeightFormat::fp8_block:
            return {
                tensor_of(tensor.name, DType::f8_e4m3, {n, k}, ValueKind::fp8_codes),
                tensor_of(tensor.name + "_scale_inv", DType::f32, {blocks(n), blocks(k)},
                          ValueKind::scales, unit_scale(fp8_code_square * scales_square * fan_in))};
        case WeightFormat::w4a16: {
            SyntheticTensor extents =
                tensor_of(stem + ".weight_shape", DType::i64, {2}, ValueKind::extents);
            extents.extents[0] = n;
            extents.extents[1] = k;
            return {
                tensor_of(stem + ".weight_packed", DType::i32, {n, k / 8}, ValueKind::int4_words),
                tensor_of(stem + ".weight_scale", DType::bf16, {n, k / block}, ValueKind::scales,
                          unit_scale(int4_code_square * scales_square * fan_in)),
                std::move(extents)};
        }
        case WeightFormat::nvfp4:
            return {tensor_of(tensor.name, DType::u8, {n, k / 2}, ValueKind::fp4_codes),
                    tensor_of(stem + ".weight_scale", DType::f8_e4m3, {n, k / fp4_group},
                              ValueKind::fp8_scales),
                    tensor_of(stem + ".weight_scale_2", DType::f32, {}, ValueKind::constant, 0.0f,
                              unit_scale(fp4_code_square * fp8_scales_square * fan_in))};
        default:
            // A row of the embedding is an output by itself.
            return {normal(tensor, DType::bf16,
                           tensor.part == NetworkPart::embedding ? 1.0 : unit_scale(fan_in))};
    }
}

void count(FormatTally& tally, const SyntheticWeight& weight) {
    ++tally.tensors;
    tally.bytes += weight.bytes();
}

// The format a tally goes under: plain tensors by their type.
std::string tally_name(const SyntheticWeight& weight) {
    const bool wide = weight.parts.front().header.dtype == DType::f32;
    return std::string(ops::name_of(wide ? WeightFormat::f32 : weight.format));
}

}  // namespace

Bytes SyntheticWeight::bytes() const {
    Bytes total = 0;
    for (const SyntheticTensor& part : parts) {
        total += part.header.bytes();
    }
    return total;
}

Result<SyntheticModel> make_synthetic_model(const SyntheticSpec& spec) {
    PERCHERON_TRY(check_spec(spec));
    SyntheticModel model;
    model.spec = spec;
    PERCHERON_ASSIGN(model.config, parse_config(config_text(spec), "the made-up model's config"));
    const auto add = [&](std::vector<ExpectedTensor> tensors) {
        for (ExpectedTensor& tensor : tensors) {
            SyntheticWeight weight;
            weight.format = format_of(spec, tensor);
            weight.parts = parts_of(tensor, weight.format);
            weight.tensor = std::move(tensor);
            model.weights.push_back(std::move(weight));
        }
    };
    add(outer_tensors(model.config));
    for (std::size_t i = 0; i < model.config.layers() + model.config.mtp_layers; ++i) {
        add(layer_tensors(model.config, i));
    }
    if (model.config.has_vision) add(vision_tensors(model.config.vision));
    return model;
}

std::string written_config(const SyntheticModel& model) {
    if (model.spec.format == WeightFormat::bf16) return config_text(model.spec);
    OrderedJson kept = OrderedJson::array();
    for (const SyntheticWeight& weight : model.weights) {
        if (weight.tensor.role != TensorRole::plain && weight.format == WeightFormat::bf16) {
            kept.push_back(stem_of(weight.tensor.name));
        }
    }
    OrderedJson quantization;
    if (model.spec.format == WeightFormat::fp8_block) {
        quantization = {{"quant_method", "fp8"},
                        {"fmt", "e4m3"},
                        {"activation_scheme", "dynamic"},
                        {"weight_block_size", {block, block}},
                        {"modules_to_not_convert", std::move(kept)}};
    } else if (model.spec.format == WeightFormat::w4a16) {
        const OrderedJson int4 = {{"num_bits", 4},       {"type", "int"},       {"symmetric", true},
                                  {"strategy", "group"}, {"group_size", block}, {"dynamic", false}};
        quantization = {{"quant_method", "compressed-tensors"},
                        {"format", "pack-quantized"},
                        {"quantization_status", "compressed"},
                        {"config_groups",
                         {{"group_0",
                           {{"format", "pack-quantized"},
                            {"targets", OrderedJson::array({"Linear"})},
                            {"weights", int4},
                            {"input_activations", nullptr},
                            {"output_activations", nullptr}}}}},
                        {"ignore", std::move(kept)}};
    } else {
        quantization = {{"quant_method", "modelopt"},
                        {"quant_algo", "NVFP4"},
                        {"group_size", fp4_group},
                        {"ignore", std::move(kept)}};
    }
    OrderedJson config = OrderedJson::parse(config_text(model.spec));
    config["quantization_config"] = std::move(quantization);
    return config.dump(2) + "\n";
}

Inventory inventory_of(const SyntheticModel& model) {
    Inventory inventory;
    for (const SyntheticWeight& weight : model.weights) {
        const std::string format = tally_name(weight);
        count(inventory.formats[format], weight);
        count(inventory.parts[weight.tensor.part][format], weight);
        if (model.spec.format != WeightFormat::bf16 && weight.tensor.role != TensorRole::plain &&
            weight.format == WeightFormat::bf16) {
            inventory.ignored.push_back(stem_of(weight.tensor.name));
        }
    }
    inventory.mtp = model.config.mtp_layers > 0;
    inventory.vision = model.config.has_vision;
    return inventory;
}

void make_tensor(const SyntheticTensor& tensor, std::uint64_t seed, ThreadPool& pool,
                 std::span<std::byte> out) {
    const std::size_t slices = (out.size() + slice - 1) / slice;
    pool.parallel_for(slices, [&](std::size_t index, std::size_t) {
        const std::size_t first = index * slice;
        make_values(tensor, seed, first / size_of(tensor.header.dtype),
                    out.subspan(first, std::min<std::size_t>(slice, out.size() - first)));
    });
}

}  // namespace percheron::checkpoint
