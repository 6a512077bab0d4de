// Promise 1 with block drafters on the embedded model: random ones of both kinds, whose drafts
// hardly ever hold, and one that was taught by counting, whose drafts often do.  Ids are those
// without drafts; the plan says what the context takes.
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/config.h"
#include "checkpoint/small_model.h"
#include "core/logging.h"
#include "engine/fake_grammar.h"
#include "engine/reply_collector.h"
#include "tools/drafted_replies.h"
#include "tools/drafter_files.h"
#include "tools/nano_model.h"
#include "tools/synth.h"

namespace percheron::tools {
namespace {

using checkpoint::test::TemporaryFolder;
using engine::MemoryPlan;
using engine::StepRecord;
using engine::testing::FakeGrammar;
using ::testing::HasSubstr;

class WarningKeeper final : public LogSink {
  public:
    WarningKeeper() : before_(set_log_sink(this)) {}
    ~WarningKeeper() override { set_log_sink(before_); }
    void write(LogLevel level, std::string_view message) override {
        const std::lock_guard lock(mutex_);
        if (level == LogLevel::warning) warnings_ += std::string(message) + "\n";
    }
    std::string warnings() const {
        const std::lock_guard lock(mutex_);
        return warnings_;
    }

  private:
    LogSink* before_;
    mutable std::mutex mutex_;
    std::string warnings_;
};

class NanoDflash2 : public NanoModel {
  protected:
    static const model::ModelConfig& config() {
        static const model::ModelConfig instance = checkpoint::read_config(folder()).value();
        return instance;
    }
    // A random drafter's folder.
    static std::filesystem::path random_drafter(const std::string& kind) {
        static const TemporaryFolder folders;
        const std::filesystem::path at = folders.path() / kind;
        if (!std::filesystem::exists(at)) {
            const auto drafter = checkpoint::make_synthetic_drafter(kind, config(), 7).value();
            EXPECT_TRUE(synth_drafter(at, drafter, {}).ok());
        }
        return at;
    }

    static DraftWish wish(const std::filesystem::path& drafter,
                          std::optional<std::uint32_t> depth) {
        DraftWish result;
        result.proposer = "dflash2";
        result.depth = depth;
        result.model = drafter;
        return result;
    }
    static LoadOptions options_for(const DraftWish& wish) {
        LoadOptions result = options(Bytes{160} << 20, 8);
        result.threads = drafted_threads();
        result.draft = wish;
        return result;
    }
    static std::unique_ptr<Engine> load(const DraftWish& wish,
                                        std::function<void(const StepRecord&)> on_step = {}) {
        LoadOptions wanted = options_for(wish);
        wanted.on_step = std::move(on_step);
        auto engine = load_engine(wanted, tokenizer());
        EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message());
        return std::move(engine).value();
    }

    static GenerationRequest request(std::mt19937& random, std::size_t prompt,
                                     std::uint32_t output) {
        GenerationRequest request;
        const std::size_t first = random() % (text().size() - prompt);
        request.prompt.assign(text().begin() + static_cast<std::ptrdiff_t>(first),
                              text().begin() + static_cast<std::ptrdiff_t>(first + prompt));
        request.sampling.seed = random();
        request.max_tokens = output;
        request.ignore_eos = true;
        return request;
    }

    // Everything that looks at tokens before a token; prompts end around pools, pages, chunks and
    // the reference drafter's window of 64.
    static std::vector<GenerationRequest> requests(std::uint32_t output) {
        std::mt19937 random(11);
        std::vector<GenerationRequest> result;
        const std::array<std::size_t, 8> lengths = {1, 62, 64, 65, 129, 200, 515, 90};
        for (std::size_t i = 0; i < lengths.size(); ++i) {
            result.push_back(request(random, lengths[i], output));
            result[i].sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
            result[i].sampling.top_p = i % 4 == 1 ? 0.95f : 1.0f;
        }
        result[2].sampling.repetition_penalty = 1.2f;
        result[3].sampling.presence_penalty = 0.5f;
        result[3].sampling.logit_bias = {{result[3].prompt[3], 3.0f}};
        result[4].sampling.top_k = 20;
        result[4].sampling.min_p = 0.02f;
        result[5].choices = 2;
        result[6].extra_stop_tokens = {result[6].prompt[9]};
        result[6].ignore_eos = false;
        result[6].min_tokens = output / 2;
        result[7].grammar = std::make_shared<FakeGrammar>(engine::testing::FakeGrammarRule{
            9, output, static_cast<std::uint32_t>(config().vocabulary), config().stop_tokens});
        return result;
    }
};

TEST_F(NanoDflash2, RandomDraftersChangeNoId) {
    WarningKeeper keeper;
    const std::vector<GenerationRequest> asked = requests(drafted_tokens());
    DraftWish off;
    off.proposer = "off";
    const DraftedReplies expected = run_drafted(*load(off), asked, false);
    EXPECT_GT(expected.generated, 1000u);
    for (std::uint32_t depth = 1; depth <= 7; ++depth) {
        DraftWish drafting = wish(random_drafter(depth % 2 == 1 ? "reference" : "full"), depth);
        if (depth == 4) drafting.cache = "fp8";
        if (depth == 6) drafting.window = 100;
        std::uint64_t wide = 0;
        const auto engine = load(drafting, [&](const StepRecord& record) {
            wide += record.sequences >= 4 && record.drafts >= 4 * depth ? 1 : 0;
        });
        const bool alone = depth == 3;
        const DraftedReplies drafted = run_drafted(*engine, asked, !alone);
        EXPECT_EQ(drafted.tokens, expected.tokens) << depth;
        EXPECT_GT(drafted.rounds, 900u) << depth;
        // Near a reply's end a round may be shorter.
        EXPECT_GT(drafted.drafted, drafted.rounds * depth * 9 / 10) << depth;
        if (!alone) {
            EXPECT_GT(wide, 50u) << depth;
        }
    }
    EXPECT_THAT(keeper.warnings(), HasSubstr("the proposer dflash2 had none of its last"));
}

TEST_F(NanoDflash2, ACountedDrafterIsOftenRightAndChangesNoId) {
    const tests::QuietLog quiet;
    const std::vector<GenerationRequest> asked = requests(drafted_tokens());
    DraftWish off;
    off.proposer = "off";
    const DraftedReplies expected = run_drafted(*load(off), asked);
    const TemporaryFolder folders;
    std::map<std::string, std::vector<float>> values;
    const auto drafter = counted_drafter(config(), values, expected.tokens);
    write_drafter(folders.path() / "counted", drafter, values);
    for (const std::uint32_t depth : {3u, 7u}) {
        const auto engine = load(wish(folders.path() / "counted", depth));
        const DraftedReplies drafted = run_drafted(*engine, asked);
        EXPECT_EQ(drafted.tokens, expected.tokens);
        EXPECT_GT(drafted.accepted, drafted.rounds / 5);
        EXPECT_GE(drafted.deepest, 3u);
        EXPECT_LT(drafted.accepted, drafted.drafted);
        // Once more from what the prefix cache holds.
        const DraftedReplies again = run_drafted(*engine, asked);
        EXPECT_EQ(again.tokens, expected.tokens);
        EXPECT_GT(again.cached, 500u);
        EXPECT_GT(again.accepted, drafted.accepted * 9 / 10);
        EXPECT_GT(again.rounds, drafted.rounds * 9 / 10);
    }
    // Left to choose its depth, it changes no id either, and neither does a copy beside it.
    for (const char* const proposer : {"dflash2", "auto"}) {
        DraftWish free = wish(folders.path() / "counted", {});
        free.proposer = proposer;
        EXPECT_EQ(run_drafted(*load(free), asked).tokens, expected.tokens) << proposer;
    }
}

TEST_F(NanoDflash2, AnImageInThePromptIsDraftedBehind) {
    const tests::QuietLog quiet;
    auto canvas = std::make_shared<ImageCanvas>();
    canvas->height = canvas->width = 28 * 4;
    canvas->pixels.assign(std::size_t{3} * canvas->height * canvas->width, 90);
    PromptImage image;
    image.first = 3;
    image.count = 16;
    image.grid_height = image.grid_width = 8;
    image.canvas = std::move(canvas);
    image.content_hash[0] = 7;
    std::mt19937 random(2);
    GenerationRequest asked = request(random, 70, 60);
    asked.prompt.insert(asked.prompt.begin() + 3, image.count, config().image_token);
    asked.images = {image};
    DraftWish off;
    off.proposer = "off";
    const DraftedReplies expected = run_drafted(*load(off), {asked});
    const DraftedReplies drafted =
        run_drafted(*load(wish(random_drafter("reference"), 4)), {asked});
    EXPECT_EQ(drafted.tokens, expected.tokens);
    EXPECT_GT(drafted.rounds, 40u);
}

// Positions beyond what the drafter was made for are decoded plainly; nobody waits or fails.
TEST_F(NanoDflash2, BeyondTheDraftersLimitNothingIsDrafted) {
    const tests::QuietLog quiet;
    const TemporaryFolder folders;
    auto drafter = checkpoint::make_synthetic_drafter("full", config(), 7).value();
    drafter.config.context_limit = 160;
    ASSERT_TRUE(synth_drafter(folders.path() / "short", drafter, {}).ok());
    std::mt19937 random(5);
    const std::vector<GenerationRequest> asked = {request(random, 100, 120),
                                                  request(random, 300, 60)};
    DraftWish off;
    off.proposer = "off";
    const DraftedReplies expected = run_drafted(*load(off), asked);
    const DraftedReplies drafted = run_drafted(*load(wish(folders.path() / "short", 4)), asked);
    EXPECT_EQ(drafted.tokens, expected.tokens);
    EXPECT_GT(drafted.rounds, 30u);
    EXPECT_LT(drafted.rounds, 61u);
}

TEST_F(NanoDflash2, ThePlanShowsWhatTheContextTakes) {
    const tests::QuietLog quiet;
    const auto plan_of = [](const DraftWish& wish) {
        MemoryPlan plan;
        LoadOptions wanted = options_for(wish);
        wanted.on_plan = [&](const MemoryPlan& made) { plan = made; };
        EXPECT_TRUE(load_engine(wanted, tokenizer()).ok());
        return plan;
    };
    const auto row_of = [](const MemoryPlan& plan, const std::string& name) {
        for (const engine::MemoryRow& row : plan.rows) {
            if (row.name.starts_with(name)) return row.bytes;
        }
        return Bytes{0};
    };
    const std::string context = "drafting: the drafter's context";
    DraftWish off;
    off.proposer = "off";
    const MemoryPlan without = plan_of(off);
    EXPECT_EQ(row_of(without, context), 0u);
    // Eight layers of two heads of 128, keys and values.
    for (const bool fp8 : {false, true}) {
        DraftWish full = wish(random_drafter("full"), 3);
        full.cache = fp8 ? "fp8" : "auto";
        const MemoryPlan plan = plan_of(full);
        const Bytes a_token = 8 * 2 * 2 * 128 * (fp8 ? 1 : 2);
        EXPECT_EQ(plan.bytes_per_token - without.bytes_per_token, a_token);
        EXPECT_EQ(row_of(plan, context), plan.kv_tokens * a_token);
        EXPECT_EQ(plan.draft_pages, plan.pages);
        EXPECT_LT(plan.kv_tokens, without.kv_tokens);
        EXPECT_GT(row_of(plan, "drafting: the drafter and taps"), 0u);
        EXPECT_GT(row_of(plan, "drafting: the drafter's logits"), 0u);
    }
    // Five layers with a window of 64: two pages a slot, whatever its length.
    const MemoryPlan windowed = plan_of(wish(random_drafter("reference"), 3));
    const Bytes page = 5 * 64 * 2 * 2 * 128 * 2;
    EXPECT_EQ(windowed.bytes_per_token, without.bytes_per_token);
    EXPECT_EQ(row_of(windowed, context), page * 2 * (windowed.max_running + windowed.checkpoints));
    Bytes total = 0;
    for (const engine::MemoryRow& row : windowed.rows) {
        total += row.elsewhere ? 0 : row.bytes;
    }
    EXPECT_EQ(total, windowed.total);
}

TEST_F(NanoDflash2, WhatCannotBeIsNamed) {
    const tests::QuietLog quiet;
    const auto refusal = [](const DraftWish& wish) {
        const auto engine = load_engine(options_for(wish), tokenizer());
        return engine.ok() ? std::string() : engine.error().message();
    };
    EXPECT_THAT(refusal(wish(random_drafter("full"), 8)), HasSubstr("holds 7 drafts"));
    EXPECT_THAT(refusal(wish("", 3)), HasSubstr("--draft-model DIR"));
    EXPECT_THAT(refusal(wish("/nowhere", 3)), HasSubstr("/nowhere"));
    EXPECT_THAT(refusal(wish(folder(), 3)), HasSubstr("config.json"));
    DraftWish narrow = wish(random_drafter("reference"), 3);
    narrow.window = 100;
    EXPECT_THAT(refusal(narrow), HasSubstr("--draft-window"));
    DraftWish mtp = wish(random_drafter("reference"), 3);
    mtp.proposer = "mtp";
    EXPECT_THAT(refusal(mtp), HasSubstr("--draft-model"));
    model::ModelConfig other = config();
    other.mixers.push_back(other.mixers.back());
    const TemporaryFolder folders;
    const auto drafter = checkpoint::make_synthetic_drafter("reference", other, 7).value();
    ASSERT_TRUE(synth_drafter(folders.path() / "other", drafter, {}).ok());
    EXPECT_THAT(refusal(wish(folders.path() / "other", 3)), HasSubstr("a model of 10 layers"));
}

}  // namespace
}  // namespace percheron::tools
