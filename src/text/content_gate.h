// Holds back what may turn out not to be content.
//
// Blanks before the first word, and between tool calls, are layout if a call follows.  And a model
// that forgets the tag which opens a call writes the function's name as if it were content: a word
// that so far spells the name of a tool waits until it is longer or something else follows.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace percheron {

class ContentGate {
  public:
    // `names` must outlive the gate; empty if no name is to be waited for.
    explicit ContentGate(const std::vector<std::string>& names) : names_(&names) {}

    // Appends to `out` what is certain to be content.
    void append(std::string_view text, std::string& out);

    // A tag follows that only stands inside calls.  If the last word is a tool's name (and, on
    // request, alone on its line), returns it: a call begins; the text before it goes to `out`.
    std::optional<std::string> take_name(bool alone_on_its_line, std::string& out);

    // A tool call begins here: blanks alone are dropped, all else goes to `out`.
    void begin_call(std::string& out);

    // Nothing follows.
    void flush(std::string& out);

    // Only blanks have come since the start.
    bool nothing_yet() const { return !seen_text_ && calls_ == 0; }

  private:
    // The last word of held_, and the blanks behind it.
    struct Word {
        std::size_t begin = 0;
        std::size_t end = 0;
    };

    Word last_word() const;
    bool may_be_name(const Word& word) const;
    void release(std::size_t count, std::string& out);
    bool only_layout() const { return leading_ && held_.size() == leading_blanks_; }

    const std::vector<std::string>* names_;
    std::string held_;
    bool leading_ = true;             // nothing given out since the start or the last call
    std::size_t leading_blanks_ = 0;  // while that is so: the blanks that held_ begins with
    bool line_has_text_ = false;      // the line that held_ continues
    bool in_word_ = false;            // held_ continues a word
    bool seen_text_ = false;
    int calls_ = 0;
};

}  // namespace percheron
