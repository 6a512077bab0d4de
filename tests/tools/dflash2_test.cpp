// DFlash2 drafters from their folders: numbers of an oracle in another language and precision
// (scripts/dflash_oracle.py), which was itself compared with the published implementation; what
// does not fit is refused with its reason.
#include "model/dflash2.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/drafter.h"
#include "checkpoint/small_model.h"
#include "checkpoint/synthetic_drafter.h"
#include "checkpoint/torch_vector.h"
#include "core/files.h"
#include "golden/golden_file.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "tools/synth.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Drafter;
using checkpoint::SyntheticDrafter;
using checkpoint::SyntheticTensor;
using checkpoint::test::TemporaryFolder;
using model::Dflash2;
using model::Dflash2Config;
using testing::HasSubstr;

// A shape of the oracle's.
struct Shape {
    const char* name;
    SyntheticDrafter drafter;
    Position begin = 0, end = 0;
    std::uint32_t places = 0;
};

Shape shape_of(const std::string& name) {
    Shape shape;
    Dflash2Config& config = shape.drafter.config;
    const auto set = [&](std::uint64_t seed, std::size_t target_layers, std::size_t taps) {
        shape.drafter.seed = seed;
        shape.drafter.target_layer_count = target_layers;
        config.target_layers.clear();
        for (std::size_t i = 0; i < taps; ++i) {
            config.target_layers.push_back(i);
        }
        config.context_limit = std::size_t{1} << 21;
    };
    if (name == "full") {
        shape.name = "full";
        config = {59, 40, 56, 4, 4, 24, std::vector<std::uint32_t>(8, 0),
                  {}, 8,  3,  8, 8, 16, TokenId(58)};
        config.own_embedding = config.own_head = true;
        set(6, 12, 9);
        shape.end = 71;
        shape.places = 7;
    } else if (name == "plain") {
        shape.name = "plain";
        config = {61, 32, 72, 4, 1, 32, {20, 0}, {}, 16, 0, 1, 0, 0, TokenId(3)};
        set(7, 5, 2);
        shape.end = 130;
        shape.places = 5;
    } else {
        const bool far = name == "far";
        shape.name = far ? "far" : "reference";
        config = {67, 48, 80, 6, 2,  16, std::vector<std::uint32_t>(5, far ? 100 : 24),
                  {}, 8,  2,  4, 12, 6,  TokenId(66)};
        set(far ? 8 : 5, 7, 3);
        shape.begin = far ? 1000000 : 0;
        shape.end = far ? 1000070 : 90;
        shape.places = far ? 1 : 7;
    }
    checkpoint::fill_synthetic_drafter(shape.drafter);
    return shape;
}

// Values as the oracle has them, by name.
template <class Element>
std::vector<Element> made(const SyntheticDrafter& drafter, const std::string& name,
                          checkpoint::Shape shape, double deviation, DType dtype) {
    SyntheticTensor tensor;
    tensor.header = {name, dtype, std::move(shape)};
    tensor.kind = checkpoint::ValueKind::normal;
    tensor.scale = static_cast<float>(deviation / std::sqrt(checkpoint::normal_square));
    std::vector<Element> values(tensor.header.bytes() / sizeof(Element));
    checkpoint::make_values(tensor, drafter.seed, 0, std::as_writable_bytes(std::span(values)));
    return values;
}

// The trunk as far as a drafter sees it: embedding, head and the rows it taps.
class TappedTrunk final : public model::Network {
  public:
    TappedTrunk(const SyntheticDrafter& drafter, std::size_t rows, ops::Backend& backend) {
        const Dflash2Config& shape = drafter.config;
        config_.vocabulary = shape.vocabulary;
        config_.hidden = shape.hidden;
        config_.mixers.resize(drafter.target_layer_count);
        embedding_ = made<BFloat16>(drafter, "input.embed_tokens", {shape.vocabulary, shape.hidden},
                                    1.0, DType::bf16);
        head_ = made<BFloat16>(drafter, "input.lm_head", {shape.vocabulary, shape.hidden},
                               1.0 / std::sqrt(static_cast<double>(shape.hidden)), DType::bf16);
        taps_ = made<float>(drafter, "input.taps", {shape.target_layers.size(), rows, shape.hidden},
                            1.0, DType::f32);
        rows_ = rows;
        ops::NetworkShape sizes;
        sizes.vocabulary = shape.vocabulary;
        sizes.hidden = shape.hidden;
        sizes.kda_heads = sizes.attention_heads = sizes.experts = sizes.experts_per_token = 1;
        sizes.kda_dim = sizes.index_dim = sizes.index_heads = sizes.latent = 16;
        EXPECT_TRUE(backend.prepare(sizes, 64, max_logit_rows()).ok());
    }

    const model::ModelConfig& config() const override { return config_; }
    model::SharedMatrices shared() const override { return {matrix(embedding_), matrix(head_)}; }
    Result<std::span<const float>> forward(const ops::RowBatch&,
                                           const model::CacheViews&) override {
        return Error(ErrorCode::internal, "no network");
    }
    Result<std::span<const float>> logits_of(const ops::RowBatch&,
                                             std::span<const std::uint32_t>) override {
        return Error(ErrorCode::internal, "no network");
    }
    std::size_t max_logit_rows() const override { return 64; }
    Status set_taps(std::vector<std::size_t> layers) override {
        tapped = std::move(layers);
        return {};
    }
    ops::Activations tap(std::size_t index) const override {
        float* const data = const_cast<float*>(taps_.data()) + index * rows_ * config_.hidden;
        return {data, DType::f32, rows_, config_.hidden};
    }
    ops::Activations hidden() const override { return {}; }

    std::vector<std::size_t> tapped;

  private:
    ops::WeightMatrix matrix(const std::vector<BFloat16>& values) const {
        ops::WeightMatrix view;
        view.n = config_.vocabulary;
        view.k = config_.hidden;
        view.data = values.data();
        return view;
    }

    model::ModelConfig config_;
    std::vector<BFloat16> embedding_, head_;
    std::vector<float> taps_;
    std::size_t rows_ = 0;
};

struct Computer {
    const char* backend;
    ops::Arithmetic arithmetic;
    DType cache;
};

std::unique_ptr<ops::Backend> backend_of(const Computer& computer) {
    if (computer.backend == std::string("reference")) {
        return ops::reference::make_reference_backend(computer.arithmetic);
    }
    ops::CpuBackendOptions options;
    options.threads = 2;
    options.arithmetic = computer.arithmetic;
    return ops::make_cpu_backend(options).value();
}

class Dflash2Golden : public testing::TestWithParam<Computer> {};

TEST_P(Dflash2Golden, NamesWhatTheOracleNames) {
    const auto golden =
        tests::GoldenFile::open(std::string(PERCHERON_SOURCE_DIR) + "/tests/data/dflash_golden");
    ASSERT_TRUE(golden.ok()) << golden.error().message();
    const bool exact = GetParam().arithmetic == ops::Arithmetic::fp32;
    for (const char* name : {"reference", "full", "plain", "far"}) {
        const Shape shape = shape_of(name);
        const TemporaryFolder folder;
        ASSERT_TRUE(synth_drafter(folder.path() / "d", shape.drafter, {}).ok());
        const auto opened = Drafter::open(folder.path() / "d");
        ASSERT_TRUE(opened.ok()) << opened.error().message();
        EXPECT_TRUE((*opened)->left_over().empty());
        const Dflash2Config& config = (*opened)->config();
        const auto backend = backend_of(GetParam());
        const std::size_t rows = shape.end - shape.begin;
        TappedTrunk trunk(shape.drafter, rows, *backend);
        const auto loaded = Dflash2::load(config, trunk, **opened, *backend, {256, 64});
        ASSERT_TRUE(loaded.ok()) << loaded.error().message();
        Dflash2& drafter = **loaded;
        EXPECT_EQ(trunk.tapped, config.target_layers);

        // Pages in no order, filled with what no number is; the context comes in two parts.
        const std::uint32_t pages = 4;
        std::vector<PageId> table;
        for (std::uint32_t page = 0; page < pages; ++page) {
            table.push_back(PageId(pages - 1 - page));
        }
        const DType dtype = GetParam().cache;
        const Bytes page_bytes =
            2 * ops::page_tokens * config.kv_heads * config.head_dim * size_of(dtype);
        std::vector<std::vector<std::byte>> memory(
            config.layers(), std::vector<std::byte>(pages * page_bytes, std::byte{0xff}));
        std::vector<ops::ContextPages> views;
        for (auto& layer : memory) {
            views.push_back({layer.data(), dtype, page_bytes, config.kv_heads, config.head_dim});
        }
        std::vector<std::uint32_t> tap_rows;
        for (const auto& [first, last] : {std::pair<std::size_t, std::size_t>{0, 37}, {37, rows}}) {
            tap_rows.clear();
            for (std::size_t row = first; row < last; ++row) {
                tap_rows.push_back(static_cast<std::uint32_t>(row));
            }
            ops::DraftRows part;
            part.row_count = static_cast<std::uint32_t>(last - first);
            part.first_position = static_cast<Position>(shape.begin + first);
            part.context = {shape.begin, static_cast<Position>(shape.begin + last), table};
            ASSERT_TRUE(
                drafter.add_context(ops::NumericClass::prefill, {&part, 1}, tap_rows, views).ok());
        }
        ops::DraftRows block;
        block.row_count = 1 + shape.places;
        block.first_position = shape.end;
        block.context = {shape.begin, shape.end, table};
        const TokenId newest{static_cast<int>(7 * shape.drafter.seed % config.vocabulary)};
        const auto logits = drafter.name({&block, 1}, {&newest, 1}, views);
        ASSERT_TRUE(logits.ok()) << logits.error().message();

        const tests::GoldenTensor& expected = *golden->find(shape.name + std::string(".logits"));
        ASSERT_EQ(logits->size(), expected.values.size());
        double largest = 0, squares = 0;
        for (std::size_t i = 0; i < logits->size(); ++i) {
            const double difference = (*logits)[i] - expected.values[i];
            largest = std::max(largest, std::abs(difference));
            squares += difference * difference;
        }
        const double error = std::sqrt(squares / static_cast<double>(logits->size()));
        if (exact) {
            EXPECT_LT(largest, 1e-4) << name;
        } else {
            EXPECT_LT(error, GetParam().cache == DType::f8_e4m3 ? 0.12 : 0.03) << name;
            EXPECT_GT(error, 1e-6) << name << ": something is rounded";
        }
        EXPECT_EQ(drafter.selects(), config.selector_rank > 0);
        if (!drafter.selects() || !exact) continue;
        const tests::GoldenTensor& path = *golden->find(shape.name + std::string(".path"));
        const tests::GoldenTensor& scores = *golden->find(shape.name + std::string(".scores"));
        TokenId before = newest;
        for (std::uint32_t place = 0; place < shape.places; ++place) {
            const auto candidates = drafter.candidates(place, before);
            ASSERT_EQ(candidates.size(), scores.row_size());
            std::size_t best = 0;
            for (std::size_t i = 0; i < candidates.size(); ++i) {
                EXPECT_NEAR(candidates[i].score, scores.row(place)[i], 1e-4) << name;
                if (candidates[i].score > candidates[best].score) best = i;
            }
            before = candidates[best].id;
            EXPECT_EQ(to_int(before), static_cast<int>(path.values[place])) << name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Computers, Dflash2Golden,
                         testing::Values(Computer{"reference", ops::Arithmetic::fp32, DType::f32},
                                         Computer{"cpu", ops::Arithmetic::fp32, DType::f32},
                                         Computer{"cpu", ops::Arithmetic::standard, DType::bf16},
                                         Computer{"cpu", ops::Arithmetic::standard,
                                                  DType::f8_e4m3}),
                         [](const auto& info) {
                             return std::string(info.param.backend) +
                                    (info.param.arithmetic == ops::Arithmetic::fp32 ? "Fp32"
                                                                                    : "Standard") +
                                    (info.param.cache == DType::f8_e4m3 ? "Fp8" : "");
                         });

// ---- folders

void write_plainly(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

// A copy of a written folder whose config is changed before it is opened.
std::string refusal(const char* name, const std::function<void(nlohmann::json&)>& change,
                    const std::function<void(const fs::path&)>& damage = {}) {
    static const TemporaryFolder written;
    if (!fs::exists(written.path() / name)) {
        EXPECT_TRUE(synth_drafter(written.path() / name, shape_of(name).drafter, {}).ok());
    }
    const TemporaryFolder folder;
    const fs::path at = folder.path() / "d";
    fs::copy(written.path() / name, at);
    nlohmann::json json =
        nlohmann::json::parse(read_text_file(at / "config.json", Bytes{1} << 20).value());
    change(json);
    write_plainly(at / "config.json", json.dump());
    if (damage) damage(at);
    const auto opened = Drafter::open(at);
    return opened.ok() ? "" : opened.error().message();
}

TEST(DrafterFolder, EitherPlaceOfAFieldIsRead) {
    const auto flat = [](nlohmann::json& json) {
        const nlohmann::json own = json["dflash_config"];
        json.erase("dflash_config");
        json.update(own);
    };
    for (const char* name : {"reference", "full", "plain"}) {
        EXPECT_EQ(refusal(name, [](nlohmann::json&) {}), "");
        EXPECT_EQ(refusal(name, flat), "");
        // The nested one goes first.
        EXPECT_EQ(refusal(name, [](nlohmann::json& json) { json["block_size"] = 1; }), "");
    }
    EXPECT_EQ(refusal("reference",
                      [](nlohmann::json& json) {
                          json["rope_theta"] = 10000.0;
                          json.erase("rope_parameters");
                      }),
              "");
}

TEST(DrafterFolder, WhatDoesNotFitIsNamed) {
    const auto own = [](const char* field, nlohmann::json value) {
        return [=](nlohmann::json& json) { json["dflash_config"][field] = value; };
    };
    const auto top = [](const char* field, nlohmann::json value) {
        return [=](nlohmann::json& json) { json[field] = value; };
    };
    EXPECT_THAT(refusal("reference", own("target_layer_ids", {0, 9, 2})),
                HasSubstr("names layer 9 of a model of 7 layers"));
    EXPECT_THAT(refusal("reference", own("target_layer_ids", {0, 1, 1})), HasSubstr("twice"));
    EXPECT_THAT(refusal("reference", own("target_layer_ids", {0, -1, 1})),
                HasSubstr("whole numbers"));
    EXPECT_THAT(refusal("reference", own("target_layer_ids", {0, 1})), HasSubstr("fc"));
    EXPECT_THAT(refusal("reference", own("mask_token_id", 67)), HasSubstr("mask_token_id"));
    EXPECT_THAT(refusal("reference", own("conv_group_size", 5)), HasSubstr("conv_group_size"));
    EXPECT_THAT(refusal("reference", own("conv_kernel_size", 3)), HasSubstr("base_kernel"));
    EXPECT_THAT(refusal("reference", own("selector_rank", 13)), HasSubstr("codebook"));
    EXPECT_THAT(refusal("reference", own("block_size", 1)), HasSubstr("block_size"));
    EXPECT_THAT(refusal("reference", top("is_causal", true)), HasSubstr("is_causal"));
    EXPECT_THAT(refusal("reference", top("num_attention_heads", 4)), HasSubstr("q_proj"));
    EXPECT_THAT(refusal("reference", top("num_hidden_layers", 4)), HasSubstr("layer_types"));
    EXPECT_THAT(refusal("reference", top("sliding_window", nullptr)), HasSubstr("sliding_window"));
    EXPECT_THAT(refusal("reference", top("architectures", {"LlamaForCausalLM"})),
                HasSubstr("LlamaForCausalLM"));
    EXPECT_THAT(refusal("plain", top("architectures", {"DFlash2DraftModel"})),
                HasSubstr("conv_kernel_size"));
    EXPECT_THAT(
        refusal("reference",
                [](nlohmann::json& json) { json["rope_parameters"]["rope_type"] = "yarn"; }),
        HasSubstr("rope_type"));
    EXPECT_THAT(refusal("reference", [](nlohmann::json& json) { json.erase("rms_norm_eps"); }),
                HasSubstr("rms_norm_eps"));
}

TEST(DrafterFolder, AMissingOrDamagedMaskVectorIsNamed) {
    const auto nothing = [](nlohmann::json&) {};
    const auto with_mask = [&](const std::string& bytes) {
        return refusal("full", nothing,
                       [&](const fs::path& at) { write_plainly(at / "mask_embedding.pt", bytes); });
    };
    EXPECT_THAT(
        refusal("full", nothing, [](const fs::path& at) { fs::remove(at / "mask_embedding.pt"); }),
        HasSubstr("mask_embedding.pt is missing"));
    const std::vector<float> values(40, 0.5f);
    const std::string good = checkpoint::torch_vector_file(values, "mask");
    EXPECT_EQ(with_mask(good), "");
    EXPECT_THAT(with_mask(checkpoint::torch_vector_file(std::span(values).first(39), "mask")),
                HasSubstr("holds 39 values"));
    EXPECT_THAT(with_mask("no archive"), HasSubstr("torch.save"));
    EXPECT_THAT(with_mask(""), HasSubstr("torch.save"));
    // No damage reads beyond the file or is taken for a vector of another length.
    const TemporaryFolder folder;
    const fs::path path = folder.path() / "mask_embedding.pt";
    std::mt19937 random(4);
    for (int trial = 0; trial < 400; ++trial) {
        std::string damaged = good;
        if (trial % 2 == 0) {
            damaged.resize(random() % good.size());
        } else {
            for (int i = 0; i < 4; ++i) {
                damaged[random() % damaged.size()] = static_cast<char>(random());
            }
        }
        write_plainly(path, damaged);
        const auto read = checkpoint::read_torch_vector(path, values.size());
        if (read.ok()) {
            EXPECT_EQ(read->size(), values.size());
        }
    }
}

TEST(DrafterFolder, AMissingTensorAndOneTooManyAreNamed) {
    const TemporaryFolder folder;
    SyntheticDrafter lacking = shape_of("reference").drafter;
    std::erase_if(lacking.weights, [](const auto& weight) {
        return weight.tensor.name == "layers.3.mlp_conv.base_kernel";
    });
    ASSERT_TRUE(synth_drafter(folder.path() / "lacking", lacking, {}).ok());
    const auto opened = Drafter::open(folder.path() / "lacking");
    ASSERT_FALSE(opened.ok());
    EXPECT_THAT(opened.error().message(), HasSubstr("layers.3.mlp_conv.base_kernel"));

    SyntheticDrafter more = shape_of("reference").drafter;
    more.weights.push_back(more.weights.back());
    more.weights.back().parts[0].header.name = "d2t";
    ASSERT_TRUE(synth_drafter(folder.path() / "more", more, {}).ok());
    const auto with_more = Drafter::open(folder.path() / "more");
    ASSERT_TRUE(with_more.ok()) << with_more.error().message();
    EXPECT_EQ((*with_more)->left_over(), std::vector<std::string>{"d2t"});
}

TEST(DrafterFolder, AnotherModelsDrafterIsRefused) {
    const Shape shape = shape_of("reference");
    const TemporaryFolder folder;
    ASSERT_TRUE(synth_drafter(folder.path() / "d", shape.drafter, {}).ok());
    const auto opened = Drafter::open(folder.path() / "d");
    ASSERT_TRUE(opened.ok());
    const auto backend = backend_of({"cpu", ops::Arithmetic::fp32, DType::f32});
    for (const int kind : {0, 1, 2}) {
        SyntheticDrafter other = shape.drafter;
        if (kind == 0) other.config.hidden = 96;
        if (kind == 1) other.config.vocabulary = 68;
        if (kind == 2) other.target_layer_count = 2;
        TappedTrunk trunk(other, 1, *backend);
        const auto loaded = Dflash2::load((*opened)->config(), trunk, **opened, *backend, {64, 64});
        ASSERT_FALSE(loaded.ok());
        EXPECT_THAT(loaded.error().message(), HasSubstr(kind == 0   ? "hidden_size"
                                                        : kind == 1 ? "vocab_size"
                                                                    : "target_layer_ids"));
    }
}

// What `percheron synth --drafter` writes has the published shapes beside a published model.
TEST(DrafterFolder, ThePublishedSizesFollowFromTheModels) {
    model::ModelConfig target;
    target.vocabulary = 154880;
    target.hidden = 4096;
    target.mixers.resize(45);
    target.context_limit = 1048576;
    for (const bool full : {false, true}) {
        const auto drafter =
            checkpoint::make_synthetic_drafter(full ? "full" : "reference", target, 1);
        ASSERT_TRUE(drafter.ok());
        std::size_t parameters = 0;
        for (const auto& weight : drafter->weights) {
            parameters += weight.bytes() / 2;
        }
        EXPECT_EQ(drafter->weights.size(), full ? 128u : 81u);
        EXPECT_EQ(parameters, full ? 3111069696u : 1171080448u);
        const auto read =
            checkpoint::parse_drafter_config(checkpoint::written_config(*drafter), "config");
        ASSERT_TRUE(read.ok()) << read.error().message();
        EXPECT_EQ(read->shape.target_layers, drafter->config.target_layers);
        EXPECT_EQ(read->shape.window(), full ? 0u : 2048u);
        if (!full) {
            EXPECT_EQ(read->shape.target_layers, (std::vector<std::size_t>{5, 14, 24, 33, 42}));
        }
    }
    EXPECT_FALSE(checkpoint::make_synthetic_drafter("other", target, 1).ok());
}

}  // namespace
}  // namespace percheron::tools
