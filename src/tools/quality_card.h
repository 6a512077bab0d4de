// The card that is written beside a quantised checkpoint: what was done, what it cost and how that
// was measured.  quality.json for programs, QUALITY.md for people; the same figures in both.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/status.h"
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

}  // namespace percheron::tools
