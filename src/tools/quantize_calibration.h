// The texts whose activations decide how a quantiser rounds: JSON lines, each an object with
//   "messages"  a conversation, with "tools" and "reasoning_effort" beside it if it has any:
//               rendered by the model's chat template with the last answer included
//   "prompt"    text that a template wrote: control tokens in it count
//   "text"      plain text
//   "ids"       token ids
// and optionally "kind" (a word of at most 64 bytes; "text" without it).  Messages may carry images
// as data: URLs, or describe them as items of tasks do (tools/item_images.h); videos are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "text/chat_prompt.h"

namespace percheron::tools {

struct CalibrationText {
    std::string kind;
    std::vector<TokenId> ids;  // at least two
    // In the order of the text; the last one may be cut with it.
    std::vector<PromptImage> images;
};

struct CalibrationLimits {
    std::size_t length = 2048;    // tokens of a text; what is longer is cut
    std::size_t tokens = 131072;  // of all texts; what comes later in the file is left out
};

// In the file's order.  Errors: corrupt (names the line); invalid_argument (no text, an id outside
// the vocabulary).
Result<std::vector<CalibrationText>> parse_calibration(std::string_view lines,
                                                       const ChatFormat& format,
                                                       std::size_t vocabulary,
                                                       const CalibrationLimits& limits);

// The same from a file, with the tokenizer and the template of `model` (of resolve_model()), which
// are read only if a text is more than ids; errors name the file.
Result<std::vector<CalibrationText>> read_calibration(const std::filesystem::path& file,
                                                      const std::filesystem::path& model,
                                                      std::size_t vocabulary,
                                                      const CalibrationLimits& limits);

// What tells later whether a text was one of some: numbers (FNV-1a) for the ids of every whole text
// and for beginnings that a limit may cut it to.
struct TextMarks {
    std::set<std::uint64_t> wholes;
    std::set<std::uint64_t> beginnings;  // of multiples of 32 tokens up to 512, then powers of two

    bool empty() const { return wholes.empty() && beginnings.empty(); }
};
TextMarks marks_of(const std::vector<CalibrationText>& texts);
// Whether texts cut to so many tokens are found.
bool is_marked_length(std::size_t tokens);
// How many of `texts` were, by their ids; one that was cut elsewhere than marks are made is missed.
std::size_t texts_among(const TextMarks& marks, const std::vector<CalibrationText>& texts);

// How many of `held_out` are also among `calibration`: by their ids, whatever the files are called;
// a text that a limit has cut counts as the one it was.
std::size_t texts_in_both(const std::vector<CalibrationText>& calibration,
                          const std::vector<CalibrationText>& held_out);

}  // namespace percheron::tools
