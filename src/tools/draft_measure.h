// How well drafts fit a model, measured on given texts: agreement along them (draft_agreement.h),
// and rounds of replies that the engine generates: accepted per position, and mean tokens a round,
// the token behind the last accepted draft included.  Several settings (who drafts, how deep) reply
// to the same prompts with the same seeds, run by run in turn, so that a slow minute of the machine
// hits all alike.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "text/tokenizer.h"
#include "tools/draft_agreement.h"
#include "tools/load_engine.h"

namespace percheron::tools {

struct MeasuredText {
    std::string kind;      // of text: "code", "prose", ...
    std::string language;  // empty: not said
    std::vector<TokenId> ids;
    std::uint32_t prompt_tokens = 0;  // of them; 0: as the options say
};

// Lines of {"kind": "code", "language": "en", "text": "..."} or {"kind": ..., "ids": [..]}; with
// "prompt", a text that may hold the format's own tags, replies go on from it alone and end where
// they end. Errors: corrupt, with the line's number.
Result<std::vector<MeasuredText>> parse_measured_texts(std::string_view lines,
                                                       const Tokenizer& tokenizer);

// "auto", "off", "copy:4", "mtp:2"; a name alone decides its depth while running.
// Errors: invalid_argument.
Result<DraftWish> parse_setting(std::string_view setting);

// What rounds are counted by.
struct RoundsOf {
    std::string kind;
    std::string language;
    std::uint32_t depth = 0;  // tokens of context before the reply

    auto operator<=>(const RoundsOf&) const = default;
};

struct Rounds {
    std::uint64_t replies = 0;
    std::uint64_t rounds = 0;
    std::uint64_t drafted = 0;
    std::uint64_t accepted = 0;
    std::uint64_t generated = 0;
    std::uint64_t timed_tokens = 0;  // while all streams were decoding ...
    double seconds = 0;              // ... and how long that was ...
    double cpu_seconds = 0;          // ... and the processors' time for it, of all threads
    std::vector<std::uint64_t> accepted_per_position;
    std::map<std::string, std::uint64_t> drafted_by;  // proposer
    std::vector<double> tokens_a_round;               // of each reply

    void add(const ChoiceStatistics& statistics);
    double rate() const;  // tokens a second, of all streams
    double mean_tokens() const;
    // Half the distance between means of random halves of the replies, the mean of many cuts.
    double noise() const;
};

// The same of what `values` hold.
double noise_of_halves(std::vector<double> values);

struct MeasuredRun {
    std::size_t setting = 0;
    std::uint32_t run = 0;
    std::map<RoundsOf, Rounds> rounds;
};

struct MeasureOptions {
    LoadOptions load;
    std::vector<DraftWish> settings;
    float temperature = 1.0f;
    float top_p = 1.0f;
    std::vector<std::uint32_t> prompts = {64};  // tokens of a text before the reply
    std::uint32_t replies = 128;                // tokens of a reply
    std::uint32_t streams = 1;                  // replies at a time, of one kind and depth
    std::uint32_t runs = 1;
    // All settings' engines at once, in turn from wave to wave of replies, not from run to run: a
    // slow second hits all alike, and memory holds them all.
    bool interleaved = false;
};

// Errors: of loading and of requests.
Result<std::vector<MeasuredRun>> measure_rounds(
    const std::vector<MeasuredText>& texts, const MeasureOptions& options,
    const Tokenizer& tokenizer, const std::function<void(std::string_view)>& progress);

}  // namespace percheron::tools
