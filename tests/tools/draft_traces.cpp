// Writes down which drafts would hold where, so that choosing among them can be tried without a
// clock (tests/engine/draft_replay_test.cpp): for every place of a reply what the copies named and
// how many of it held, and how many drafts of the MTP layer.
//
//   draft_traces PROMPTS.jsonl TEMPERATURE [tokens of a reply = 192] > traces.txt
//
// A line a reply: kind, temperature, and a digit a place of each: strength of the copy, copies
// named, copies that held, drafts of the layer that held.
//
// A reply's drafts at a place are those of a request whose prompt is the text up to there: noise
// goes by position, so they are the reply's own but for the arithmetic of prompts.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/files.h"
#include "draft/copy_proposer.h"
#include "engine/reply_collector.h"
#include "support/read_whole.h"
#include "text/tokenizer.h"
#include "tools/draft_measure.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"

namespace percheron::tools {
namespace {

constexpr std::uint32_t deepest = 7;
constexpr std::uint32_t prompt_tokens = 64;
constexpr std::uint64_t seed = 20231;

struct Traced {
    std::vector<TokenId> text;  // prompt and reply
    std::uint32_t prompt = 0;
};

GenerationRequest request_of(std::vector<TokenId> prompt, float temperature, std::uint64_t number,
                             std::uint32_t tokens, bool ends) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = temperature;
    request.sampling.seed = seed + number;
    request.max_tokens = tokens;
    request.ignore_eos = !ends;
    return request;
}

std::vector<TokenId> reply_to(Engine& engine, GenerationRequest request) {
    engine::testing::ReplyCollector collector;
    const RequestId id = engine.submit(std::move(request), collector).value();
    collector.wait_for(1);
    return collector.reply(id).tokens;
}

// A digit a place, the first token's apart: it comes from the prompt.
void trace_copies(const Traced& traced, std::string& strengths, std::string& named,
                  std::string& held) {
    draft::CopyProposer copies(1, {});
    copies.begin(RequestSlot(0));
    const std::span<const TokenId> all(traced.text);
    for (std::size_t place = traced.prompt + 1; place < all.size(); ++place) {
        std::vector<TokenId> drafts;
        draft::DraftSequence sequence;
        sequence.tokens = all.first(place);
        sequence.prompt_tokens = traced.prompt;
        sequence.most = deepest;
        sequence.drafts = &drafts;
        if (!copies.propose(ops::NumericClass::decode, {&sequence, 1}).ok()) std::abort();
        std::size_t right = 0;
        while (right < drafts.size() && place + right < all.size() &&
               drafts[right] == all[place + right]) {
            ++right;
        }
        strengths += static_cast<char>('0' + copies.strength(RequestSlot(0)));
        named += static_cast<char>('0' + drafts.size());
        held += static_cast<char>('0' + right);
    }
}

int run(const char* file, float temperature, std::uint32_t tokens) {
    const auto folder = resolve_model("").value();
    const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json").value();
    const auto texts =
        parse_measured_texts(read_text_file(file, Bytes{1} << 26).value(), tokenizer).value();
    // Of the latest round.
    std::atomic<bool> first_round{true};
    std::atomic<std::uint32_t> accepted{0};
    LoadOptions options;
    options.folder = folder;
    options.draft = {"mtp", deepest};
    options.on_step = [&](const engine::StepRecord& step) {
        if (step.drafts > 0 && first_round.exchange(false)) accepted = step.accepted;
    };
    const auto engine = load_engine(options, tokenizer);
    for (std::size_t i = 0; engine.ok() && i < texts.size(); ++i) {
        const MeasuredText& text = texts[i];
        const bool ends = text.prompt_tokens > 0;
        Traced traced;
        traced.prompt =
            ends ? text.prompt_tokens : std::min<std::uint32_t>(prompt_tokens, text.ids.size());
        traced.text.assign(text.ids.begin(), text.ids.begin() + traced.prompt);
        const std::vector<TokenId> reply =
            reply_to(**engine, request_of(traced.text, temperature, i, tokens, ends));
        traced.text.insert(traced.text.end(), reply.begin(), reply.end());
        std::string strengths, named, held, mtp;
        trace_copies(traced, strengths, named, held);
        for (std::size_t place = traced.prompt + 1; place < traced.text.size(); ++place) {
            first_round = true;
            accepted = 0;
            reply_to(**engine,
                     request_of({traced.text.begin(),
                                 traced.text.begin() + static_cast<std::ptrdiff_t>(place) - 1},
                                temperature, i, deepest + 2, ends));
            mtp += static_cast<char>('0' +
                                     std::min<std::size_t>(accepted, traced.text.size() - place));
        }
        std::printf("%s %g %s %s %s %s\n", text.kind.c_str(), static_cast<double>(temperature),
                    strengths.c_str(), named.c_str(), held.c_str(), mtp.c_str());
        std::fflush(stdout);
    }
    if (!engine.ok()) std::fprintf(stderr, "draft_traces: %s\n", engine.error().message().c_str());
    return engine.ok() ? 0 : 1;
}

}  // namespace
}  // namespace percheron::tools

int main(int count, char** values) {
    char* rest = nullptr;
    const float temperature = count > 2 ? std::strtof(values[2], &rest) : 0.0f;
    std::uint32_t tokens = 192;
    if (count < 3 || count > 4 || rest == values[2] || *rest != '\0' ||
        (count > 3 && !percheron::tests::read_whole(values[3], 1u, tokens))) {
        std::fprintf(stderr, "draft_traces PROMPTS.jsonl TEMPERATURE [TOKENS, from 1]\n");
        return 2;
    }
    return percheron::tools::run(values[1], temperature, tokens);
}
