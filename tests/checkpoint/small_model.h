// Small random model folders for tests: a config and every tensor it needs, each in the format a
// test asks for, written as the test likes.
#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "checkpoint/architecture.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors_writer.h"
#include "core/dtype.h"
#include "core/files.h"
#include "ops/weight_matrix.h"
#include "support/temporary_folder.h"

namespace percheron::checkpoint::test {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ops::WeightFormat;

using tests::TemporaryFolder;

struct TestTensor {
    DType dtype = DType::u8;
    Shape shape;
    std::vector<std::byte> bytes;
};

using TestTensors = std::map<std::string, TestTensor>;

inline std::size_t product(const Shape& shape) {
    std::size_t count = 0;
    EXPECT_TRUE(element_count(shape, count));
    return count;
}

template <class T>
TestTensor tensor_of(DType dtype, Shape shape, const std::vector<T>& values) {
    TestTensor tensor{dtype, std::move(shape), {}};
    tensor.bytes.resize(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    return tensor;
}

inline std::vector<float> random_floats(std::mt19937_64& random, std::size_t count, float scale) {
    std::normal_distribution<float> values(0.0f, scale);
    std::vector<float> result(count);
    for (float& value : result)
        value = values(random);
    return result;
}

inline TestTensor random_bf16(std::mt19937_64& random, const Shape& shape) {
    std::vector<BFloat16> values;
    for (const float value : random_floats(random, product(shape), 0.5f))
        values.emplace_back(value);
    return tensor_of(DType::bf16, shape, values);
}

inline TestTensor random_f32(std::mt19937_64& random, const Shape& shape) {
    return tensor_of(DType::f32, shape, random_floats(random, product(shape), 0.5f));
}

// Small positive scales.
inline std::vector<float> random_scales(std::mt19937_64& random, std::size_t count) {
    std::uniform_real_distribution<float> values(0.001f, 0.1f);
    std::vector<float> result(count);
    for (float& value : result)
        value = values(random);
    return result;
}

// Codes that are never NaN.
inline std::vector<Float8E4M3> random_e4m3(std::mt19937_64& random, std::size_t count,
                                           bool positive) {
    std::vector<Float8E4M3> result(count);
    for (Float8E4M3& value : result) {
        const auto code = static_cast<std::uint8_t>(random() % 127);
        value = Float8E4M3::from_bits(
            static_cast<std::uint8_t>(code | (!positive && random() % 2 == 0 ? 0x80 : 0)));
    }
    return result;
}

template <class T>
std::vector<T> random_integers(std::mt19937_64& random, std::size_t count) {
    std::vector<T> result(count);
    for (T& value : result)
        value = static_cast<T>(random());
    return result;
}

// A random weight [n, k] under `name` ("….weight" or bare) and, next to it, what dequantises it.
// Also returns the values, row by row, computed here from the definition of the format.
inline std::vector<float> add_weight(TestTensors& tensors, std::mt19937_64& random,
                                     const std::string& name, std::size_t n, std::size_t k,
                                     WeightFormat format, bool compressed_nvfp4 = false) {
    const std::string stem = stem_of(name);
    std::vector<float> values(n * k);
    switch (format) {
        case WeightFormat::bf16: {
            tensors[name] = random_bf16(random, {n, k});
            const auto* stored = reinterpret_cast<const BFloat16*>(tensors[name].bytes.data());
            for (std::size_t i = 0; i < n * k; ++i)
                values[i] = static_cast<float>(stored[i]);
            break;
        }
        case WeightFormat::f32: {
            values = random_floats(random, n * k, 0.5f);
            tensors[name] = tensor_of(DType::f32, {n, k}, values);
            break;
        }
        case WeightFormat::fp8_block: {
            const std::size_t rows = (n + 127) / 128;
            const std::size_t columns = (k + 127) / 128;
            const auto codes = random_e4m3(random, n * k, false);
            const auto scales = random_scales(random, rows * columns);
            for (std::size_t i = 0; i < n * k; ++i) {
                values[i] =
                    static_cast<float>(codes[i]) * scales[(i / k / 128) * columns + (i % k) / 128];
            }
            tensors[name] = tensor_of(DType::f8_e4m3, {n, k}, codes);
            tensors[name + "_scale_inv"] = tensor_of(DType::f32, {rows, columns}, scales);
            break;
        }
        case WeightFormat::w4a16: {
            const auto words = random_integers<std::uint32_t>(random, n * k / 8);
            std::vector<BFloat16> scales;
            for (const float scale : random_scales(random, n * k / 128))
                scales.emplace_back(scale);
            for (std::size_t i = 0; i < n * k; ++i) {
                const int nibble = static_cast<int>(words[i / 8] >> (4 * (i % 8)) & 15u);
                values[i] = static_cast<float>(nibble - 8) * static_cast<float>(scales[i / 128]);
            }
            tensors[stem + ".weight_packed"] = tensor_of(DType::i32, {n, k / 8}, words);
            tensors[stem + ".weight_scale"] = tensor_of(DType::bf16, {n, k / 128}, scales);
            tensors[stem + ".weight_shape"] =
                tensor_of(DType::i64, {2}, std::vector<std::uint64_t>{n, k});
            break;
        }
        case WeightFormat::nvfp4: {
            const float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
            const auto pairs = random_integers<std::uint8_t>(random, n * k / 2);
            const auto scales = random_e4m3(random, n * k / 16, true);
            // What the file holds: the factor, or its inverse.
            const float random_part = random_scales(random, 1)[0];
            const float global = compressed_nvfp4 ? 1000.0f / random_part : random_part / 1000.0f;
            for (std::size_t i = 0; i < n * k; ++i) {
                const unsigned code = pairs[i / 2] >> (4 * (i % 2)) & 15u;
                const float block = static_cast<float>(scales[i / 16]);
                const float scale = compressed_nvfp4 ? block / global : block * global;
                values[i] = (code > 7 ? -1.0f : 1.0f) * magnitudes[code & 7u] * scale;
            }
            tensors[stem + (compressed_nvfp4 ? ".weight_packed" : ".weight")] =
                tensor_of(DType::u8, {n, k / 2}, pairs);
            tensors[stem + ".weight_scale"] = tensor_of(DType::f8_e4m3, {n, k / 16}, scales);
            if (compressed_nvfp4) {
                tensors[stem + ".weight_global_scale"] =
                    tensor_of(DType::f32, {1}, std::vector<float>{global});
                tensors[stem + ".input_global_scale"] =
                    tensor_of(DType::f32, {1}, std::vector<float>{1.0f});
            } else {
                tensors[stem + ".weight_scale_2"] =
                    tensor_of(DType::f32, {}, std::vector<float>{global});
                tensors[stem + ".input_scale"] =
                    tensor_of(DType::f32, {}, std::vector<float>{1.0f});
            }
            break;
        }
    }
    return values;
}

// A config of the architecture with few of everything; `width` 16 makes files of some 100 KiB,
// 128 such that every format fits.
inline Json small_config(std::size_t width = 16) {
    Json text = {
        {"model_type", "glm5_next_text"},
        {"vocab_size", 40},
        {"hidden_size", width},
        {"num_hidden_layers", 3},
        {"intermediate_size", width},
        {"moe_intermediate_size", width},
        {"num_attention_heads", 2},
        {"num_key_value_heads", 2},
        {"q_lora_rank", 16},
        {"kv_lora_rank", 24},
        {"qk_nope_head_dim", 8},
        {"qk_rope_head_dim", 0},
        {"qk_head_dim", 8},
        {"v_head_dim", 12},
        {"head_dim", 0},
        {"attention_bias", false},
        {"hidden_act", "silu"},
        {"swiglu_limit", 10.0},
        {"rms_norm_eps", 1e-5},
        {"max_position_embeddings", 4096},
        {"n_routed_experts", 3},
        {"n_shared_experts", 1},
        {"num_experts_per_tok", 2},
        {"n_group", 1},
        {"topk_group", 1},
        {"scoring_func", "sigmoid"},
        {"topk_method", "noaux_tc"},
        {"norm_topk_prob", true},
        {"routed_scaling_factor", 2.5},
        {"first_k_dense_replace", 1},
        {"mlp_layer_types", {"dense", "sparse", "sparse"}},
        {"layer_types", {"linear_attention", "deepseek_sparse_attention", "linear_attention"}},
        {"linear_attn_config",
         {{"num_heads", 2},
          {"head_dim", 8},
          {"short_conv_kernel_size", 4},
          {"gate_lower_bound", -5.0},
          {"kda_layers", {0, 2}},
          {"full_attn_layers", {1}}}},
        {"index_n_heads", 2},
        {"index_head_dim", 8},
        {"index_topk", 16},
        {"index_kpool", 4},
        {"mhc", true},
        {"hc_mult", 4},
        {"hc_sinkhorn_iters", 20},
        {"hc_eps", 1e-6},
        {"num_nextn_predict_layers", 1},
        {"pad_token_id", 30},
        {"eos_token_id", {30, 31}}};
    Json vision = {{"depth", 1},
                   {"hidden_size", 16},
                   {"num_heads", 2},
                   {"intermediate_size", 24},
                   {"patch_size", 2},
                   {"temporal_patch_size", 2},
                   {"spatial_merge_size", 2},
                   {"in_channels", 3},
                   {"out_hidden_size", width},
                   {"projection_intermediate_size", 32},
                   {"rms_norm_eps", 1e-5},
                   {"swiglu_limit", 10.0}};
    return {{"model_type", "glm5_next"},
            {"tie_word_embeddings", false},
            {"image_token_id", 35},
            {"image_start_token_id", 33},
            {"image_end_token_id", 34},
            {"video_token_id", 36},
            {"eos_token_id", {30, 31}},
            {"text_config", std::move(text)},
            {"vision_config", std::move(vision)}};
}

struct SmallModel {
    Json config = small_config();
    Json generation = {{"eos_token_id", {30, 32}}, {"temperature", 0.7}, {"top_p", 0.9}};
    TestTensors tensors;
    std::map<std::string, Json> companions;  // other files of the folder, by name

    model::ModelConfig parsed() const {
        const TemporaryFolder folder;
        write_configs(folder.path());
        auto result = read_config(folder.path());
        EXPECT_TRUE(result.ok()) << result.error().message();
        return *result;
    }

    void write_configs(const fs::path& folder) const {
        ASSERT_TRUE(write_text_file(folder / "config.json", config.dump(1)).ok());
        ASSERT_TRUE(write_text_file(folder / "generation_config.json", generation.dump(1)).ok());
        for (const auto& [name, json] : companions) {
            ASSERT_TRUE(write_text_file(folder / name, json.dump(1)).ok());
        }
    }

    // `shard_of` gives each tensor its shard, 0 .. count - 1.
    void write(const fs::path& folder, std::size_t count = 1,
               const std::function<std::size_t(const std::string&)>& shard_of = {}) const {
        write_configs(folder);
        std::vector<std::vector<TensorHeader>> shards(count);
        for (const auto& [name, tensor] : tensors) {
            shards.at(shard_of ? shard_of(name) : 0).push_back({name, tensor.dtype, tensor.shape});
        }
        for (std::size_t i = 0; i < count; ++i) {
            auto writer = SafetensorsWriter::create(folder / shard_name(i, count), shards[i]);
            ASSERT_TRUE(writer.ok()) << writer.error().message();
            for (const TensorHeader& header : shards[i]) {
                const Status status = writer->write(header.name, tensors.at(header.name).bytes);
                ASSERT_TRUE(status.ok()) << status.error().message();
            }
            ASSERT_TRUE(writer->finish().ok());
        }
        if (count > 1) {
            ASSERT_TRUE(write_index(folder, shards).ok());
        }
    }
};

// Every tensor that the config needs.  `format_of` chooses for each matrix; plain tensors are BF16
// or, at random, F32.  `compressed_nvfp4`: of the two dialects the one of compressed-tensors.
inline SmallModel small_model(
    std::uint64_t seed, Json config = small_config(),
    const std::function<WeightFormat(const ExpectedTensor&)>& format_of = {},
    bool compressed_nvfp4 = false) {
    SmallModel small;
    small.config = std::move(config);
    std::mt19937_64 random(seed);
    const model::ModelConfig parsed = small.parsed();
    std::vector<ExpectedTensor> expected = outer_tensors(parsed);
    for (std::size_t i = 0; i < parsed.layers() + parsed.mtp_layers; ++i) {
        for (ExpectedTensor& tensor : layer_tensors(parsed, i))
            expected.push_back(std::move(tensor));
    }
    if (parsed.has_vision) {
        for (ExpectedTensor& tensor : vision_tensors(parsed.vision)) {
            expected.push_back(std::move(tensor));
        }
    }
    for (const ExpectedTensor& tensor : expected) {
        if (tensor.role == TensorRole::plain) {
            small.tensors[tensor.name] = random() % 2 == 0 ? random_f32(random, tensor.shape)
                                                           : random_bf16(random, tensor.shape);
        } else {
            const WeightFormat format = format_of ? format_of(tensor) : WeightFormat::bf16;
            add_weight(small.tensors, random, tensor.name, tensor.shape[0], tensor.shape[1], format,
                       compressed_nvfp4);
        }
    }
    return small;
}

}  // namespace percheron::checkpoint::test
