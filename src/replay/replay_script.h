// Replies read from a file instead of a network: one JSON object a line.
//
// A line's fields (all but `steps` optional, null = absent):
//   match       a PCRE2 regular expression searched in the last message's text.  Lines with one are
//               tried first, in file order, and are not used up; the others are used up in order.
//   steps       a list; an element is one engine step: a string (added tokens written in it are
//               those tokens), a list of ids, {"plain": "..."} (as user text), {"hex": "f09f"} (one
//               byte-level token a byte), or a list that mixes these.
//   finish      when the steps have run out: "stop" (default), "length", "hang", "error".
//   prefill_ms, delay_ms (before each step), draft {"drafted": n, "accepted": m} a step,
//   logprob     of every token (default -1.0).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "text/tokenizer.h"

namespace percheron {

struct ReplayReply {
    enum class End { stop, length, hang, error };

    std::vector<TokenId> tokens;           // of all steps
    std::vector<std::uint32_t> step_ends;  // step i is tokens [step_ends[i - 1], step_ends[i])
    End end = End::stop;
    std::chrono::microseconds prefill{0};
    std::chrono::microseconds delay{0};
    bool has_draft = false;
    std::uint32_t drafted_a_step = 0;
    std::uint32_t accepted_a_step = 0;
    float logprob = -1.0f;
};

class ReplayScript {
  public:
    // `vocabulary`: ids below it are valid in `steps`.
    // Errors: io, corrupt with the line's number.
    static Result<ReplayScript> load(const std::filesystem::path& file, const Tokenizer& tokenizer,
                                     std::uint32_t vocabulary);
    static Result<ReplayScript> parse(std::string_view text, const Tokenizer& tokenizer,
                                      std::uint32_t vocabulary);

    ReplayScript(ReplayScript&&) noexcept;
    ReplayScript& operator=(ReplayScript&&) noexcept;
    ~ReplayScript();

    // The replies for a request of `choices` choices, or fewer when there are not enough: then
    // none is used up.  Thread-safe.
    std::vector<std::shared_ptr<const ReplayReply>> take(std::string_view last_message,
                                                         std::uint32_t choices);

    std::size_t size() const;

  private:
    struct Content;
    explicit ReplayScript(std::unique_ptr<Content> content);

    std::unique_ptr<Content> content_;
};

}  // namespace percheron
