// Small random weights and folders in EXL3, laid out as its converter does.
#pragma once

#include <bit>

#include "checkpoint/float16.h"
#include "checkpoint/fused_names.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"
#include "checkpoint/trellis.h"

namespace percheron::checkpoint::test {

// A random weight in EXL3, and its values by the definition in trellis.h.
struct RandomTrellis {
    std::vector<float> values;  // [n][k]

    RandomTrellis(TestTensors& tensors, std::mt19937_64& random, const std::string& stem,
                  std::size_t n, std::size_t k) {
        const std::size_t rows = (k + 127) / 128 * 128;
        const std::size_t columns = (n + 127) / 128 * 128;
        const TrellisCodebook codebook = static_cast<TrellisCodebook>(random() % 3);
        const bool mul1 = codebook == TrellisCodebook::mul1;
        const std::size_t half_bits =
            mul1 && random() % 2 == 0 ? 3 + 2 * (random() % 3) : 2 + 2 * (random() % 8);
        const auto words =
            random_integers<std::uint16_t>(random, rows / 16 * (columns / 16) * 8 * half_bits);
        tensors[stem + ".trellis"] =
            tensor_of(DType::i16, {rows / 16, columns / 16, 8 * half_bits}, words);
        if (codebook != TrellisCodebook::three_instructions) {
            tensors[stem + (mul1 ? ".mul1" : ".mcg")] =
                tensor_of(DType::i32, {},
                          std::vector<std::uint32_t>{mul1 ? mul1_multiplier : mcg_multiplier});
        }
        const std::vector<float> inputs = scales(tensors, random, stem + ".su", rows);
        const std::vector<float> outputs = scales(tensors, random, stem + ".sv", columns);

        std::vector<float> codes(rows * columns);
        for (std::size_t i = 0; i < rows; i += 16) {
            for (std::size_t o = 0; o < columns; o += 16) {
                float tile[256];
                const std::size_t at = (i / 16 * (columns / 16) + o / 16) * 8 * half_bits;
                decode_tile(std::as_bytes(std::span(words).subspan(at, 8 * half_bits)),
                            static_cast<unsigned>(half_bits), codebook, tile);
                for (std::size_t j = 0; j < 256; ++j)
                    codes[(i + j / 16) * columns + o + j % 16] = tile[j];
            }
        }
        const auto sign = [](std::size_t a, std::size_t b) {
            return std::popcount(a & b) % 2 == 0 ? 1.0 : -1.0;
        };
        // Sums of binary16 values are exact in double, so any order will do.
        std::vector<double> half_way(rows * columns);
        for (std::size_t i = 0; i < rows; ++i) {
            for (std::size_t a = 0; a < 128; ++a) {
                for (std::size_t o = 0; o < columns; ++o) {
                    half_way[i * columns + o] +=
                        sign(i % 128, a) *
                        static_cast<double>(codes[(i - i % 128 + a) * columns + o]);
                }
            }
        }
        values.resize(n * k);
        for (std::size_t o = 0; o < n; ++o) {
            for (std::size_t i = 0; i < k; ++i) {
                double sum = 0;
                for (std::size_t b = 0; b < 128; ++b)
                    sum += half_way[i * columns + o - o % 128 + b] * sign(b, o % 128);
                const double scale =
                    static_cast<double>(inputs[i]) * static_cast<double>(outputs[o]);
                values[o * k + i] = static_cast<float>(scale * (sum / 128));
            }
        }
    }

  private:
    // Under `name` as signs, or with an h as numbers.
    static std::vector<float> scales(TestTensors& tensors, std::mt19937_64& random,
                                     const std::string& name, std::size_t count) {
        std::vector<float> result(count);
        if (random() % 2 == 0) {
            const auto words = random_integers<std::uint16_t>(random, count / 16);
            tensors[name] = tensor_of(DType::i16, {count / 16}, words);
            for (std::size_t i = 0; i < count; ++i)
                result[i] = (words[i / 16] >> (i % 16) & 1) != 0 ? -1.0f : 1.0f;
            return result;
        }
        std::vector<std::uint16_t> halves(count);
        for (std::size_t i = 0; i < count; ++i) {
            // Any sign, exponents from 2^-7 to 2^0.
            halves[i] = static_cast<std::uint16_t>((random() & 0x83ff) | (8 + random() % 8) << 10);
            result[i] = half_to_float(halves[i]);
        }
        tensors[name + "h"] = tensor_of(DType::f16, {count}, halves);
        return result;
    }
};

// A tensor of that shape in F16, and its values.
inline TestTensor as_halves(const TestTensor& tensor, std::mt19937_64& random,
                            std::vector<float>& values) {
    const std::size_t count = product(tensor.shape);
    std::vector<std::uint16_t> halves(count);
    values.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
        halves[i] = static_cast<std::uint16_t>((random() & 0x83ff) | (8 + random() % 8) << 10);
        values[i] = half_to_float(halves[i]);
    }
    return tensor_of(DType::f16, tensor.shape, halves);
}

// The projections and convolutions of KDA layers in stacks, the tower's attention in pieces, head,
// dense and expert matrices in EXL3, routers in F16, and the account of all of them.
inline SmallModel trellis_model(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    SmallModel small = small_model(seed, small_config(16));
    const model::ModelConfig config = small.parsed();
    Json modules = Json::object();
    const auto note = [&](const std::string& module) {
        Json& about = modules[module];
        for (const auto& [name, tensor] : small.tensors) {
            if (!name.starts_with(module + ".")) continue;
            about["stored_tensors"][name] = {{"shape", tensor.shape},
                                             {"n_bytes", tensor.bytes.size()}};
            if (name.ends_with(".trellis")) about["quant_format"] = "exl3";
        }
    };
    const auto encode = [&](const std::string& stem, std::size_t n, std::size_t k) {
        small.tensors.erase(stem + ".weight");
        RandomTrellis(small.tensors, random, stem, n, k);
        note(stem);
    };
    const auto halve = [&](const std::string& name, const Shape& shape) {
        std::vector<float> values;
        small.tensors[name] = as_halves({DType::bf16, shape, {}}, random, values);
    };
    for (std::size_t layer = 0; layer < config.layers() + config.mtp_layers; ++layer) {
        for (const ExpectedTensor& tensor : layer_tensors(config, layer)) {
            const std::string stem = stem_of(tensor.name);
            if (stem.ends_with(".mlp.gate")) {
                halve(tensor.name, tensor.shape);
                note(stem);
            } else if (stem.find(".mlp.") != std::string::npos && stem.ends_with("_proj")) {
                encode(stem, tensor.shape[0], tensor.shape[1]);
            }
        }
        const std::string attention = layer_prefix(layer) + "self_attn.";
        if (!small.tensors.contains(attention + "q_conv1d.weight")) continue;
        const std::size_t width = config.kda_width();
        for (const char* name : {"q", "k", "v"}) {
            small.tensors.erase(attention + name + "_proj.weight");
            small.tensors.erase(attention + name + "_conv1d.weight");
        }
        encode(attention + "qkv_proj", 3 * width, config.hidden);
        halve(attention + "conv1d.weight", {3 * width, 1, config.kda_conv});
        note(attention + "conv1d");
    }
    encode("lm_head", config.vocabulary, config.hidden);
    for (std::size_t block = 0; block < config.vision.depth; ++block) {
        const std::string stem = "model.visual.blocks." + std::to_string(block) + ".attn.qkv";
        small.tensors.erase(stem + ".weight");
        small.tensors.erase(stem + ".bias");
        for (const std::string& piece : pieces_of(stem)) {
            halve(piece + ".bias", {config.vision.hidden});
            encode(piece, config.vision.hidden, config.vision.hidden);
        }
    }
    small.config["quantization_config"] = {{"quant_method", "exl3"}, {"bits", 4}};
    small.companions["quantization_config.json"] = {{"quant_method", "exl3"},
                                                    {"tensor_storage", modules}};
    return small;
}

}  // namespace percheron::checkpoint::test
