#include "checkpoint/quantization_config.h"

#include <algorithm>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"

namespace percheron::checkpoint::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

ModuleList list_of(const std::vector<std::string>& entries) {
    ModuleList list;
    for (const std::string& entry : entries) {
        const Status status = list.add(entry);
        EXPECT_TRUE(status.ok()) << status.error().message();
    }
    return list;
}

bool names(const ModuleList& list, const std::string& stem) {
    MatchBudget budget;
    return list.contains(stem, budget);
}

TEST(ModuleList, UnderstandsHowToolsWriteModules) {
    const std::string q = layer_prefix(3) + "self_attn.q_proj";
    const std::string expert = layer_prefix(3) + "mlp.experts.7.up_proj";
    const std::vector<std::pair<std::string, bool>> for_q = {
        {"model.language_model.layers.3.self_attn.q_proj", true},
        {"model.layers.3.self_attn.q_proj", true},
        {"language_model.model.layers.3.self_attn.q_proj", true},
        {"model.layers.3.self_attn", true},
        {"model.layers.3", true},
        {"model.layers.33", false},
        {"model.layers.3.self_attn.q_proj_extra", false},
        {"model.layers.*.self_attn.q_proj", true},
        {"model.layers.?.self_attn.*", true},
        {"*self_attn*", true},
        {"*.mlp.*", false},
        {"self_attn", false},
        {"re:.*self_attn.*", true},
        {"re:model\\.layers\\.\\d+\\.self_attn\\.[qkv]_proj$", true},
        {"re:layers", true},
        {"re:self_attn", false},  // matched from the start
        {"re:.*experts.*", false},
        {"Linear", false},
    };
    for (const auto& [entry, expected] : for_q) {
        EXPECT_EQ(names(list_of({entry}), q), expected) << entry;
    }
    EXPECT_TRUE(list_of({"Linear"}).every_linear());
    EXPECT_TRUE(names(list_of({"re:.*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$"}), expert));
    EXPECT_FALSE(names(list_of({}), q));
    EXPECT_FALSE(ModuleList().add("re:(").ok());
}

// Expressions that backtrack without end on names as networks have them.
std::vector<std::string> evil_expressions() {
    std::vector<std::string> evil = {
        "re:(.*a)*(.*b)*(.+)+(x+x+)+y$",
        "re:(a+)+(b+)+(a|b|ab)*$x",
        "re:((.+)+)+$x",
        "re:(.|.)*Z",
        "re:(?:.?){60}.{60}Q",
        "re:^(.*?,){11}P",
        "re:(([a-z_.]+)+[0-9]*)+!",
        "re:(\\w|\\w\\w|\\w\\.)+#",
        "re:.*.*.*.*.*.*.*.*Q",
        "re:(.*)(.*)(.*)(.*)(.*)\\1\\2\\3Q",
        "re:(?=(.+)+Q).*",
        "re:(?<!x)(.+)*(.+)*Q",
        "re:(?|(.+)|(.*))+Q",
        "re:(.+(?R)?)+Q",
        "re:(?>(.+)+)Q|(.+)+Q",
    };
    // The same kinds, made: a repetition of repetitions that cannot end well.
    std::mt19937_64 random(1);
    const char* const atoms[] = {".", "[a-z]", "\\w", "(?:a|.)", "[^Q]", "(l|.)"};
    const char* const ends[] = {"Q", "#$", "!", "$x", "(?!)", "\\bQ\\b"};
    for (int i = 0; i < 60; ++i) {
        std::string text = atoms[random() % std::size(atoms)];
        for (std::size_t depth = 2 + random() % 3; depth > 0; --depth) {
            text = (random() % 2 == 0 ? "(" : "(?:") + text + (random() % 2 == 0 ? "+" : "*") + ")";
        }
        evil.push_back("re:" + text + "+" + text + "*" + ends[random() % std::size(ends)]);
    }
    return evil;
}

TEST(ModuleList, WhatTakesTooLongIsGivenUpOnceAndNamed) {
    std::vector<std::string> stems = {std::string(3000, 'a')};
    for (int layer = 0; layer < 20; ++layer) {
        for (int expert = 0; expert < 20; ++expert) {
            stems.push_back(layer_prefix(static_cast<std::size_t>(layer)) + "mlp.experts." +
                            std::to_string(expert) + ".down_proj");
        }
    }
    for (const std::string& evil : evil_expressions()) {
        const ModuleList list = list_of({evil, "re:.*down_proj$"});
        MatchBudget budget;
        for (const std::string& stem : stems) {
            // The entry beside it is none the worse.
            ASSERT_EQ(list.contains(stem, budget), stem.ends_with("down_proj")) << evil;
        }
        // One match that went too far, and what the sound one takes.
        EXPECT_LE(MatchBudget::default_steps - budget.left(),
                  MatchBudget::steps_of_a_match + 5000 * stems.size())
            << evil;
        for (const std::string& entry : budget.given_up())
            EXPECT_EQ(entry, evil);
        EXPECT_EQ(budget.complaints().size(), budget.given_up().size());
    }
    MatchBudget budget;
    const ModuleList list = list_of({evil_expressions().front()});
    EXPECT_FALSE(list.contains(stems.back(), budget));
    EXPECT_THAT(budget.complaints(), ElementsAre(AllOf(HasSubstr("'re:(.*a)*(.*b)*(.+)+(x+x+)+y$'"),
                                                       HasSubstr("takes too long"))));
}

// Neither do many entries that are each cheap enough add up to a wait.
TEST(ModuleList, AllListsTogetherHaveOneBudget) {
    for (const std::string entry : {"re:(.*x)*$", "*a*b*c*d*", "plain.name", "re:.*l.*l.*Q"}) {
        std::vector<std::string> entries;
        for (int i = 0; i < 300; ++i)
            entries.push_back(entry + (entry == "plain.name" ? std::to_string(i) : ""));
        const ModuleList list = list_of(entries);
        MatchBudget budget(100'000);
        std::size_t asked = 0;
        const std::string stem = layer_prefix(3) + "mlp.experts.7.up_proj";
        while (!budget.exhausted()) {
            const std::uint64_t before = budget.left();
            list.contains(stem, budget);
            ASSERT_LT(budget.left(), before);
            ++asked;
        }
        EXPECT_LE(asked, 100'000u);
        EXPECT_FALSE(list_of({stem}).contains(stem, budget));
        EXPECT_THAT(budget.complaints(), Contains(HasSubstr("from some weight on")));
    }
    // Expressions that are each cheap, but too many: none of them is named as slow.
    std::vector<std::string> many_entries;
    for (int i = 0; i < 2000; ++i)
        many_entries.push_back("re:.*l.*p[0-9]{2,}x" + std::to_string(i));
    const ModuleList cheap = list_of(many_entries);
    MatchBudget spent(1'000'000);
    while (!spent.exhausted())
        cheap.contains(layer_prefix(3) + "mlp.experts.7.up_proj", spent);
    EXPECT_THAT(spent.given_up(), IsEmpty());
    EXPECT_THAT(spent.complaints(), ElementsAre(HasSubstr("from some weight on")));
    // A message stays a line, whatever the file says.
    MatchBudget many;
    for (int i = 0; i < 1000; ++i)
        many.give_up("re:" + std::string(100'000, 'a') + std::to_string(i));
    EXPECT_EQ(many.complaints().size(), 11u);
    for (const std::string& complaint : many.complaints())
        EXPECT_LT(complaint.size(), 200u);
    EXPECT_LT(ModuleList().add("re:" + std::string(1'000'000, '(')).error().message().size(), 200u);
}

// Names without the text that an expression needs are not tried: the answer is as if they were.
// Behind "(?:" nothing is known to be needed.
TEST(ModuleList, WhatIsNeededIsNeeded) {
    std::mt19937_64 random(4);
    const char* const atoms[] = {"layers",  "q_proj", "mlp",   "\\.",       ".",    "\\d", "[a-z]",
                                 "[^.]",    "[]x]",   "(mlp)", "(up|gate)", "(x)?", "w",   "_",
                                 "experts", "\\w",    "7",     "$",         "^",    "-",   "\\-"};
    const char* const repeats[] = {"", "", "", "", "*", "+", "?", "{0,2}", "{1,}", "*?", "+?"};
    std::vector<std::string> stems;
    for (const std::string rest : {"mlp.experts.7.up_proj", "self_attn.q_proj", "mlp.gate"})
        stems.push_back(layer_prefix(random() % 40) + rest);
    std::size_t matched = 0, cheaper = 0;
    for (int trial = 0; trial < 20'000; ++trial) {
        std::string text = random() % 2 == 0 ? ".*" : "";
        for (std::size_t parts = 1 + random() % 5; parts > 0; --parts) {
            text += atoms[random() % std::size(atoms)];
            text += repeats[random() % std::size(repeats)];
        }
        ModuleList plain, wrapped;
        if (!plain.add("re:" + text).ok()) continue;
        ASSERT_TRUE(wrapped.add("re:(?:" + text + ")").ok()) << text;
        for (const std::string& stem : stems) {
            MatchBudget one, other;
            const bool found = plain.contains(stem, one);
            ASSERT_EQ(found, wrapped.contains(stem, other)) << text << " " << stem;
            matched += found ? 1 : 0;
            cheaper += one.left() > other.left() ? 1 : 0;
        }
    }
    EXPECT_GT(matched, 2000u);
    EXPECT_GT(cheaper, 10'000u);
}

// Experts packed, everything else BF16; the config lists what is not packed.
class MixedPrecision : public testing::Test {
  protected:
    MixedPrecision() {
        small_ = small_model(1, small_config(128), [](const ExpectedTensor& tensor) {
            return tensor.role == TensorRole::routed_expert && tensor.part != NetworkPart::mtp
                       ? WeightFormat::w4a16
                       : WeightFormat::bf16;
        });
        const model::ModelConfig config = small_.parsed();
        for (std::size_t i = 0; i < config.layers(); ++i) {
            for (const ExpectedTensor& tensor : layer_tensors(config, i)) {
                if (tensor.role == TensorRole::matrix) listed_.push_back(stem_of(tensor.name));
            }
        }
        listed_.push_back("lm_head");
    }

    // The account of a folder whose config lists `ignore` under other prefixes than the tensors
    // have.
    Inventory account(std::vector<std::string> ignore, const std::string& stored_prefix) {
        for (std::string& name : ignore) {
            if (name.starts_with(text_prefix)) name = "model." + name.substr(text_prefix.size());
        }
        ignore.push_back("re:.*visual.*");
        SmallModel small = small_;
        small.config["quantization_config"] = {
            {"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"config_groups",
             {{"group_0",
               {{"targets", {"Linear"}}, {"weights", {{"num_bits", 4}, {"group_size", 128}}}}}}},
            {"ignore", ignore}};
        small.tensors.clear();
        for (const auto& [name, tensor] : small_.tensors) {
            std::string stored = name;
            if (name.starts_with(text_prefix)) {
                stored = stored_prefix + name.substr(text_prefix.size());
            }
            small.tensors[stored] = tensor;
        }
        const TemporaryFolder folder;
        small.write(folder.path());
        return Checkpoint::inspect(folder.path());
    }

    std::vector<std::string> mtp_linears() const {
        std::vector<std::string> stems;
        for (const ExpectedTensor& tensor : layer_tensors(small_.parsed(), 3)) {
            const std::string stem = stem_of(tensor.name);
            if (tensor.role != TensorRole::plain && stem != tensor.name &&
                !stem.ends_with("mlp.gate")) {
                stems.push_back(stem);
            }
        }
        return stems;
    }

    SmallModel small_;
    std::vector<std::string> listed_;
};

TEST_F(MixedPrecision, RunsUnderAnyPrefixWithTheMtpLayerForgottenByTheList) {
    const Inventory inventory = account(listed_, "language_model.model.");
    EXPECT_TRUE(inventory.runnable());
    EXPECT_TRUE(inventory.mtp);
    EXPECT_THAT(inventory.unclassified, IsEmpty());
    EXPECT_EQ(inventory.formats.at("w4a16").tensors, 2u * 3u * 3u);
    EXPECT_GE(inventory.ignored.size(), listed_.size());
    // The layer that the list forgets is BF16 on disk, is read as such and is named.
    ASSERT_EQ(inventory.disagreements.size(), 1u);
    EXPECT_EQ(inventory.disagreements[0].what, "stored as bf16 but not exempt");
    EXPECT_EQ(inventory.disagreements[0].weights, mtp_linears());
    EXPECT_THAT(inventory.warnings, ElementsAre(HasSubstr(mtp_linears().front())));
    EXPECT_THAT(summary(inventory), HasSubstr("0 unclassified; MTP found"));
}

TEST_F(MixedPrecision, AnEntryThatIsMissingIsNamedAndChangesNothing) {
    for (const std::string& stem : mtp_linears())
        listed_.push_back(stem);
    const Inventory whole = account(listed_, "model.language_model.");
    EXPECT_THAT(whole.warnings, IsEmpty());
    const std::string forgotten = layer_prefix(1) + "self_attn.q_a_proj";
    ASSERT_EQ(std::erase(listed_, forgotten), 1u);
    const Inventory inventory = account(listed_, "model.language_model.");
    EXPECT_TRUE(inventory.runnable());
    EXPECT_THAT(inventory.warnings,
                ElementsAre("quantization_config: 1 weight stored as bf16 but not exempt: " +
                            forgotten + "; the files decide"));
    EXPECT_EQ(inventory.ignored.size() + 1, whole.ignored.size());
    EXPECT_EQ(inventory.formats.at("w4a16").bytes, whole.formats.at("w4a16").bytes);
}

TEST_F(MixedPrecision, AnEntryTooManyIsNamed) {
    for (const std::string& stem : mtp_linears())
        listed_.push_back(stem);
    const std::string packed = layer_prefix(2) + "mlp.experts.1.down_proj";
    listed_.push_back(packed);
    const Inventory inventory = account(listed_, "model.");
    EXPECT_TRUE(inventory.runnable());
    EXPECT_THAT(inventory.warnings,
                ElementsAre("quantization_config: 1 weight stored as w4a16 but exempt: " + packed +
                            "; the files decide"));
}

TEST_F(MixedPrecision, AClaimThatCannotBeReadIsAWarning) {
    const std::vector<Json> claims = {
        Json(7), Json::array(), {{"ignore", 7}}, {{"ignore", {1}}}, {{"ignore", {"re:("}}}};
    for (const Json& claim : claims) {
        SmallModel small = small_;
        small.config["quantization_config"] = claim;
        const TemporaryFolder folder;
        small.write(folder.path());
        const Inventory inventory = Checkpoint::inspect(folder.path());
        EXPECT_TRUE(inventory.runnable());
        EXPECT_THAT(inventory.warnings, ElementsAre(HasSubstr("quantization_config"))) << claim;
    }
}

TEST_F(MixedPrecision, TheListOfAnotherFileCountsWhenConfigHasNone) {
    SmallModel small = small_;
    const TemporaryFolder folder;
    small.write(folder.path());
    EXPECT_THAT(Checkpoint::inspect(folder.path()).ignored, IsEmpty());
    EXPECT_THAT(Checkpoint::inspect(folder.path()).warnings,
                ElementsAre(AllOf(HasSubstr("18 weights stored as w4a16, but there is none"),
                                  HasSubstr("layers.{1-2}.mlp.experts.{0-2}.up_proj"))));
    ASSERT_TRUE(
        write_text_file(folder.path() / "hf_quant_config.json",
                        R"({"quantization": {"exclude_modules": ["lm_head", "model.layers.0*"]}})")
            .ok());
    const Inventory inventory = Checkpoint::inspect(folder.path());
    EXPECT_THAT(inventory.ignored, Contains("lm_head"));
    EXPECT_THAT(inventory.ignored, Contains(layer_prefix(0) + "self_attn.q_proj"));
    EXPECT_THAT(inventory.ignored, Not(Contains(layer_prefix(1) + "self_attn.q_a_proj")));
}

TEST_F(MixedPrecision, APatternThatTakesTooLongIsNamedAndTheRestCounts) {
    for (const std::string& stem : mtp_linears())
        listed_.push_back(stem);
    const Inventory whole = account(listed_, "model.");
    for (const std::string& evil : evil_expressions()) {
        std::vector<std::string> listed = listed_;
        listed.insert(listed.begin(), evil);
        const Inventory inventory = account(listed, "model.");
        EXPECT_TRUE(inventory.runnable());
        EXPECT_EQ(inventory.ignored, whole.ignored) << evil;
        EXPECT_THAT(inventory.disagreements, IsEmpty()) << evil;
        EXPECT_LE(inventory.warnings.size(), 1u);
        for (const std::string& warning : inventory.warnings)
            EXPECT_THAT(warning, AllOf(HasSubstr(shortened(evil)), HasSubstr("takes too long")));
    }
}

// ---- what a config says of the numbers

// A form that experts are stored in, and configs that say so: of the first one, each of the changes
// makes another.
struct DescribedForm {
    const char* name;
    WeightFormat format;
    bool compressed_nvfp4;
    Json truth;
    std::vector<Json> others;                           // true as well
    std::vector<std::pair<const char*, Json>> changes;  // JSON pointer, wrong value
};

Json group_of(const char* format, Json weights) {
    return {{"group_0", {{"format", format}, {"targets", {"Linear"}}, {"weights", weights}}}};
}

std::vector<DescribedForm> described_forms() {
    const Json int4 = {{"num_bits", 4},       {"type", "int"},     {"symmetric", true},
                       {"strategy", "group"}, {"group_size", 128}, {"dynamic", false}};
    const Json fp4 = {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}, {"dynamic", false}};
    const Json fp8 = {
        {"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 128}}};
    const std::vector<std::pair<const char*, Json>> of_weights = {
        {"/config_groups/group_0/weights/num_bits", 3},
        {"/config_groups/group_0/weights/type", "other"},
        {"/config_groups/group_0/weights/symmetric", false},
        {"/config_groups/group_0/weights/strategy", "channel"},
        {"/config_groups/group_0/weights/group_size", 64},
        {"/config_groups/group_0/weights/dynamic", true},
        {"/config_groups/group_0/format", "int-quantized"},
        {"/quant_method", "bitsandbytes"},
    };
    auto of_blocks = of_weights;
    of_blocks.emplace_back("/config_groups/group_0/weights/block_structure", Json({64, 128}));
    return {
        {"w4a16",
         WeightFormat::w4a16,
         false,
         {{"quant_method", "compressed-tensors"},
          {"config_groups", group_of("pack-quantized", int4)}},
         {{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"sym", true}},
          {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"zero_point", false}},
          {{"quant_method", "percheron"},
           {"format", "mixed"},
           {"config_groups", group_of("pack-quantized", int4)}}},
         of_weights},
        {"nvfp4",
         WeightFormat::nvfp4,
         false,
         {{"quant_method", "modelopt"},
          {"quant_algo", "NVFP4"},
          {"config_groups", group_of("nvfp4", fp4)}},
         {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 16}},
          {{"quant_method", "modelopt"},
           {"quant_algo", "MIXED_PRECISION"},
           {"quantized_layers",
            {{"model.layers.1.mlp.experts", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
             {"model.layers.2.mlp.experts", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
             {"model.layers.3.mlp.experts", {{"quant_algo", "NVFP4"}}}}}}},
         of_weights},
        {"nvfp4-pack-quantized",
         WeightFormat::nvfp4,
         true,
         {{"quant_method", "compressed-tensors"},
          {"config_groups", group_of("nvfp4-pack-quantized", fp4)}},
         {},
         of_weights},
        {"fp8_block",
         WeightFormat::fp8_block,
         false,
         {{"quant_method", "percheron"}, {"config_groups", group_of("fp8-block", fp8)}},
         {{{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}}},
         of_blocks},
    };
}

// Experts in a form, everything else BF16 and exempt but for `also`.
class DescribedExperts : public testing::Test {
  protected:
    void store(const DescribedForm& form) {
        small_ = small_model(
            1, small_config(128),
            [&](const ExpectedTensor& tensor) {
                return tensor.role == TensorRole::routed_expert ? form.format : WeightFormat::bf16;
            },
            form.compressed_nvfp4);
        exempt_ = Json::array();
        experts_.clear();
        const model::ModelConfig config = small_.parsed();
        std::vector<ExpectedTensor> all = outer_tensors(config);
        for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i) {
            for (ExpectedTensor& tensor : layer_tensors(config, i))
                all.push_back(std::move(tensor));
        }
        for (const ExpectedTensor& tensor : all) {
            if (tensor.role == TensorRole::matrix) exempt_.push_back(stem_of(tensor.name));
            if (tensor.role == TensorRole::routed_expert) experts_.push_back(stem_of(tensor.name));
        }
        exempt_.push_back("model.visual");
    }

    Inventory account(Json claim) {
        claim["ignore"] = exempt_;
        SmallModel small = small_;
        small.config["quantization_config"] = std::move(claim);
        const TemporaryFolder folder;
        small.write(folder.path());
        return Checkpoint::inspect(folder.path());
    }

    SmallModel small_;
    Json exempt_;
    std::vector<std::string> experts_;
};

TEST_F(DescribedExperts, EveryFieldIsHeldToWhatIsStored) {
    for (const DescribedForm& form : described_forms()) {
        store(form);
        EXPECT_THAT(account(form.truth).warnings, IsEmpty()) << form.name;
        for (const Json& other : form.others)
            EXPECT_THAT(account(other).warnings, IsEmpty()) << form.name << other;
        for (const auto& [place, wrong] : form.changes) {
            Json claim = form.truth;
            const Json::json_pointer pointer(place);
            claim[pointer] = wrong;
            const Inventory inventory = account(claim);
            EXPECT_TRUE(inventory.runnable());
            ASSERT_EQ(inventory.disagreements.size(), 1u) << form.name << claim;
            EXPECT_EQ(inventory.disagreements[0].weights, experts_);
            EXPECT_THAT(inventory.disagreements[0].what,
                        AllOf(HasSubstr("stored as " + std::string(form.name)),
                              HasSubstr(pointer.back() + " " + wrong.dump())));
            EXPECT_THAT(inventory.warnings,
                        ElementsAre(HasSubstr(
                            "27 weights " + inventory.disagreements[0].what +
                            ": model.language_model.layers.{1-3}.mlp.experts.{0-2}.gate_proj, ")));
        }
        // Each form under the truths of all others, and under none at all.
        for (const DescribedForm& other : described_forms()) {
            if (other.name == form.name) continue;
            const Inventory inventory = account(other.truth);
            ASSERT_EQ(inventory.disagreements.size(), 1u) << form.name << other.truth;
            EXPECT_EQ(inventory.disagreements[0].weights, experts_);
        }
        const TemporaryFolder folder;
        small_.write(folder.path());
        EXPECT_THAT(Checkpoint::inspect(folder.path()).warnings,
                    ElementsAre(HasSubstr("27 weights stored as " + std::string(form.name) +
                                          ", but there is none")));
    }
}

// A config from which something was taken, or in which something is of another type, says less than
// a reader needs: each time one sentence names all experts, or the place that is odd.
TEST_F(DescribedExperts, WhatIsNotSaidIsNamed) {
    for (const DescribedForm& form : described_forms()) {
        store(form);
        const auto expect = [&](const Json& claim, const std::string& said) {
            const Inventory inventory = account(claim);
            EXPECT_TRUE(inventory.runnable());
            EXPECT_THAT(inventory.warnings, Contains(HasSubstr(said))) << form.name << claim;
            EXPECT_LE(inventory.warnings.size(), 2u) << form.name << claim;
            for (const Disagreement& one : inventory.disagreements)
                EXPECT_EQ(one.weights, experts_) << form.name << claim;
        };
        const std::string experts = "27 weights stored as " + std::string(form.name) + ", where ";
        for (const Json& odd : {Json::object(), Json::array(), Json("x"), Json(), Json(7)}) {
            Json claim = form.truth;
            claim["config_groups"] = odd;
            expect(claim, "config_groups " + odd.dump() + " describes nothing; the files decide");
            claim["config_groups"] = {{"group_0", odd}};
            if (!odd.is_object()) {
                expect(claim, "config_groups.group_0 " + odd.dump() + " describes nothing;");
            }
        }
        Json claim = form.truth;
        claim.erase("quant_method");
        expect(claim, experts + "config_groups.group_0 does not say ");
        for (const char* method : {"gptq", "awq", "fp8", "auto-round"}) {
            claim = form.truth;
            claim["quant_method"] = method;
            expect(claim, experts + "config_groups.group_0 says quant_method \"" + method + "\": ");
        }
        for (const Json& targets : {Json(), Json::array(), Json("Linear"), Json::object()}) {
            claim = form.truth;
            claim["config_groups"]["group_0"]["targets"] = targets;
            expect(claim,
                   "config_groups.group_0 names no targets and is taken for all linear layers");
        }
        claim = form.truth;
        claim["config_groups"]["group_0"].erase("targets");
        expect(claim, "config_groups.group_0 names no targets");
        // Without the method, the algorithm or the format that tells the form by itself.
        claim = form.truth;
        claim.erase("quant_algo");
        if (claim != form.truth) {
            expect(claim, experts + "config_groups.group_0 does not say quant_algo");
        }
        claim = {{"quant_method", form.truth["quant_method"]},
                 {"config_groups", {{"group_0", {{"targets", {"Linear"}}}}}}};
        for (const Json& weights : {Json(), Json::object(), Json(4), Json::array()}) {
            claim["config_groups"]["group_0"]["weights"] = weights;
            expect(claim, experts + "config_groups.group_0 does not say ");
        }
        claim.erase("config_groups");
        expect(claim, experts + "quantization_config does not say ");
        for (const char* field : {"num_bits", "group_size", "block_structure"}) {
            claim = form.truth;
            Json& weights = claim["config_groups"]["group_0"]["weights"];
            if (weights.erase(field) > 0) {
                expect(claim, experts + "config_groups.group_0 does not say " + field + ": ");
            }
        }
        // The class of all linear layers, exempt.
        EXPECT_THAT(account(form.truth).warnings, IsEmpty());
        exempt_.push_back("Linear");
        expect(form.truth, "27 weights stored as " + std::string(form.name) + " but exempt: ");
        exempt_.erase(exempt_.size() - 1);
        // A second group that names them too and says otherwise, by name or as linear layers.
        for (const Json& targets : {Json({"Linear"}), Json({"re:.*experts.*"})}) {
            claim = form.truth;
            claim["config_groups"]["group_0"]["targets"] = targets;
            claim["config_groups"]["group_1"] = claim["config_groups"]["group_0"];
            EXPECT_THAT(account(claim).warnings, IsEmpty());
            claim["config_groups"]["group_1"]["weights"]["num_bits"] = 3;
            expect(claim, experts + "config_groups.group_1, which names it too, says num_bits 3: ");
        }
    }
}

// ModelOpt's own file beside config.json is held to what is stored like that.
TEST_F(DescribedExperts, TheSecondFileIsHeldToWhatIsStoredToo) {
    for (const DescribedForm& form : described_forms()) {
        store(form);
        SmallModel small = small_;
        Json claim = form.truth;
        claim["ignore"] = exempt_;
        small.config["quantization_config"] = claim;
        const TemporaryFolder folder;
        small.write(folder.path());
        const auto warnings = [&](const Json& quantization) {
            EXPECT_TRUE(write_text_file(folder.path() / "hf_quant_config.json",
                                        Json{{"quantization", quantization}}.dump())
                            .ok());
            const Inventory inventory = Checkpoint::inspect(folder.path());
            EXPECT_FALSE(inventory.ignored.empty());
            EXPECT_EQ(
                std::set<std::string>(inventory.ignored.begin(), inventory.ignored.end()).size(),
                inventory.ignored.size());
            return inventory.warnings;
        };
        const bool modelopt = form.truth.value("quant_method", "") == "modelopt";
        const auto of_others =
            warnings({{"quant_algo", "NVFP4"}, {"group_size", 16}, {"exclude_modules", exempt_}});
        if (modelopt) {
            EXPECT_THAT(of_others, IsEmpty());
        } else {
            EXPECT_THAT(of_others,
                        ElementsAre(HasSubstr("hf_quant_config.json: 27 weights stored as " +
                                              std::string(form.name))));
        }
        // A file that is there and says nothing.
        for (const Json& quantization : {Json(), Json::object(), Json({{"quant_algo", "NVFP4"}})}) {
            Json said = quantization;
            if (said.is_object()) said["exclude_modules"] = exempt_;
            EXPECT_THAT(warnings(said), Not(IsEmpty())) << form.name << quantization;
        }
        const auto of_none = warnings({{"quant_algo", "W8A8"}, {"exclude_modules", Json::array()}});
        EXPECT_THAT(of_none, Contains(AllOf(HasSubstr("hf_quant_config.json: "),
                                            HasSubstr("says quant_algo \"W8A8\""))));
    }
}

TEST_F(DescribedExperts, TheOldFp8FormWithoutBlocksIsAnother) {
    store(described_forms()[3]);
    EXPECT_THAT(account({{"quant_method", "fp8"}}).warnings,
                ElementsAre(HasSubstr("says weight_block_size null: ")));
    EXPECT_THAT(account({{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}).warnings,
                ElementsAre(HasSubstr("says weight_block_size [64,64]: ")));
}

// A layer whose weights have another form than the config's one group says, as MTP layers often.
TEST_F(DescribedExperts, TheLayerThatDiffersIsNamed) {
    const std::vector<DescribedForm> forms = described_forms();
    for (const DescribedForm& said : forms) {
        for (const DescribedForm& other : forms) {
            if (other.name == said.name) continue;
            store(said);
            const SmallModel trunk = small_;
            store(other);
            std::erase_if(small_.tensors, [](const auto& entry) {
                return !entry.first.starts_with(layer_prefix(3));
            });
            for (const auto& [name, tensor] : trunk.tensors) {
                if (!name.starts_with(layer_prefix(3))) small_.tensors.insert({name, tensor});
            }
            const Inventory inventory = account(said.truth);
            ASSERT_EQ(inventory.disagreements.size(), 1u) << said.name << other.name;
            EXPECT_EQ(inventory.disagreements[0].weights.size(), 9u);
            EXPECT_THAT(inventory.warnings,
                        ElementsAre(HasSubstr("layers.3.mlp.experts.{0-2}.down_proj")));
        }
    }
}

// A config may be wrong in any number of ways: what is said of it has an end.
TEST_F(DescribedExperts, TheAccountOfAConfigThatIsAllWrongIsBounded) {
    store(described_forms()[0]);
    Json groups = Json::object();
    for (std::size_t i = 0; i < experts_.size(); ++i) {
        groups["group_" + std::string(1000, 'g') + std::to_string(i)] = {
            {"targets", {experts_[i]}},
            {"weights", {{"num_bits", std::string(100'000, '7')}, {"group_size", i}}}};
    }
    const Inventory inventory = account({{"config_groups", groups}});
    EXPECT_LE(inventory.disagreements.size(), 21u);
    std::size_t weights = 0;
    std::size_t bytes = 0;
    for (const Disagreement& one : inventory.disagreements)
        weights += one.weights.size();
    for (const std::string& warning : inventory.warnings)
        bytes += warning.size();
    EXPECT_EQ(weights, experts_.size());
    EXPECT_LT(bytes, 21u * 2000u);
}

// Every name is there, and no other.
TEST(FoldedNames, SayTheNamesThatWereFolded) {
    EXPECT_THAT(folded_names({}), IsEmpty());
    EXPECT_THAT(folded_names({"a.1.b", "a.2.b", "a.7.b", "c"}), ElementsAre("a.{1-2,7}.b", "c"));
    EXPECT_THAT(folded_names({"a.1.b.2", "a.2.b.1"}), ElementsAre("a.{1-2}.b.{1-2} (2 of these)"));
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 300; ++trial) {
        std::vector<std::string> names;
        std::size_t combinations = 1;
        std::vector<std::set<std::size_t>> numbers(2);
        for (auto& set : numbers) {
            for (std::size_t i = 1 + random() % 6; i > 0; --i)
                set.insert(random() % 12);
            combinations *= set.size();
        }
        for (const std::size_t layer : numbers[0]) {
            for (const std::size_t expert : numbers[1]) {
                names.push_back("l." + std::to_string(layer) + ".e" + std::to_string(expert) + "x");
            }
        }
        std::shuffle(names.begin(), names.end(), random);
        const auto text = [](const std::set<std::size_t>& set) {
            std::string list;
            for (const std::size_t number : set) {
                const bool begins = !set.contains(number - 1);
                const bool ends = !set.contains(number + 1);
                if (begins) list += (list.empty() ? "" : ",") + std::to_string(number);
                if (!begins && ends) list += "-" + std::to_string(number);
            }
            return set.size() == 1 ? list : "{" + list + "}";
        };
        const std::string all = "l." + text(numbers[0]) + ".e" + text(numbers[1]) + "x";
        EXPECT_THAT(folded_names(names), ElementsAre(all));
        if (numbers[0].size() < 2 || numbers[1].size() < 2) continue;
        names.pop_back();
        EXPECT_THAT(folded_names(names),
                    ElementsAre(testing::HasSubstr(" (" + std::to_string(combinations - 1) +
                                                   " of these)")));
    }
}

}  // namespace
}  // namespace percheron::checkpoint::test
