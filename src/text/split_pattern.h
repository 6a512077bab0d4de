// The pre-tokenizer: cuts text into the pieces that byte pairs are merged within.
//
// A regular expression is searched from left to right; its matches are pieces and so is whatever
// lies between two matches.  Bytes that are not UTF-8 belong to no character: each run of them is a
// piece of its own and the pattern sees the text's end in front of it.
//
// Patterns are written for the Oniguruma library.  Where PCRE2 means something else by the same
// letters (`\s` holds U+180E there), the pattern is rewritten on reading.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/status.h"

namespace percheron {

// Thread-safe once made.
class SplitPattern {
  public:
    // Errors: unsupported, with the pattern's place and PCRE2's message.
    static Result<SplitPattern> compile(std::string_view pattern);

    SplitPattern(SplitPattern&&) noexcept;
    SplitPattern& operator=(SplitPattern&&) noexcept;
    ~SplitPattern();

    // Walks one text: next() gives the pieces in order and an empty view after the last.
    // Pattern and text must outlive the walk.
    class Walk {
      public:
        Walk(const SplitPattern& pattern, std::string_view text);
        ~Walk();
        Walk(const Walk&) = delete;
        Walk& operator=(const Walk&) = delete;

        std::string_view next();

      private:
        std::string_view take(std::size_t end);
        void find_valid_span();

        const SplitPattern& pattern_;
        std::string_view text_;
        std::size_t at_ = 0;         // all before it was given out
        std::size_t valid_end_ = 0;  // [at_, valid_end_) is UTF-8
        std::size_t match_end_ = 0;  // a match found but not yet given out ends here
        bool all_valid_ = false;
        void* match_data_;
    };

  private:
    explicit SplitPattern(void* code) : code_(code) {}

    void* code_ = nullptr;  // pcre2_code
};

}  // namespace percheron
