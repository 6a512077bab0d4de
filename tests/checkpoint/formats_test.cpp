#include "checkpoint/formats.h"

#include <cmath>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"

namespace percheron::checkpoint::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr WeightFormat every_format[] = {WeightFormat::bf16, WeightFormat::f32,
                                         WeightFormat::fp8_block, WeightFormat::w4a16,
                                         WeightFormat::nvfp4};

// A folder that is no model, only weights.
class Weights {
  public:
    explicit Weights(const TestTensors& tensors) {
        SmallModel small;
        small.tensors = tensors;
        small.write(folder_.path());
        shards_ = ShardSet::scan(folder_.path(), problems_);
        EXPECT_TRUE(problems_.empty());
    }
    const ShardSet& shards() const { return shards_; }

  private:
    TemporaryFolder folder_;
    std::vector<Error> problems_;
    ShardSet shards_;
};

TEST(Formats, EveryFormatOfEveryShapeGivesTheValuesOfItsDefinition) {
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 60; ++trial) {
        for (const WeightFormat format : every_format) {
            std::size_t n = 1 + random() % 300;
            std::size_t k = 1 + random() % 400;
            if (format == WeightFormat::w4a16) k = 128 * (1 + random() % 4);
            if (format == WeightFormat::nvfp4) k = 16 * (1 + random() % 20);
            const bool compressed = random() % 2 == 0;
            const bool bare = random() % 2 == 0;
            // The whole model around the weight does not matter here: any stem will do.
            SmallModel small = small_model(1);
            const std::string stem = layer_prefix(0) + "mlp.gate_proj";
            small.tensors.clear();
            const std::string name = bare ? stem : stem + ".weight";
            const std::vector<float> expected =
                add_weight(small.tensors, random, name, n, k, format, compressed);
            const TemporaryFolder folder;
            small.write(folder.path());
            std::vector<Error> problems;
            const ShardSet shards = ShardSet::scan(folder.path(), problems);
            ASSERT_TRUE(has_weight(shards, stem));
            const auto parts = find_weight(shards, stem, {n, k});
            ASSERT_TRUE(parts.ok()) << parts.error().message();
            EXPECT_EQ(parts->format, format);
            Bytes bytes = 0;
            for (const TensorPlace& place : parts->all())
                bytes += place.tensor->bytes.size();
            EXPECT_EQ(bytes, [&] {
                Bytes sum = 0;
                for (const auto& [key, tensor] : small.tensors)
                    sum += tensor.bytes.size();
                return sum;
            }());
            ops::WeightMatrix matrix;
            matrix.format = parts->format;
            matrix.n = n;
            matrix.k = k;
            matrix.data = parts->data.tensor->bytes.data();
            if (parts->scales) matrix.scales = parts->scales.tensor->bytes.data();
            const auto factor = global_scale(*parts);
            ASSERT_TRUE(factor.ok()) << factor.error().message();
            matrix.global_scale = *factor;
            matrix.global_inverse = global_inverse(*parts);
            std::vector<float> row(k);
            for (std::size_t i = 0; i < n; ++i) {
                ops::dequantise_row(matrix, i, row.data());
                for (std::size_t j = 0; j < k; ++j)
                    ASSERT_EQ(row[j], expected[i * k + j]);
            }
        }
    }
}

TEST(Formats, TheNetworkReadsTheSameValuesThroughACheckpoint) {
    std::mt19937_64 choice(2);
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const SmallModel small =
            small_model(seed, small_config(128), [&](const ExpectedTensor& tensor) {
                const WeightFormat format = every_format[choice() % std::size(every_format)];
                if (format == WeightFormat::w4a16 && tensor.shape[1] % 128 != 0) {
                    return WeightFormat::bf16;
                }
                if (format == WeightFormat::nvfp4 && tensor.shape[1] % 16 != 0) {
                    return WeightFormat::fp8_block;
                }
                return format;
            });
        const TemporaryFolder folder;
        small.write(folder.path());
        auto checkpoint = Checkpoint::open(folder.path());
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
        EXPECT_EQ((*checkpoint)->inventory().formats.size(), std::size(every_format));
        const std::string stem = layer_prefix(1) + "mlp.experts.2.down_proj";
        const auto parts = find_weight((*checkpoint)->shards(), stem, {128, 128});
        const auto matrix = (*checkpoint)->matrix(stem, 128, 128);
        ASSERT_TRUE(parts.ok() && matrix.ok());
        EXPECT_EQ(matrix->data, parts->data.tensor->bytes.data());
        EXPECT_TRUE((*checkpoint)->has(stem));
        EXPECT_FALSE((*checkpoint)->has(layer_prefix(1) + "mlp.experts.3.down_proj"));
        EXPECT_EQ((*checkpoint)->matrix(stem, 128, 127).error().code(),
                  matrix->format == WeightFormat::w4a16 || matrix->format == WeightFormat::nvfp4
                      ? ErrorCode::unsupported
                      : ErrorCode::corrupt);
    }
}

struct BrokenPart {
    const char* what;
    WeightFormat format;
    std::function<void(TestTensors&, const std::string& stem)> damage;
    const char* named;  // the tensor that the message must name
    const char* said;
};

TestTensor& at(TestTensors& tensors, const std::string& name) {
    return tensors.at(name);
}

const BrokenPart broken_parts[] = {
    {"fp8 without scales", WeightFormat::fp8_block,
     [](TestTensors& t, const std::string& s) { t.erase(s + ".weight_scale_inv"); },
     ".weight_scale_inv", "missing"},
    {"fp8 scales of the wrong type", WeightFormat::fp8_block,
     [](TestTensors& t, const std::string& s) {
         at(t, s + ".weight_scale_inv").dtype = DType::i32;
     },
     ".weight_scale_inv", "F32"},
    {"fp8 scales of the wrong shape", WeightFormat::fp8_block,
     [](TestTensors& t, const std::string& s) {
         at(t, s + ".weight_scale_inv").shape = {6, 1};
     },
     ".weight_scale_inv", "[2, 3]"},
    {"w4a16 without scales", WeightFormat::w4a16,
     [](TestTensors& t, const std::string& s) { t.erase(s + ".weight_scale"); }, ".weight_scale",
     "missing"},
    {"w4a16 without a shape", WeightFormat::w4a16,
     [](TestTensors& t, const std::string& s) { t.erase(s + ".weight_shape"); }, ".weight_shape",
     "missing"},
    {"w4a16 with another shape", WeightFormat::w4a16,
     [](TestTensors& t, const std::string& s) {
         at(t, s + ".weight_shape").bytes[0] = std::byte{3};  // 256 becomes 259
     },
     ".weight_shape", "[259, 384]"},
    {"w4a16 with scales per row", WeightFormat::w4a16,
     [](TestTensors& t, const std::string& s) {
         at(t, s + ".weight_scale") = tensor_of(DType::bf16, {256, 1}, std::vector<BFloat16>(256));
     },
     ".weight_scale", "[256, 3]"},
    {"w4a16 of words of another type", WeightFormat::w4a16,
     [](TestTensors& t, const std::string& s) { at(t, s + ".weight_packed").dtype = DType::f32; },
     ".weight_packed", "F32"},
    {"w4a16 beside a plain weight", WeightFormat::w4a16,
     [](TestTensors& t, const std::string& s) {
         t[s + ".weight"] = tensor_of(DType::bf16, {256, 384}, std::vector<BFloat16>(256 * 384));
     },
     ".weight", "both"},
    {"nvfp4 without its factor", WeightFormat::nvfp4,
     [](TestTensors& t, const std::string& s) { t.erase(s + ".weight_scale_2"); },
     ".weight_scale_2", "missing"},
    {"nvfp4 with a factor of zero", WeightFormat::nvfp4,
     [](TestTensors& t, const std::string& s) {
         at(t, s + ".weight_scale_2") = tensor_of(DType::f32, {}, std::vector<float>{0.0f});
     },
     ".weight_scale_2", "finite positive"},
    {"nvfp4 with a factor that is no number", WeightFormat::nvfp4,
     [](TestTensors& t, const std::string& s) {
         at(t, s + ".weight_scale_2") = tensor_of(DType::f32, {1}, std::vector<float>{NAN});
     },
     ".weight_scale_2", "finite positive"},
    {"nvfp4 with a list of factors", WeightFormat::nvfp4,
     [](TestTensors& t, const std::string& s) {
         at(t, s + ".weight_scale_2") = tensor_of(DType::f32, {2}, std::vector<float>{1.0f, 1.0f});
     },
     ".weight_scale_2", "[1]"},
    {"half precision without EXL3 beside it", WeightFormat::bf16,
     [](TestTensors& t, const std::string& s) { at(t, s + ".weight").dtype = DType::f16; },
     ".weight", "F16"},
};

TEST(Formats, WhatAPackedWeightLacksIsNamed) {
    for (const BrokenPart& broken : broken_parts) {
        std::mt19937_64 random(3);
        TestTensors tensors;
        const std::string stem = layer_prefix(1) + "mlp.experts.0.up_proj";
        add_weight(tensors, random, stem + ".weight", 256, 384, broken.format);
        broken.damage(tensors, stem);
        const Weights weights(tensors);
        const auto parts = find_weight(weights.shards(), stem, {256, 384});
        ASSERT_FALSE(parts.ok()) << broken.what;
        EXPECT_THAT(parts.error().message(),
                    AllOf(HasSubstr("model.safetensors"), HasSubstr(stem + broken.named),
                          HasSubstr(broken.said)))
            << broken.what;
    }
}

TEST(Formats, BothNvfp4DialectsMeanTheSameFactor) {
    for (const bool compressed : {false, true}) {
        std::mt19937_64 random(4);
        TestTensors tensors;
        add_weight(tensors, random, "lm_head.weight", 4, 32, WeightFormat::nvfp4, compressed);
        const float inverse = 7680.0f;  // of a factor that is no binary fraction
        tensors[compressed ? "lm_head.weight_global_scale" : "lm_head.weight_scale_2"] =
            tensor_of(DType::f32, {1}, std::vector<float>{compressed ? inverse : 1.0f / inverse});
        const Weights weights(tensors);
        const auto parts = find_weight(weights.shards(), "lm_head", {4, 32});
        ASSERT_TRUE(parts.ok()) << parts.error().message();
        EXPECT_EQ(*global_scale(*parts), 1.0f / inverse);
        EXPECT_EQ(global_inverse(*parts), compressed ? inverse : 0.0f);
        EXPECT_EQ(parts->unused.size(), 1u);
    }
}

// Scales of inputs are used where they were asked for; both dialects mean the same factor.
TEST(Formats, InputScalesAreReadWhereTheyAreAskedFor) {
    for (const bool compressed : {false, true}) {
        const std::string stem = layer_prefix(1) + "mlp.experts.0.up_proj";
        const std::string name = stem + (compressed ? ".input_global_scale" : ".input_scale");
        struct Case {
            std::optional<std::vector<float>> stored;
            std::string said;  // empty: it is read
        };
        const float factor = compressed ? 40.0f : 1.0f / 40.0f;
        for (const Case& one : std::vector<Case>{{{{factor}}, ""},
                                                 {{}, "leave --fp4-activations out"},
                                                 {{{0.0f}}, "finite positive"},
                                                 {{{-1.0f}}, "finite positive"},
                                                 {{{NAN}}, "finite positive"},
                                                 {{{1.0f, 2.0f}}, "one F32 number"}}) {
            SmallModel small = small_model(5, small_config(128));
            std::mt19937_64 random(5);
            const Shape shape = small.tensors.at(stem + ".weight").shape;
            small.tensors.erase(stem + ".weight");
            add_weight(small.tensors, random, stem + ".weight", shape[0], shape[1],
                       WeightFormat::nvfp4, compressed);
            small.tensors.erase(name);
            if (one.stored) {
                small.tensors[name] = tensor_of(DType::f32, {one.stored->size()}, *one.stored);
            }
            const TemporaryFolder folder;
            small.write(folder.path());
            const auto checkpoint = Checkpoint::open(folder.path());
            ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
            const auto unasked = (*checkpoint)->matrix(stem, shape[0], shape[1]);
            ASSERT_TRUE(unasked.ok()) << unasked.error().message();
            EXPECT_EQ(unasked->input_scale, 0.0f);
            (*checkpoint)->use_input_scales();
            const auto asked = (*checkpoint)->matrix(stem, shape[0], shape[1]);
            if (one.said.empty()) {
                ASSERT_TRUE(asked.ok()) << asked.error().message();
                EXPECT_EQ(asked->input_scale, 1.0f / 40.0f);
            } else {
                ASSERT_FALSE(asked.ok());
                EXPECT_THAT(asked.error().message(), AllOf(HasSubstr(stem), HasSubstr(one.said)));
            }
            // Other formats have none and need none.
            const auto head = (*checkpoint)->matrix("lm_head", 40, 128);
            ASSERT_TRUE(head.ok()) << head.error().message();
            EXPECT_EQ(head->input_scale, 0.0f);
        }
    }
}

TEST(Formats, TensorsThatAreNeverMatricesMayNotBeQuantised) {
    SmallModel small = small_model(5);
    std::mt19937_64 random(5);
    const std::string name = layer_prefix(1) + "self_attn.indexer.index_kpool_compress_ape";
    const Shape shape = small.tensors.at(name).shape;
    small.tensors.erase(name);
    add_weight(small.tensors, random, name, shape[0], shape[1], WeightFormat::fp8_block);
    const TemporaryFolder folder;
    small.write(folder.path());
    EXPECT_THAT(Checkpoint::open(folder.path()).error().message(),
                AllOf(HasSubstr(name), HasSubstr("never quantised")));
}

TEST(Formats, UnalignedTensorsAreReadRight) {
    // A file whose first tensor, known and unused, leaves everything behind it at odd addresses.
    const SmallModel small = small_model(6);
    Json header;
    std::string data("x");
    header["lm_head.input_scale"] = {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {0, 1}}};
    for (const auto& [name, tensor] : small.tensors) {
        const std::size_t begin = data.size();
        data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
        header[name] = {{"dtype", std::string(name_of(tensor.dtype))},
                        {"shape", tensor.shape},
                        {"data_offsets", {begin, data.size()}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::string file;
    for (int i = 0; i < 8; ++i)
        file += static_cast<char>(text.size() >> (8 * i));
    file.append(text).append(data);
    const TemporaryFolder folder;
    small.write_configs(folder.path());
    ASSERT_TRUE(write_text_file(folder.path() / "model.safetensors", file).ok());
    auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    std::size_t unaligned = 0;
    for (const ExpectedTensor& tensor : layer_tensors((*checkpoint)->config(), 1)) {
        const TensorPlace place = (*checkpoint)->shards().find(tensor.name);
        const auto* stored = place.tensor->bytes.data();
        unaligned += reinterpret_cast<std::uintptr_t>(stored) % 2;
        if (tensor.role == TensorRole::plain) {
            std::vector<float> values(product(tensor.shape));
            EXPECT_TRUE((*checkpoint)->vector(tensor.name, values).ok());
            continue;
        }
        const auto matrix =
            (*checkpoint)->matrix(stem_of(tensor.name), tensor.shape[0], tensor.shape[1]);
        ASSERT_TRUE(matrix.ok()) << matrix.error().message();
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(matrix->data) % 2, 0u);
        EXPECT_EQ(std::memcmp(matrix->data, small.tensors.at(tensor.name).bytes.data(),
                              place.tensor->bytes.size()),
                  0);
        const auto again =
            (*checkpoint)->matrix(stem_of(tensor.name), tensor.shape[0], tensor.shape[1]);
        EXPECT_EQ(again->data, matrix->data) << "copied twice";
    }
    EXPECT_GT(unaligned, 10u);
}

// Codes that mean NaN are refused where the weight is read, and listed when values are looked at.
TEST(Formats, Fp8CodesThatMeanNaNAreRefusedByName) {
    std::mt19937_64 random(77);
    for (const WeightFormat format : {WeightFormat::fp8_block, WeightFormat::nvfp4}) {
        const auto sound = small_model(3, small_config(), [&](const ExpectedTensor& tensor) {
            return tensor.shape[1] % 16 == 0 ? format : WeightFormat::bf16;
        });
        std::vector<std::string> coded;
        for (const auto& [name, tensor] : sound.tensors) {
            if (tensor.dtype == DType::f8_e4m3) coded.push_back(name);
        }
        ASSERT_GT(coded.size(), 10u);
        for (int trial = 0; trial < 12; ++trial) {
            SmallModel damaged = sound;
            const std::string& name = coded[random() % coded.size()];
            TestTensor& tensor = damaged.tensors[name];
            const std::size_t at = random() % tensor.bytes.size();
            tensor.bytes[at] = random() % 2 == 0 ? std::byte{0x7f} : std::byte{0xff};
            const TemporaryFolder folder;
            damaged.write(folder.path());
            const auto account = Checkpoint::inspect(folder.path(), Checkpoint::Reading::values);
            ASSERT_EQ(account.problems.size(), 1u);
            EXPECT_TRUE(Checkpoint::inspect(folder.path()).runnable());
            const auto checkpoint = Checkpoint::open(folder.path()).value();
            const std::string stem = name.substr(0, name.rfind(".weight"));
            std::vector<std::size_t> shape;
            for (std::size_t layer = 0; layer <= checkpoint->config().layers() && shape.empty();
                 ++layer) {
                for (const ExpectedTensor& expected : layer_tensors(checkpoint->config(), layer)) {
                    if (stem_of(expected.name) == stem) shape = expected.shape;
                }
            }
            for (const ExpectedTensor& expected : outer_tensors(checkpoint->config())) {
                if (stem_of(expected.name) == stem) shape = expected.shape;
            }
            for (const ExpectedTensor& expected : vision_tensors(checkpoint->config().vision)) {
                if (stem_of(expected.name) == stem) shape = expected.shape;
            }
            if (shape.empty()) continue;  // bare names have no ".weight" to cut
            const auto matrix = checkpoint->matrix(stem, shape[0], shape[1]);
            ASSERT_FALSE(matrix.ok()) << name;
            for (const std::string& message :
                 {matrix.error().message(), account.problems[0].message()}) {
                EXPECT_THAT(message,
                            AllOf(HasSubstr(name), HasSubstr("element " + std::to_string(at) + " "),
                                  HasSubstr("NaN")));
            }
        }
    }
}

// Every number that could make a whole sum NaN: scales of each format, norms, biases, convolutions.
TEST(Formats, ScalesAndVectorsThatAreNotFiniteAreRefusedByName) {
    std::mt19937_64 random(78);
    const std::function<WeightFormat(const ExpectedTensor&)> choices[] = {
        [](const ExpectedTensor&) { return WeightFormat::fp8_block; },
        [](const ExpectedTensor& tensor) {
            return tensor.shape[1] % 128 == 0 ? WeightFormat::w4a16 : WeightFormat::bf16;
        },
    };
    std::size_t scales = 0, vectors = 0;
    for (const auto& format_of : choices) {
        const SmallModel sound = small_model(4, small_config(128), format_of);
        const model::ModelConfig config = sound.parsed();
        for (int trial = 0; trial < 60; ++trial) {
            const std::vector<ExpectedTensor> all =
                layer_tensors(config, random() % config.layers());
            const ExpectedTensor& chosen = all[random() % all.size()];
            const bool vector = chosen.role == TensorRole::plain;
            std::string name = chosen.name;
            if (!vector) {
                const std::string stem = stem_of(name);
                name = sound.tensors.contains(stem + ".weight_packed") ? stem + ".weight_scale"
                                                                       : name + "_scale_inv";
            }
            if (!sound.tensors.contains(name)) continue;  // a matrix without scales
            SmallModel damaged = sound;
            TestTensor& tensor = damaged.tensors[name];
            const bool wide = tensor.dtype == DType::f32;
            const std::size_t count = tensor.bytes.size() / size_of(tensor.dtype);
            const std::size_t at = random() % count;
            const std::uint32_t bits = wide ? 0x7f800000u : 0x7f80u;
            const std::uint32_t value =
                bits | (random() % 2 == 0 ? 0 : 1) |
                (random() % 2 == 0 ? 0 : (bits == 0x7f80u ? 0x8000u : 1u << 31));
            std::memcpy(tensor.bytes.data() + at * size_of(tensor.dtype), &value,
                        size_of(tensor.dtype));
            const TemporaryFolder folder;
            damaged.write(folder.path());
            const auto account = Checkpoint::inspect(folder.path(), Checkpoint::Reading::values);
            ASSERT_EQ(account.problems.size(), 1u) << name;
            const auto checkpoint = Checkpoint::open(folder.path()).value();
            std::vector<float> values(product(chosen.shape));
            Status read;
            if (vector) {
                read = checkpoint->vector(chosen.name, values);
            } else {
                const auto matrix =
                    checkpoint->matrix(stem_of(chosen.name), chosen.shape[0], chosen.shape[1]);
                if (!matrix.ok()) read = matrix.error();
            }
            ASSERT_FALSE(read.ok()) << name;
            for (const std::string& message :
                 {read.error().message(), account.problems[0].message()}) {
                EXPECT_THAT(message, AllOf(HasSubstr(folder.path().string()), HasSubstr(name),
                                           HasSubstr("element " + std::to_string(at) + " "),
                                           HasSubstr("not a finite number")));
            }
            ++(vector ? vectors : scales);
        }
    }
    EXPECT_GT(scales, 20u);
    EXPECT_GT(vectors, 20u);
}

}  // namespace
}  // namespace percheron::checkpoint::test
