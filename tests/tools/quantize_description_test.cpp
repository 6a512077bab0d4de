// What is written of any source, in any format, with any patterns: the config says of every matrix
// how it is stored, and the folder computes what its values say.
#include <map>
#include <random>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"
#include "core/files.h"
#include "tools/quantize.h"
#include "tools/score.h"

namespace percheron::tools {
namespace {

using namespace checkpoint::test;
using checkpoint::Checkpoint;
using checkpoint::ExpectedTensor;
using checkpoint::layer_prefix;
using checkpoint::NetworkPart;
using checkpoint::ShardSet;
using checkpoint::stem_of;
using checkpoint::TensorRole;
using testing::IsEmpty;

// Most matrices fit every format, some fit few.
Json source_config() {
    Json config = small_config(128);
    config["text_config"]["vocab_size"] = 256;
    config["text_config"]["kv_lora_rank"] = 128;
    config["text_config"]["index_head_dim"] = 128;
    config["text_config"]["n_routed_experts"] = 4;
    return config;
}

bool fits(const ExpectedTensor& tensor, std::size_t width) {
    return tensor.shape.size() == 2 && tensor.shape[1] % width == 0;
}

struct Source {
    const char* name;
    std::function<WeightFormat(const ExpectedTensor&)> format;
    bool compressed_nvfp4 = false;
    bool input_scales = false;
};

std::vector<Source> sources() {
    const auto expert = [](const ExpectedTensor& tensor) {
        return tensor.role == TensorRole::routed_expert;
    };
    const auto experts_in = [=](WeightFormat format) {
        return [=](const ExpectedTensor& tensor) {
            return expert(tensor) ? format : WeightFormat::bf16;
        };
    };
    const auto all_in = [](WeightFormat format, std::size_t width) {
        return [=](const ExpectedTensor& tensor) {
            return fits(tensor, width) ? format : WeightFormat::bf16;
        };
    };
    return {
        {"bf16", {}},
        {"fp8", experts_in(WeightFormat::fp8_block)},
        {"fp8 of everything", all_in(WeightFormat::fp8_block, 1)},
        {"w4a16", experts_in(WeightFormat::w4a16)},
        {"w4a16 of all it fits", all_in(WeightFormat::w4a16, 128)},
        {"nvfp4", experts_in(WeightFormat::nvfp4), false, true},
        {"nvfp4 of all it fits", all_in(WeightFormat::nvfp4, 16)},
        {"nvfp4 of compressed-tensors", experts_in(WeightFormat::nvfp4), true, true},
        {"w4a16 without the MTP layer's",
         [=](const ExpectedTensor& tensor) {
             return expert(tensor) && tensor.part != NetworkPart::mtp ? WeightFormat::w4a16
                                                                      : WeightFormat::bf16;
         }},
        {"a mixture",
         [random = std::make_shared<std::mt19937_64>(3)](const ExpectedTensor& tensor) {
             const WeightFormat any[] = {WeightFormat::bf16, WeightFormat::fp8_block,
                                         WeightFormat::w4a16, WeightFormat::nvfp4};
             const WeightFormat format = any[(*random)() % std::size(any)];
             if (format == WeightFormat::w4a16 && !fits(tensor, 128)) return WeightFormat::bf16;
             if (format == WeightFormat::nvfp4 && !fits(tensor, 16)) return WeightFormat::bf16;
             return format;
         },
         true},
    };
}

std::vector<ExpectedTensor> matrices_of(const model::ModelConfig& config) {
    std::vector<ExpectedTensor> tensors = checkpoint::outer_tensors(config);
    for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i) {
        for (ExpectedTensor& tensor : checkpoint::layer_tensors(config, i))
            tensors.push_back(std::move(tensor));
    }
    for (ExpectedTensor& tensor : checkpoint::vision_tensors(config.vision))
        tensors.push_back(std::move(tensor));
    std::erase_if(tensors,
                  [](const ExpectedTensor& tensor) { return tensor.role == TensorRole::plain; });
    return tensors;
}

// How a matrix lies in the files, by the names beside it.
std::string stored_form(const ShardSet& shards, const std::string& name) {
    const std::string stem = stem_of(name);
    if (shards.find(stem + ".weight_shape")) return "pack-quantized";
    if (shards.find(stem + ".weight_global_scale")) return "nvfp4-pack-quantized";
    if (shards.find(stem + ".weight_scale_2")) return "nvfp4";
    if (shards.find(name + "_scale_inv")) return "fp8-block";
    return "";
}

bool has_input_scale(const ShardSet& shards, const std::string& stem) {
    return shards.find(stem + ".input_scale") || shards.find(stem + ".input_global_scale");
}

// Whether a list names a module, as compressed-tensors reads it.
bool lists(const Json& list, const std::string& stem) {
    for (const Json& entry : list) {
        const std::string text = entry;
        if (text == stem) return true;
        if (!text.starts_with("re:")) continue;
        if (std::regex_search(stem, std::regex(text.substr(3)),
                              std::regex_constants::match_continuous)) {
            return true;
        }
    }
    return false;
}

bool is_linear_module(const ExpectedTensor& tensor) {
    return tensor.name.ends_with(".weight") && tensor.part != NetworkPart::embedding &&
           tensor.part != NetworkPart::router && !tensor.name.ends_with("mlp.gate.weight");
}

// What a reader of the convention would expect of a matrix.
std::string described_form(const Json& config, const ExpectedTensor& tensor, bool& inputs) {
    inputs = false;
    if (!config.contains("quantization_config")) return "";
    const Json& said = config.at("quantization_config");
    const std::string method = said.at("quant_method");
    const std::string stem = stem_of(tensor.name);
    const bool known = method == "percheron" || is_linear_module(tensor);
    if (method == "fp8") {
        EXPECT_EQ(said.at("weight_block_size"), Json({128, 128}));
        return known && !lists(said.at("modules_to_not_convert"), stem) ? "fp8-block" : "";
    }
    if (!known || lists(said.at("ignore"), stem)) return "";
    std::string form;
    for (const auto& [name, group] : said.at("config_groups").items()) {
        if (!lists(group.at("targets"), stem)) continue;
        EXPECT_EQ(form, "") << stem << " is described twice";
        form = group.at("format");
        inputs = !group.at("input_activations").is_null();
        const Json& weights = group.at("weights");
        EXPECT_EQ(weights.at("num_bits"), form == "fp8-block" ? 8 : 4);
        EXPECT_EQ(weights.at("type"), form == "pack-quantized" ? "int" : "float");
        if (form == "fp8-block") {
            EXPECT_EQ(weights.at("block_structure"), Json({128, 128}));
        } else {
            EXPECT_EQ(weights.at("group_size"), form == "pack-quantized" ? 128 : 16);
        }
    }
    const std::map<std::string, std::vector<std::string>> forms = {
        {"compressed-tensors", {"pack-quantized", "nvfp4-pack-quantized"}},
        {"modelopt", {"nvfp4"}},
        {"percheron", {"pack-quantized", "nvfp4-pack-quantized", "nvfp4", "fp8-block"}}};
    EXPECT_THAT(forms.at(method), testing::Contains(form)) << stem << " has no description";
    return form;
}

// The folder's values in F32.
void write_twin(Checkpoint& folder, const SmallModel& source, const fs::path& twin) {
    SmallModel plain = source;
    plain.config.erase("quantization_config");
    plain.tensors.clear();
    for (const auto& [name, place] : folder.shards().tensors()) {
        const checkpoint::StoredTensor& tensor = *place.tensor;
        TestTensor& copy = plain.tensors[name];
        copy = {tensor.dtype, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}};
    }
    for (const ExpectedTensor& tensor : matrices_of(folder.config())) {
        const std::string stem = stem_of(tensor.name);
        const std::size_t n = tensor.shape[0];
        const std::size_t k = tensor.shape[1];
        const auto matrix = folder.matrix(stem, n, k);
        ASSERT_TRUE(matrix.ok()) << matrix.error().message();
        std::vector<float> values(n * k);
        for (std::size_t row = 0; row < n; ++row)
            ops::dequantise_row(*matrix, row, values.data() + row * k);
        for (const char* part : {".weight", ".weight_packed", ".weight_scale", ".weight_shape",
                                 ".weight_scale_2", ".weight_global_scale", ".weight_scale_inv",
                                 "_scale_inv", ".input_scale", ".input_global_scale"}) {
            plain.tensors.erase(stem + part);
        }
        plain.tensors[tensor.name] = tensor_of(DType::f32, {n, k}, values);
    }
    fs::create_directory(twin);
    plain.write(twin);
}

std::vector<double> logprobs(const fs::path& folder) {
    ScoreOptions options;
    options.folder = folder;
    options.device = "cpu";
    options.threads = 1;
    options.top = 256;
    options.arithmetic = ops::Arithmetic::fp32;
    std::vector<TokenId> ids;
    for (std::int32_t i = 0; i < 24; ++i)
        ids.push_back(TokenId((i * 37 + 11) % 250));
    const auto scores = score({ids}, options);
    EXPECT_TRUE(scores.ok()) << scores.error().message();
    std::vector<double> values;
    if (!scores.ok()) return values;
    for (const auto& top : scores->front().top) {
        std::map<TokenId, double> by_id(top.begin(), top.end());
        for (const auto& [id, value] : by_id)
            values.push_back(value);
    }
    return values;
}

class QuantizeDescription : public testing::TestWithParam<std::size_t> {};

TEST_P(QuantizeDescription, SaysOfEveryMatrixHowItIsStored) {
    const Source source = sources()[GetParam()];
    const TemporaryFolder root;
    const fs::path folder = root.path() / "source";
    fs::create_directory(folder);
    SmallModel small =
        small_model(1 + GetParam(), source_config(), source.format, source.compressed_nvfp4);
    if (!source.input_scales) {
        std::erase_if(small.tensors, [](const auto& entry) {
            return entry.first.ends_with(".input_scale") ||
                   entry.first.ends_with(".input_global_scale");
        });
    }
    // What the source says of itself must not come through.
    small.config["quantization_config"] = {{"quant_method", "bitsandbytes"}};
    small.write(folder);

    const std::vector<std::vector<std::string>> includes = {{},
                                                            {"*.shared_experts.*"},
                                                            {"re:.*self_attn\\.q_proj$", "lm_head"},
                                                            {"model.layers.1.mlp"}};
    const std::vector<std::vector<std::string>> keeps = {{}, {"model.layers.2"}};
    std::map<std::string, std::size_t> methods;
    std::size_t number = 0;
    for (const WeightFormat format :
         {WeightFormat::w4a16, WeightFormat::nvfp4, WeightFormat::fp8_block}) {
        for (const auto& include : includes) {
            for (const auto& keep : keeps) {
                for (const bool rest : {false, true}) {
                    QuantizeOptions options;
                    options.format = format;
                    options.include = include;
                    options.keep = keep;
                    if (rest) options.rest = WeightFormat::fp8_block;
                    options.threads = 1;
                    const std::string what =
                        std::string(source.name) + " to " + std::string(ops::name_of(format)) +
                        ", " + testing::PrintToString(include) + ", " +
                        testing::PrintToString(keep) + (rest ? ", rest fp8" : "");
                    SCOPED_TRACE(what);
                    const fs::path out = root.path() / std::to_string(++number);
                    const auto report = quantize(folder, out, options);
                    ASSERT_TRUE(report.ok()) << report.error().message();
                    auto opened = Checkpoint::open(out);
                    ASSERT_TRUE(opened.ok()) << opened.error().message();
                    Checkpoint& made = **opened;
                    EXPECT_THAT(made.inventory().warnings, IsEmpty());

                    const Json config = Json::parse(*read_text_file(out / "config.json", 1 << 24));
                    ++methods[config.value(Json::json_pointer("/quantization_config/quant_method"),
                                           "none")];
                    EXPECT_EQ(fs::exists(out / "hf_quant_config.json"),
                              config["quantization_config"]["quant_method"] == "modelopt");
                    for (const ExpectedTensor& tensor : matrices_of(made.config())) {
                        bool inputs = false;
                        const std::string form = stored_form(made.shards(), tensor.name);
                        ASSERT_EQ(described_form(config, tensor, inputs), form) << tensor.name;
                        if (!form.starts_with("nvfp4")) continue;
                        ASSERT_EQ(inputs, has_input_scale(made.shards(), stem_of(tensor.name)));
                    }
                    // Each fourth is computed: what is described twice the same is stored the same.
                    if (number % 4 != GetParam() % 4) {
                        fs::remove_all(out);
                        continue;
                    }
                    const fs::path twin = root.path() / "twin";
                    write_twin(made, small, twin);
                    const std::vector<double> ours = logprobs(out);
                    const std::vector<double> twins = logprobs(twin);
                    ASSERT_EQ(ours.size(), twins.size());
                    double squares = 0;
                    double largest = 0;
                    for (std::size_t i = 0; i < ours.size(); ++i) {
                        squares += twins[i] * twins[i];
                        largest = std::max(largest, std::fabs(ours[i] - twins[i]));
                    }
                    EXPECT_GT(squares, 0.0);
                    EXPECT_LE(largest,
                              1e-3 * std::sqrt(squares / static_cast<double>(ours.size())));
                    fs::remove_all(twin);
                    fs::remove_all(out);
                }
            }
        }
    }
    EXPECT_GT(methods["percheron"], 0u);
    EXPECT_EQ(methods["none"], 0u);
}

INSTANTIATE_TEST_SUITE_P(Sources, QuantizeDescription, testing::Range<std::size_t>(0, 10),
                         [](const auto& info) {
                             std::string name = sources()[info.param].name;
                             std::erase_if(name, [](char letter) {
                                 return std::isalnum(static_cast<unsigned char>(letter)) == 0;
                             });
                             return name;
                         });

// What others read stays in their words.
TEST(QuantizeConventions, AreTheUsualOnesWhereTheseCanSayIt) {
    const TemporaryFolder root;
    for (const auto& [name, source, compressed, format, rest, method] :
         std::vector<std::tuple<const char*, WeightFormat, bool, WeightFormat, bool, const char*>>{
             {"a", WeightFormat::bf16, false, WeightFormat::w4a16, false, "compressed-tensors"},
             {"b", WeightFormat::bf16, false, WeightFormat::nvfp4, false, "modelopt"},
             {"c", WeightFormat::bf16, false, WeightFormat::fp8_block, false, "fp8"},
             // Of embedding and pooling gates in FP8 no convention knows.
             {"d", WeightFormat::bf16, false, WeightFormat::fp8_block, true, "percheron"},
             {"e", WeightFormat::bf16, false, WeightFormat::w4a16, true, "percheron"},
             {"f", WeightFormat::nvfp4, false, WeightFormat::nvfp4, false, "modelopt"},
             {"g", WeightFormat::nvfp4, true, WeightFormat::nvfp4, false, "compressed-tensors"},
             {"h", WeightFormat::w4a16, false, WeightFormat::w4a16, false, "compressed-tensors"},
             {"i", WeightFormat::fp8_block, false, WeightFormat::fp8_block, false, "fp8"}}) {
        const fs::path folder = root.path() / (std::string(name) + "-source");
        fs::create_directory(folder);
        small_model(
            1, source_config(),
            [&, source = source](const ExpectedTensor& tensor) {
                return tensor.role == TensorRole::routed_expert ? source : WeightFormat::bf16;
            },
            compressed)
            .write(folder);
        QuantizeOptions options;
        options.format = format;
        options.threads = 1;
        if (rest) options.rest = WeightFormat::fp8_block;
        ASSERT_TRUE(quantize(folder, root.path() / name, options).ok()) << name;
        const Json config =
            Json::parse(*read_text_file(root.path() / name / "config.json", 1 << 24));
        EXPECT_EQ(config["quantization_config"]["quant_method"], method) << name;
    }
    // Two forms of compressed-tensors are one of its own.
    const fs::path folder = root.path() / "both";
    fs::create_directory(folder);
    small_model(
        1, source_config(),
        [](const ExpectedTensor& tensor) {
            return tensor.role == TensorRole::routed_expert ? WeightFormat::nvfp4
                                                            : WeightFormat::bf16;
        },
        true)
        .write(folder);
    QuantizeOptions options;
    options.include = {"*.shared_experts.*"};
    options.threads = 1;
    ASSERT_TRUE(quantize(folder, root.path() / "joined", options).ok());
    const Json said = Json::parse(
        *read_text_file(root.path() / "joined/config.json", 1 << 24))["quantization_config"];
    EXPECT_EQ(said["quant_method"], "compressed-tensors");
    EXPECT_EQ(said["format"], "mixed-precision");
    EXPECT_EQ(said["config_groups"].size(), 2u);
    // Nothing to describe.
    options.include = {};
    options.keep = {"*"};
    const fs::path plain = root.path() / "a-source";
    ASSERT_TRUE(quantize(plain, root.path() / "kept", options).ok());
    EXPECT_FALSE(Json::parse(*read_text_file(root.path() / "kept/config.json", 1 << 24))
                     .contains("quantization_config"));
}

}  // namespace
}  // namespace percheron::tools
