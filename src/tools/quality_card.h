// The card that is written beside a quantised checkpoint: what was done, what it cost and how that
// was measured.  quality.json for programs, QUALITY.md for people; the same figures in both.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/status.h"
#include "tools/eval_tasks.h"
#include "tools/quality.h"
#include "tools/quantize.h"

namespace percheron::tools {

struct QualityCard {
    std::string command;  // the exact command line; empty: not made by one
    std::filesystem::path source;
    Bytes source_bytes = 0;
    const QuantizeReport* report = nullptr;  // null: of a checkpoint that was there
    std::string format, method;              // as asked for
    std::string texts;                       // file of the held-out texts
    std::vector<KindQuality> quality;        // empty: nothing was measured
};

std::string card_json(const QualityCard& card);
std::string card_markdown(const QualityCard& card);
// The two files in `folder`.  Errors: io.
Status write_card(const std::filesystem::path& folder, const QualityCard& card);

// Puts what `card` has measured on texts into the card in `folder`, with the command that measured
// it, in place of what was there; begins a card where there is none.  Errors: corrupt (quality.json
// is no JSON object), io.
Status add_quality_to_card(const std::filesystem::path& folder, const QualityCard& card);

// Of the texts that the model in `folder` was calibrated with, as its card says; empty without a
// card that knows.
TextMarks calibration_marks(const std::filesystem::path& folder);

// Task accuracies of a folder and of its source on the same items.
struct TaskCard {
    std::string command;  // the exact command line
    std::string source;   // the model it was compared with
    std::string items;    // where the items come from
    std::vector<TaskDifference> tasks;
};

// The same with them.
Status add_tasks_to_card(const std::filesystem::path& folder, const TaskCard& card);

}  // namespace percheron::tools
