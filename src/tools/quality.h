// How a quantised model differs from its source on texts, position by position.
//
// Both compute every text as a prompt, in standard arithmetic, side by side.  With p the source's
// and q the other's distribution behind position t (softmax of all logits, no temperature):
//   kl         mean over positions of sum_v p_v log(p_v / q_v), in nats
//   agreement  share of positions whose likeliest token is the same
//   loss       mean of -log of the probability of the token that follows, of either model; its
//              exponential is the perplexity
// A figure's noise band is two standard errors over texts, each weighted by its positions: twice
// the root of sum_i n_i^2 (m_i - m)^2 / (sum_i n_i)^2.  Texts of the same ids are one there.
//
// Bytes: behind every position, the likeliest token of either model is appended to the text so far.
// It is broken if what results cannot be continued to valid UTF-8.  `control` counts positions
// whose next token is a control or tag token, and how often each model finds it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "text/tokenizer.h"
#include "tools/quantize_calibration.h"

namespace percheron::tools {

// A mean and its noise band, which a single text does not show.
struct Measured {
    double mean = 0;
    std::optional<double> band;
};

struct KindQuality {
    std::string kind;
    std::size_t texts = 0;
    std::size_t positions = 0;
    Measured kl, agreement;
    Measured source_loss, loss;
    Measured added_loss;  // loss - source_loss, paired by text
    std::size_t control = 0, control_source = 0, control_found = 0;
    std::size_t broken_source = 0, broken = 0;
    std::vector<double> kl_of_text;  // in the texts' order; what pairs two comparisons
    std::vector<std::size_t> positions_of_text;
};

struct QualityOptions {
    std::filesystem::path source, other;
    std::size_t threads = 0;
    std::string device = "auto";
    std::function<void(std::size_t done, std::size_t total)> progress;  // positions
    bool fp4_activations = false;                                       // of `other` (open_model)
};

// One entry a kind, in order of first appearance, then "all".
// Errors: of the models' files; invalid_argument (vocabularies that differ).
Result<std::vector<KindQuality>> compare_quality(const std::vector<CalibrationText>& texts,
                                                 const Tokenizer& tokenizer,
                                                 const QualityOptions& options);

// Whether `bytes` can be continued to valid UTF-8: well-formed but perhaps for an unfinished
// character at the end.
bool may_become_utf8(std::string_view bytes);

}  // namespace percheron::tools
