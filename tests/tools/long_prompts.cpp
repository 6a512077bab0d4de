// Replies behind very long prompts, with and without drafts: the lengths at which other engines
// faulted (a page short of 2^17 tokens and around it, and 2^18), on the embedded model.
//
//   long_prompts [DRAFTERS = own,windowed,counted] [tokens of a reply = 200] [length ...]
//
// own        copies and the model's MTP layer
// windowed   a random block drafter of the kind with windows, whose drafts hardly ever hold
// counted    one that sees everything, taught by counting the text, whose drafts often hold
//
// An engine each, in which every prompt is computed once: the prefix cache gives it to the
// undrafted request and to those that draft.  Exits 1 where a reply differs, or where a proposer
// did not show what it is there for.  On the CPU, half an hour; or where PERCHERON_TEST_DEVICE
// says. Part `long` of scripts/test-slow.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/small_model.h"
#include "engine/reply_collector.h"
#include "support/read_whole.h"
#include "text/tokenizer.h"
#include "tools/drafter_files.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/synth.h"

namespace percheron::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Text of this repository, over and over with other words between.
std::vector<TokenId> long_text(const Tokenizer& tokenizer, std::size_t length) {
    std::string all;
    for (const char* file : {"/LICENSE", "/bench/draft_texts.jsonl", "/README.md"}) {
        std::ifstream in(std::string(PERCHERON_SOURCE_DIR) + file, std::ios::binary);
        all.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    const std::vector<TokenId> part = tokenizer.encode(all);
    std::vector<TokenId> text;
    for (std::size_t i = 0; text.size() < length; ++i) {
        // Another beginning each time, so that not all of it is a copy.
        const std::size_t first = i * 977 % part.size();
        text.insert(text.end(), part.begin() + static_cast<std::ptrdiff_t>(first), part.end());
    }
    text.resize(length);
    return text;
}

struct Reply {
    std::vector<TokenId> tokens;
    ChoiceStatistics statistics;
    std::string error;
};

Reply reply_of(Engine& engine, const GenerationRequest& request) {
    engine::testing::ReplyCollector collector;
    const Result<RequestId> id = engine.submit(request, collector);
    if (!id.ok()) return {{}, {}, id.error().message()};
    collector.wait_for(1);
    const engine::testing::CollectedReply collected = collector.reply(*id);
    const auto& error = collected.finished->error;
    return {collected.tokens, collected.finished->statistics, error ? error->message() : ""};
}

// Who drafts in an engine, and what it must show.
struct Drafter {
    std::string name;
    DraftWish wish;
    std::vector<std::string> proposers;  // each must name something
    bool is_often_right = true;
};

struct Drafts {
    std::array<std::atomic<std::uint64_t>, engine::StepRecord::most_proposers> by{};
    std::uint64_t accepted = 0;
};

bool check(Engine& engine, const Drafter& drafter, Drafts& drafts, const std::vector<TokenId>& text,
           std::size_t length, std::uint32_t tokens, float temperature) {
    GenerationRequest request;
    request.prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
    request.sampling.temperature = temperature;
    request.sampling.seed = length;
    request.max_tokens = tokens;
    request.ignore_eos = true;
    request.draft = false;
    const auto start = Clock::now();
    const Reply plain = reply_of(engine, request);
    const std::vector<std::uint64_t> before(drafts.by.begin(), drafts.by.end());
    request.draft = true;
    const Reply drafted = reply_of(engine, request);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const bool same = plain.error.empty() && drafted.error.empty() &&
                      plain.tokens.size() == tokens && plain.tokens == drafted.tokens;
    const bool drafting = drafted.statistics.draft_rounds > 0 && plain.statistics.draft_rounds == 0;
    drafts.accepted += drafted.statistics.accepted_tokens;
    std::string named;
    for (std::size_t i = 0; i < drafter.proposers.size(); ++i)
        named += " " + drafter.proposers[i] + " " + std::to_string(drafts.by[i] - before[i]) + ",";
    std::printf(
        "%s, %zu tokens, temperature %g: %s; %u rounds, drafted%s accepted %u; cached %u, "
        "%.1f s%s\n",
        drafter.name.c_str(), length, static_cast<double>(temperature),
        same ? (drafting ? "the same" : "NOTHING DRAFTED") : "DIFFERENT",
        drafted.statistics.draft_rounds, named.c_str(), drafted.statistics.accepted_tokens,
        plain.statistics.cached_tokens, seconds,
        (plain.error + drafted.error).empty() ? "" : (" " + plain.error + drafted.error).c_str());
    std::fflush(stdout);
    return same && drafting;
}

bool run(const Drafter& drafter, const Tokenizer& tokenizer, const std::vector<TokenId>& text,
         std::uint32_t tokens, const std::vector<std::size_t>& lengths) {
    LoadOptions options;
    options.folder = resolve_model("").value();
    options.context = static_cast<std::uint32_t>(text.size() + 2 * tokens);
    options.max_running = 2;
    options.draft = drafter.wish;
    if (const char* const device = std::getenv("PERCHERON_TEST_DEVICE")) options.device = device;
    Drafts drafts;
    options.on_step = [&drafts](const engine::StepRecord& step) {
        for (std::size_t i = 0; i < drafts.by.size(); ++i)
            drafts.by[i] += step.drafts_by[i];
    };
    const auto engine = load_engine(options, tokenizer);
    if (!engine.ok()) {
        std::fprintf(stderr, "long_prompts: %s\n", engine.error().message().c_str());
        return false;
    }
    bool good = true;
    for (const std::size_t length : lengths) {
        for (const float temperature : {0.0f, 1.0f})
            good &= check(**engine, drafter, drafts, text, length, tokens, temperature);
    }
    for (std::size_t i = 0; i < drafter.proposers.size(); ++i) {
        if (drafts.by[i] > 0) continue;
        std::printf("%s: %s NAMED NOTHING\n", drafter.name.c_str(), drafter.proposers[i].c_str());
        good = false;
    }
    if (drafter.is_often_right && drafts.accepted == 0) {
        std::printf("%s: NOTHING ACCEPTED\n", drafter.name.c_str());
        good = false;
    }
    return good;
}

Drafter block_drafter(const std::string& name, const std::filesystem::path& folder, bool is_right) {
    Drafter result{name, {"dflash2", 3}, {"dflash2"}, is_right};
    result.wish.model = folder / name;
    return result;
}

int run(const std::string& wanted, std::uint32_t tokens, const std::vector<std::size_t>& lengths) {
    const std::filesystem::path nano = resolve_model("").value();
    const Tokenizer tokenizer = Tokenizer::load(nano / "tokenizer.json").value();
    const std::vector<TokenId> text =
        long_text(tokenizer, *std::max_element(lengths.begin(), lengths.end()));
    const model::ModelConfig config = checkpoint::read_config(nano).value();
    const checkpoint::test::TemporaryFolder folders;
    bool good = true;
    std::istringstream names(wanted);
    for (std::string name; std::getline(names, name, ',');) {
        Drafter drafter;
        if (name == "own") {
            drafter = {name, {"auto", 3}, {"copy", "mtp"}, true};
        } else if (name == "windowed") {
            drafter = block_drafter(name, folders.path(), false);
            const auto made = checkpoint::make_synthetic_drafter("reference", config, 7).value();
            good &= synth_drafter(drafter.wish.model, made, {}).ok();
        } else if (name == "counted") {
            drafter = block_drafter(name, folders.path(), true);
            std::map<std::string, std::vector<float>> values;
            const auto made = counted_drafter(config, values, {&text, 1});
            write_drafter(drafter.wish.model, made, values);
        } else {
            std::fprintf(stderr, "long_prompts: no drafter is called %s\n", name.c_str());
            return 2;
        }
        good &= run(drafter, tokenizer, text, tokens, lengths);
    }
    std::printf("%s\n", good ? "passed" : "FAILED");
    return good ? 0 : 1;
}

}  // namespace
}  // namespace percheron::tools

int main(int count, char** values) {
    const std::string drafters = count > 1 ? values[1] : "own,windowed,counted";
    std::uint32_t tokens = 200;
    bool right = count <= 2 || percheron::tests::read_whole(values[2], 1u, tokens);
    std::vector<std::size_t> lengths;
    for (int i = 3; i < count; ++i)
        right &= percheron::tests::read_whole(values[i], std::size_t{1}, lengths.emplace_back());
    if (!right) {
        std::fprintf(stderr, "usage: long_prompts [DRAFTERS [TOKENS [LENGTH...]]]\n");
        return 2;
    }
    if (lengths.empty()) lengths = {131'071, 131'072, 131'328, 262'144};
    return percheron::tools::run(drafters, tokens, lengths);
}
