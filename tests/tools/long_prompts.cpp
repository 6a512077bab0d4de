// Replies behind very long prompts, with and without drafts: the lengths at which other engines
// faulted (a page short of 2^17 tokens and around it, and 2^18), on the embedded model.
//
//   long_prompts [tokens of a reply = 200] [length ...]
//
// One engine holds the copies and the MTP layer, so that each prompt is computed once: the prefix
// cache gives it to the undrafted request and to those that draft.  Exits 1 where a reply differs,
// or where a proposer did not show what it is there for.  Minutes; part `long` of
// scripts/test-slow.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/reply_collector.h"
#include "text/tokenizer.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"

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

struct Drafts {
    std::array<std::atomic<std::uint64_t>, engine::StepRecord::most_proposers> by{};
    std::atomic<std::uint64_t> accepted{0};
};

bool check(Engine& engine, Drafts& drafts, const std::vector<TokenId>& text, std::size_t length,
           std::uint32_t tokens, float temperature) {
    GenerationRequest request;
    request.prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
    request.sampling.temperature = temperature;
    request.sampling.seed = length;
    request.max_tokens = tokens;
    request.ignore_eos = true;
    request.draft = false;
    const auto start = Clock::now();
    const Reply plain = reply_of(engine, request);
    for (auto& count : drafts.by)
        count = 0;
    request.draft = true;
    const Reply drafted = reply_of(engine, request);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const bool same = plain.error.empty() && drafted.error.empty() &&
                      plain.tokens.size() == tokens && plain.tokens == drafted.tokens;
    const bool drafting = drafted.statistics.draft_rounds > 0 &&
                          drafted.statistics.accepted_tokens > 0 &&
                          plain.statistics.draft_rounds == 0;
    std::printf(
        "%zu tokens, temperature %g: %s; %u rounds, drafted copy %llu, mtp %llu, accepted "
        "%u; cached %u, %.1f s%s\n",
        length, static_cast<double>(temperature),
        same ? (drafting ? "the same" : "NOTHING DRAFTED") : "DIFFERENT",
        drafted.statistics.draft_rounds, static_cast<unsigned long long>(drafts.by[0]),
        static_cast<unsigned long long>(drafts.by[1]), drafted.statistics.accepted_tokens,
        plain.statistics.cached_tokens, seconds,
        (plain.error + drafted.error).empty() ? "" : (" " + plain.error + drafted.error).c_str());
    std::fflush(stdout);
    return same && drafting;
}

int run(std::uint32_t tokens, const std::vector<std::size_t>& lengths) {
    std::size_t longest = 0;
    for (const std::size_t length : lengths)
        longest = std::max(longest, length);
    LoadOptions options;
    options.folder = resolve_model("").value();
    const Tokenizer tokenizer = Tokenizer::load(options.folder / "tokenizer.json").value();
    options.context = static_cast<std::uint32_t>(longest + 2 * tokens);
    options.max_running = 2;
    options.draft = {"auto", 3};  // copies where there are any, else the MTP layer
    Drafts drafts;
    std::array<std::uint64_t, 2> all{};
    options.on_step = [&drafts](const engine::StepRecord& step) {
        for (std::size_t i = 0; i < drafts.by.size(); ++i)
            drafts.by[i] += step.drafts_by[i];
    };
    const auto engine = load_engine(options, tokenizer);
    if (!engine.ok()) {
        std::fprintf(stderr, "long_prompts: %s\n", engine.error().message().c_str());
        return 1;
    }
    const std::vector<TokenId> text = long_text(tokenizer, longest);
    bool good = true;
    for (const std::size_t length : lengths) {
        for (const float temperature : {0.0f, 1.0f}) {
            good &= check(**engine, drafts, text, length, tokens, temperature);
            for (std::size_t i = 0; i < all.size(); ++i)
                all[i] += drafts.by[i];
        }
    }
    const bool both = all[0] > 0 && all[1] > 0;
    std::printf("%s\n", !good ? "FAILED" : both ? "passed" : "FAILED: a proposer named nothing");
    return good && both ? 0 : 1;
}

}  // namespace
}  // namespace percheron::tools

int main(int count, char** values) {
    const auto tokens =
        static_cast<std::uint32_t>(count > 1 ? std::strtoul(values[1], nullptr, 10) : 200);
    std::vector<std::size_t> lengths;
    for (int i = 2; i < count; ++i)
        lengths.push_back(std::strtoul(values[i], nullptr, 10));
    if (lengths.empty()) lengths = {131'071, 131'072, 131'328, 262'144};
    return percheron::tools::run(tokens, lengths);
}
