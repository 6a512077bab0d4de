// How well drafts fit a model, measured on given texts.
//
// Agreement, position by position along the text as it is (teacher-forced): p is the trunk's
// distribution of a token after temperature and top-p, q the MTP layer's from one token less.
//   greedy     argmax p = argmax q
//   coupled    argmax (ln p + g) = argmax (ln q + g), the product's rule, with the noise of the
//              position
//   classical  sum_v min(p, q) = 1 - d, what rejection sampling would accept (d: total variation)
//   bound      (1 - d) / (1 + d), which coupling never falls below but for noise
// Rounds, of replies that the engine generates: accepted per position, and mean tokens a round, the
// token behind the last accepted draft included.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "text/tokenizer.h"
#include "tools/load_engine.h"

namespace percheron::tools {

struct MeasuredText {
    std::string kind;  // of text: "code", "prose", ...
    std::vector<TokenId> ids;
    std::uint32_t prompt_tokens = 0;  // of them; 0: as the options say
};

// Lines of {"kind": "code", "text": "..."} or {"kind": ..., "ids": [..]}; with "prompt", a text
// that may hold the format's own tags, replies go on from it alone and end where they end. Errors:
// corrupt, with the line's number.
Result<std::vector<MeasuredText>> parse_measured_texts(std::string_view lines,
                                                       const Tokenizer& tokenizer);

struct Agreement {
    std::uint64_t positions = 0;
    double greedy = 0;  // sums over the positions
    double coupled = 0;
    double classical = 0;
    double bound = 0;

    void add(const Agreement& other);
};

struct Rounds {
    std::uint64_t rounds = 0;
    std::uint64_t drafted = 0;
    std::uint64_t accepted = 0;
    std::uint64_t generated = 0;
    double seconds = 0;  // of decoding
    std::vector<std::uint64_t> accepted_per_position;
    std::vector<double> tokens_a_round;  // of each reply

    void add(const ChoiceStatistics& statistics);
    double mean_tokens() const;
    // Half the distance between means of random halves of the replies, the mean of many cuts.
    double noise() const;
};

struct DraftMeasure {
    std::map<std::string, Agreement> agreement;  // by kind; only with an MTP layer
    std::map<std::string, Rounds> rounds;
};

struct MeasureOptions {
    LoadOptions load;  // `draft` says whose rounds are measured
    float temperature = 1.0f;
    float top_p = 1.0f;
    std::uint32_t tokens = 512;   // of each text at most, 0: no agreement
    std::uint32_t prompt = 64;    // of its tokens, for the replies
    std::uint32_t replies = 128;  // tokens of a reply
};

Result<DraftMeasure> measure_drafts(const std::vector<MeasuredText>& texts,
                                    const MeasureOptions& options, const Tokenizer& tokenizer,
                                    const std::function<void(std::string_view)>& progress);

}  // namespace percheron::tools
