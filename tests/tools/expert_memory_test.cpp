// --weights-memory: experts read from a model's files when they are wanted.
#include "tools/expert_memory.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expert_files.h"
#include "core/files.h"
#include "engine/reply_collector.h"
#include "support/temporary_folder.h"
#include "tools/nano_model.h"
#include "tools/synth.h"

namespace percheron::tools {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpertFiles;
using engine::testing::ReplyCollector;
using ops::FeedForwardWeights;
using ops::WeightFormat;
using ops::WeightMatrix;
using testing::HasSubstr;
using tests::TemporaryFolder;

// A model in files whose layers 1 and 2 have experts.
SynthOptions small_model(WeightFormat format) {
    SynthOptions options;
    options.spec.layers = 3;
    options.spec.dense_layers = 1;
    options.spec.vocabulary = 50;
    options.spec.hidden = 256;
    options.spec.intermediate = 128;
    options.spec.experts = 6;
    options.spec.experts_per_token = 2;
    options.spec.expert_intermediate = 128;
    options.spec.attention_heads = options.spec.kda_heads = options.spec.index_heads = 1;
    options.spec.query_rank = options.spec.latent = 128;
    options.spec.query_key_dim = options.spec.value_dim = options.spec.index_dim = 32;
    options.spec.kda_dim = 32;
    options.spec.mtp = 0;
    options.spec.vision = 0;
    options.spec.format = format;
    options.threads = 1;
    return options;
}

std::vector<FeedForwardWeights> experts_of(Checkpoint& files, std::size_t layer) {
    const model::ModelConfig& config = files.config();
    std::vector<FeedForwardWeights> experts(config.experts);
    for (std::size_t expert = 0; expert < config.experts; ++expert) {
        const std::string at = "model.language_model.layers." + std::to_string(layer) +
                               ".mlp.experts." + std::to_string(expert) + ".";
        const std::size_t width = config.expert_intermediate;
        experts[expert].gate = files.matrix(at + "gate_proj", width, config.hidden).value();
        experts[expert].up = files.matrix(at + "up_proj", width, config.hidden).value();
        experts[expert].down = files.matrix(at + "down_proj", config.hidden, width).value();
    }
    return experts;
}

void expect_same(const WeightMatrix& got, const WeightMatrix& expected) {
    ASSERT_EQ(got.format, expected.format);
    ASSERT_EQ(got.n, expected.n);
    ASSERT_EQ(got.k, expected.k);
    ASSERT_NE(got.data, expected.data);  // in memory, not in the mapped file
    std::vector<float> left(got.k), right(got.k);
    for (std::size_t row = 0; row < got.n; ++row) {
        ops::dequantise_row(got, row, left.data());
        ops::dequantise_row(expected, row, right.data());
        ASSERT_EQ(std::memcmp(left.data(), right.data(), got.k * sizeof(float)), 0) << row;
    }
}

TEST(ExpertFiles, EveryWantedExpertComesOnceWithItsBytes) {
    std::mt19937 random(31);
    for (const WeightFormat format :
         {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::w4a16, WeightFormat::nvfp4}) {
        TemporaryFolder folder;
        SynthOptions options = small_model(format);
        options.shards = 1 + random() % 3;
        options.split_pairs = options.shards > 1;
        ASSERT_TRUE(synth(folder.path() / "model", options).ok());
        const auto files = Checkpoint::open(folder.path() / "model").value();
        ExpertFiles& store = files->keep_experts_in_files(3);
        std::map<std::uint32_t, std::vector<FeedForwardWeights>> layers;
        for (const std::size_t layer : {1, 2}) {
            auto experts = experts_of(*files, layer);
            const auto streamed = files->stream(
                "model.language_model.layers." + std::to_string(layer) + ".mlp.", experts);
            ASSERT_TRUE(streamed.ok());
            ASSERT_EQ(streamed.value().store, &store);
            layers[streamed.value().layer] = std::move(experts);
        }
        ASSERT_EQ(store.experts(), 12u);
        const std::size_t places = 1 + random() % 8;
        ASSERT_TRUE(store.start(places, Bytes{random() % 2} << 20).ok());
        std::uint64_t wanted = 0;
        for (int round = 0; round < 60; ++round) {
            const auto layer = static_cast<std::uint32_t>(random() % 2);
            std::vector<std::uint32_t> want;
            for (std::uint32_t expert = 0; expert < 6; ++expert)
                if (random() % 2 == 0) want.push_back(expert);
            store.want(layer, want);
            std::vector<std::uint32_t> got;
            // Whoever counts needs no empty answer.
            const bool counts = random() % 2 == 0;
            while (!counts || got.size() < want.size()) {
                const auto group = store.next();
                if (group.empty()) break;
                ASSERT_LE(group.size(), places);
                for (const auto& present : group) {
                    got.push_back(present.expert);
                    const FeedForwardWeights& expected = layers[layer][present.expert];
                    expect_same(present.weights->gate, expected.gate);
                    expect_same(present.weights->up, expected.up);
                    expect_same(present.weights->down, expected.down);
                }
            }
            ASSERT_TRUE(store.status().ok());
            std::sort(got.begin(), got.end());
            ASSERT_EQ(got, want);
            wanted += want.size();
        }
        const ExpertFiles::Figures figures = store.figures();
        EXPECT_EQ(figures.wanted, wanted);
        EXPECT_GT(figures.read, 0u);
        EXPECT_LE(figures.read, wanted);
        EXPECT_LE(figures.bytes_read, figures.read * store.place_bytes());
    }
}

// What is wanted often stays, and is not read again.
TEST(ExpertFiles, WhatIsWantedOftenStays) {
    TemporaryFolder folder;
    ASSERT_TRUE(synth(folder.path() / "model", small_model(WeightFormat::w4a16)).ok());
    const auto files = Checkpoint::open(folder.path() / "model").value();
    ExpertFiles& store = files->keep_experts_in_files(3);
    const auto experts = experts_of(*files, 1);
    ASSERT_TRUE(files->stream("model.language_model.layers.1.mlp.", experts).ok());
    ASSERT_TRUE(store.start(3, 0).ok());
    const auto use = [&](std::vector<std::uint32_t> want) {
        store.want(0, want);
        while (!store.next().empty()) {
        }
    };
    for (int i = 0; i < 4; ++i)
        use({0, 5});
    EXPECT_EQ(store.figures().read, 2u);
    for (std::uint32_t other = 1; other < 5; ++other) {
        use({other});
        use({0, 5});
    }
    EXPECT_EQ(store.figures().read, 6u);
}

TEST(ExpertFiles, DamageIsNamed) {
    struct Damage {
        WeightFormat format;
        const char* what;
        const char* said;
    };
    for (const Damage& damage : {Damage{WeightFormat::fp8_block, "shorter", "shorter"},
                                 Damage{WeightFormat::fp8_block, "codes", "NaN"},
                                 Damage{WeightFormat::fp8_block, "scales", "NaN"},
                                 Damage{WeightFormat::w4a16, "scales", "NaN"},
                                 Damage{WeightFormat::nvfp4, "scales", "NaN"}}) {
        const std::string what = damage.what;
        TemporaryFolder folder;
        ASSERT_TRUE(synth(folder.path() / "model", small_model(damage.format)).ok());
        const std::filesystem::path file = folder.path() / "model" / "model.safetensors";
        const auto files = Checkpoint::open(folder.path() / "model").value();
        ExpertFiles& store = files->keep_experts_in_files(3);
        const auto experts = experts_of(*files, 2);
        ASSERT_TRUE(files->stream("model.language_model.layers.2.mlp.", experts).ok());
        const auto* const base = files->shards().files().front().mapping().bytes().data();
        const ops::WeightMatrix& up = experts[4].up;
        const void* const damaged = what == "scales" ? up.scales : up.data;
        const auto place = static_cast<const std::byte*>(damaged) - base;
        ASSERT_TRUE(store.start(6, 0).ok());
        if (what == "shorter") {
            std::filesystem::resize_file(file, static_cast<std::uintmax_t>(place + 100));
        } else {
            // NaN as F32 or BF16 where a number ends there, and as an FP8 code.
            std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
            stream.seekp(place + (what == "scales" ? 2 : 78)).write("\xff\x7f", 2);
        }
        const std::vector<std::uint32_t> want = {4};
        store.want(0, want);
        EXPECT_TRUE(store.next().empty());
        ASSERT_FALSE(store.status().ok()) << what;
        EXPECT_EQ(store.status().error().code(), ErrorCode::corrupt);
        EXPECT_THAT(store.status().error().message(), HasSubstr(file.string()));
        EXPECT_THAT(store.status().error().message(), HasSubstr(damage.said));
    }
}

class ExpertMemoryOnNano : public NanoModel {
  protected:
    static std::vector<std::vector<TokenId>> replies(const LoadOptions& options) {
        const std::unique_ptr<Engine> engine = load(options);
        ReplyCollector collector;
        std::vector<RequestId> ids;
        for (const std::size_t length : {1u, 70u, 600u}) {
            GenerationRequest request;
            request.prompt.assign(text().begin(), text().begin() + static_cast<long>(length));
            request.sampling.temperature = length == 70 ? 1.0f : 0.0f;
            request.sampling.seed = 5;
            request.max_tokens = 24;
            request.ignore_eos = true;
            ids.push_back(engine->submit(request, collector).value());
        }
        collector.wait_for(ids.size());
        std::vector<std::vector<TokenId>> tokens;
        for (const RequestId id : ids)
            tokens.push_back(collector.reply(id).tokens);
        return tokens;
    }

    // What every token needs, and all experts.
    static std::pair<Bytes, Bytes> parts() {
        const auto files = Checkpoint::open(folder()).value();
        const Bytes experts = files->expert_bytes(files->config().layers());
        return {files->mapped_bytes() - experts, experts};
    }
};

// Prompts want every expert of a layer, more than there are places; replies a few.
TEST_F(ExpertMemoryOnNano, PartOfTheExpertsGivesTheSameIds) {
    LoadOptions options = this->options(Bytes{32} << 20, 4);
    const auto expected = replies(options);
    const auto [others, experts] = parts();
    ASSERT_GT(experts, others / 8);
    for (const auto& [threads, share] : {std::pair{1u, 0.5}, {2u, 0.1}}) {
        options.threads = threads;
        options.weights_memory = others + static_cast<Bytes>(share * static_cast<double>(experts));
        EXPECT_EQ(replies(options), expected) << threads << " " << share;
    }
}

TEST_F(ExpertMemoryOnNano, RefusesInWords) {
    const tests::QuietLog quiet;
    const auto message = [](const LoadOptions& options) {
        const auto engine = load_engine(options, tokenizer());
        return engine.ok() ? std::string() : engine.error().message();
    };
    LoadOptions options = this->options(Bytes{32} << 20, 4);
    options.weights_memory = parts().first;
    EXPECT_THAT(message(options), HasSubstr("does not hold what every token needs"));
    EXPECT_THAT(message(options), HasSubstr("name at least"));
    // What it names is enough.
    options.weights_memory = parts().first + parts().second / 4;
    EXPECT_EQ(message(options), "");
    options.folder = "synth:layers=2";
    options.weights_memory = 1;
    EXPECT_THAT(message(options), HasSubstr("percheron synth"));
}

TEST(ExpertExpectation, AddsTheDisksTimeToTheMemorys) {
    ExpertExpectation expected;
    expected.experts = 128;
    expected.in_memory = 32;
    expected.bytes_from_disk = 50e6;
    expected.disk_rate = 1e9;
    expected.bytes_from_memory = 1e9;
    expected.memory_rate = 20e9;
    EXPECT_DOUBLE_EQ(expected.tokens_per_second(), 10);
    EXPECT_THAT(expected.text(), HasSubstr("32 of 128 in memory"));
    EXPECT_THAT(expected.text(), HasSubstr("10.00 tok/s"));
}

}  // namespace
}  // namespace percheron::tools
