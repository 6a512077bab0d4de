#include "checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/small_model.h"

namespace percheron::checkpoint::test {
namespace {

using model::FeedForwardKind;
using model::MixerKind;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Result<model::ModelConfig> read(const Json& config, const Json& generation = Json()) {
    const TemporaryFolder folder;
    EXPECT_TRUE(write_text_file(folder.path() / "config.json", config.dump()).ok());
    if (!generation.is_null()) {
        EXPECT_TRUE(
            write_text_file(folder.path() / "generation_config.json", generation.dump()).ok());
    }
    return read_config(folder.path());
}

std::string refusal(const Json& config, const Json& generation = Json()) {
    const auto result = read(config, generation);
    if (result.ok()) return "";
    EXPECT_THAT(result.error().message(), HasSubstr("config.json"));
    return result.error().message();
}

TEST(Config, ReadsEveryFieldOfTheNestedForm) {
    Json json = small_config();
    Json& text = json["text_config"];
    text["hidden_size"] = 48;
    json["vision_config"]["out_hidden_size"] = 48;
    text["index_kpool"] = 8;
    text["rms_norm_eps"] = 2e-5;
    text["swiglu_limit"] = 7.5;
    text["linear_attn_config"]["gate_lower_bound"] = -4.0;
    json["vision_config"]["rope_parameters"] = {{"rope_type", "axial"}, {"rope_theta", 500.0}};
    const auto result = read(json);
    ASSERT_TRUE(result.ok()) << result.error().message();
    const model::ModelConfig& config = *result;
    EXPECT_EQ(config.vocabulary, 40u);
    EXPECT_EQ(config.hidden, 48u);
    EXPECT_EQ(config.dense_intermediate, 16u);
    EXPECT_EQ(config.expert_intermediate, 16u);
    EXPECT_THAT(config.mixers,
                ElementsAre(MixerKind::kda, MixerKind::sparse_attention, MixerKind::kda));
    EXPECT_THAT(config.feed_forward, ElementsAre(FeedForwardKind::dense, FeedForwardKind::experts,
                                                 FeedForwardKind::experts));
    EXPECT_EQ(config.attention_heads, 2u);
    EXPECT_EQ(config.query_rank, 16u);
    EXPECT_EQ(config.latent, 24u);
    EXPECT_EQ(config.query_key_dim, 8u);
    EXPECT_EQ(config.value_dim, 12u);
    EXPECT_EQ(config.index_heads, 2u);
    EXPECT_EQ(config.index_dim, 8u);
    EXPECT_EQ(config.index_pool, 8u);
    EXPECT_EQ(config.index_topk, 16u);
    EXPECT_EQ(config.kda_heads, 2u);
    EXPECT_EQ(config.kda_dim, 8u);
    EXPECT_EQ(config.kda_conv, 4u);
    EXPECT_EQ(config.kda_gate_lower_bound, -4.0f);
    EXPECT_EQ(config.experts, 3u);
    EXPECT_EQ(config.experts_per_token, 2u);
    EXPECT_EQ(config.shared_experts, 1u);
    EXPECT_TRUE(config.normalise_router_weights);
    EXPECT_EQ(config.router_scale, 2.5f);
    EXPECT_EQ(config.swiglu_limit, 7.5f);
    EXPECT_EQ(config.streams, 4u);
    EXPECT_EQ(config.sinkhorn_iterations, 20u);
    EXPECT_EQ(config.mhc_eps, 1e-6f);
    EXPECT_EQ(config.rms_norm_eps, 2e-5f);
    EXPECT_EQ(config.context_limit, 4096u);
    EXPECT_EQ(config.mtp_layers, 1u);
    EXPECT_EQ(config.image_token, TokenId{35});
    EXPECT_EQ(config.image_start_token, TokenId{33});
    EXPECT_EQ(config.image_end_token, TokenId{34});
    EXPECT_EQ(config.video_token, TokenId{36});
    ASSERT_TRUE(config.has_vision);
    EXPECT_EQ(config.vision.depth, 1u);
    EXPECT_EQ(config.vision.hidden, 16u);
    EXPECT_EQ(config.vision.heads, 2u);
    EXPECT_EQ(config.vision.intermediate, 24u);
    EXPECT_EQ(config.vision.patch, 2u);
    EXPECT_EQ(config.vision.out_hidden, 48u);
    EXPECT_EQ(config.vision.projection_intermediate, 32u);
    EXPECT_EQ(config.vision.rope_theta, 500.0f);
}

TEST(Config, TheFlatFormMeansTheSame) {
    const Json nested = small_config();
    Json flat = nested["text_config"];
    const auto result = read(flat);
    ASSERT_TRUE(result.ok()) << result.error().message();
    EXPECT_FALSE(result->has_vision);
    EXPECT_EQ(result->layers(), 3u);
    EXPECT_THAT(result->stop_tokens, ElementsAre(TokenId{30}, TokenId{31}));
    flat["model_type"] = "glm5_next";
    EXPECT_EQ(refusal(flat), "");
    flat["vision_config"] = nested["vision_config"];
    EXPECT_THAT(refusal(flat), HasSubstr("image_token_id"));
    flat["image_token_id"] = 35;
    EXPECT_TRUE(read(flat)->has_vision);
}

TEST(Config, LayerKindsMayComeFromListsOrCounts) {
    Json json = small_config();
    json["text_config"].erase("layer_types");
    json["text_config"].erase("mlp_layer_types");
    const auto result = read(json);
    ASSERT_TRUE(result.ok()) << result.error().message();
    // kda_layers is 0-based.
    EXPECT_THAT(result->mixers,
                ElementsAre(MixerKind::kda, MixerKind::sparse_attention, MixerKind::kda));
    EXPECT_THAT(result->feed_forward, ElementsAre(FeedForwardKind::dense, FeedForwardKind::experts,
                                                  FeedForwardKind::experts));
    json["text_config"]["linear_attn_config"].erase("kda_layers");
    EXPECT_THAT(refusal(json), HasSubstr("layer_types"));
}

TEST(Config, AFieldTheNetworkNeedsHasNoDefault) {
    const Json whole = small_config();
    for (const char* field : {"vocab_size",
                              "hidden_size",
                              "num_hidden_layers",
                              "intermediate_size",
                              "moe_intermediate_size",
                              "num_attention_heads",
                              "q_lora_rank",
                              "kv_lora_rank",
                              "qk_nope_head_dim",
                              "qk_rope_head_dim",
                              "v_head_dim",
                              "index_n_heads",
                              "index_head_dim",
                              "index_topk",
                              "index_kpool",
                              "n_routed_experts",
                              "num_experts_per_tok",
                              "n_shared_experts",
                              "norm_topk_prob",
                              "routed_scaling_factor",
                              "swiglu_limit",
                              "hc_mult",
                              "hc_sinkhorn_iters",
                              "hc_eps",
                              "rms_norm_eps",
                              "max_position_embeddings",
                              "linear_attn_config"}) {
        Json json = whole;
        ASSERT_EQ(json["text_config"].erase(field), 1u) << field;
        EXPECT_THAT(refusal(json),
                    AllOf(HasSubstr(std::string("text_config.") + field), HasSubstr("missing")))
            << field;
        json["text_config"][field] = nullptr;
        EXPECT_THAT(refusal(json), HasSubstr(field));
        json["text_config"][field] = "7";
        EXPECT_THAT(refusal(json), HasSubstr(field));
        if (whole["text_config"][field].is_number()) {
            for (const Json& bad : {Json(-1), Json(1e300), Json(18446744073709551615ull)}) {
                json["text_config"][field] = bad;
                EXPECT_THAT(refusal(json), HasSubstr(field)) << field << " " << bad;
            }
        }
    }
    for (const char* field :
         {"num_heads", "head_dim", "short_conv_kernel_size", "gate_lower_bound"}) {
        Json json = whole;
        json["text_config"]["linear_attn_config"].erase(field);
        EXPECT_THAT(refusal(json), HasSubstr(std::string("linear_attn_config.") + field));
    }
    for (const char* field :
         {"depth", "hidden_size", "num_heads", "intermediate_size", "patch_size",
          "temporal_patch_size", "spatial_merge_size", "in_channels", "out_hidden_size",
          "projection_intermediate_size", "rms_norm_eps", "swiglu_limit"}) {
        Json json = whole;
        json["vision_config"].erase(field);
        EXPECT_THAT(refusal(json), HasSubstr(std::string("vision_config.") + field));
    }
}

TEST(Config, WhatTheEngineDoesNotComputeIsRefused) {
    const std::vector<std::pair<const char*, Json>> cases = {
        {"qk_rope_head_dim", 64},
        {"tie_word_embeddings", true},
        {"attention_bias", true},
        {"hidden_act", "gelu"},
        {"n_group", 2},
        {"topk_group", 2},
        {"scoring_func", "softmax"},
        {"topk_method", "greedy"},
        {"mhc", false},
        {"index_kpool_compress", false},
        {"num_key_value_heads", 1},
        {"qk_head_dim", 9},
        {"index_topk", 18},
        {"num_experts_per_tok", 4},
        {"mla_use_nope", false},
        {"index_kpool_always_select_tail", false},
        {"layer_types", {"linear_attention", "full_attention", "linear_attention"}},
        {"layer_types", {"linear_attention"}},
        {"mlp_layer_types", {"dense", "dense", "odd"}},
        {"indexer_types", {"full", "shared", "full"}},
        {"eos_token_id", {30, 40}},
        {"pad_token_id", -1},
    };
    for (const auto& [field, value] : cases) {
        Json json = small_config();
        json["text_config"][field] = value;
        EXPECT_THAT(refusal(json), HasSubstr(std::string("text_config.") + field)) << value;
    }
    Json json = small_config();
    json["model_type"] = "glm4_moe";
    EXPECT_THAT(refusal(json), AllOf(HasSubstr("model_type"), HasSubstr("glm4_moe")));
    json.erase("model_type");
    EXPECT_THAT(refusal(json), HasSubstr("model_type is missing"));
    json = small_config();
    json["vision_config"]["out_hidden_size"] = 17;
    EXPECT_THAT(refusal(json), HasSubstr("vision_config.out_hidden_size"));
    json = small_config();
    json["vision_config"]["num_heads"] = 3;
    EXPECT_THAT(refusal(json), HasSubstr("vision_config.num_heads"));
}

TEST(Config, AHeadDimOfZeroIsHarmless) {
    Json json = small_config();
    for (const Json& value : {Json(0), Json(nullptr), Json(128)}) {
        json["text_config"]["head_dim"] = value;
        EXPECT_EQ(refusal(json), "");
    }
}

TEST(Config, StopTokensAreTheUnionOfEveryFile) {
    Json json = small_config();
    json["eos_token_id"] = 31;
    json["text_config"]["eos_token_id"] = {30, 31};
    const auto result =
        read(json, {{"eos_token_id", {32, 30}}, {"temperature", 0.6}, {"top_p", 0.8}});
    ASSERT_TRUE(result.ok()) << result.error().message();
    EXPECT_THAT(result->stop_tokens, ElementsAre(TokenId{31}, TokenId{30}, TokenId{32}));
    EXPECT_EQ(result->default_temperature, 0.6f);
    EXPECT_EQ(result->default_top_p, 0.8f);
    EXPECT_EQ(result->pad_token, TokenId{30});
}

TEST(Config, AModelThatNeverStopsIsRefused) {
    Json json = small_config();
    json.erase("eos_token_id");
    json["text_config"].erase("eos_token_id");
    EXPECT_THAT(refusal(json), HasSubstr("eos_token_id"));
    EXPECT_EQ(refusal(json, {{"eos_token_id", 30}}), "");
    EXPECT_THAT(refusal(json, {{"eos_token_id", 99}}), HasSubstr("generation_config.json"));
    json["text_config"].erase("pad_token_id");
    EXPECT_EQ(read(json, {{"eos_token_id", {33, 30}}})->pad_token, TokenId{33});
}

TEST(Config, GreedyGenerationConfigsAreHonoured) {
    const auto result = read(small_config(), {{"do_sample", false}, {"temperature", 0.6}});
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->default_temperature, 0.0f);
    EXPECT_THAT(refusal(small_config(), {{"top_p", 1.5}}), HasSubstr("top_p"));
    EXPECT_THAT(refusal(small_config(), {{"temperature", -1}}), HasSubstr("temperature"));
}

TEST(Config, WhatIsNoObjectIsRefused) {
    const TemporaryFolder folder;
    EXPECT_EQ(read_config(folder.path()).error().code(), ErrorCode::not_found);
    for (const std::string& text : {std::string(), std::string("[]"), std::string("{\"a\":"),
                                    std::string("7"), std::string(100000, '[')}) {
        ASSERT_TRUE(write_text_file(folder.path() / "config.json", text).ok());
        EXPECT_THAT(read_config(folder.path()).error().message(), HasSubstr("not a JSON object"));
    }
    for (const char* field : {"text_config", "vision_config"}) {
        Json json = small_config();
        json[field] = 7;
        EXPECT_THAT(refusal(json), AllOf(HasSubstr(field), HasSubstr("object")));
    }
}

}  // namespace
}  // namespace percheron::checkpoint::test
