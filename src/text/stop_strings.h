// Stop strings in a growing text.
//
// The text is read byte by byte; the first string to be complete ends it, the longest of those that
// end at the same byte.  What could still become a stop string is held back, nothing else.  So the
// text given out and the string found do not depend on how the text was cut.
//
// Linear in the text for each string (Knuth, Morris, Pratt); no allocation while nothing is held.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace percheron {

// The strings and their tables, shared by the choices of a request.
class StopStrings {
  public:
    StopStrings() = default;
    explicit StopStrings(const std::vector<std::string>& strings);  // empty ones are ignored

    bool empty() const { return patterns_.empty(); }

  private:
    friend class StopMatcher;
    struct Pattern {
        std::string string;
        // borders[n]: the longest proper prefix of the string that ends its first n bytes.
        std::vector<std::size_t> borders;
    };
    std::vector<Pattern> patterns_;
};

// One text.
class StopMatcher {
  public:
    // `strings` must outlive the matcher.
    explicit StopMatcher(const StopStrings& strings)
        : strings_(&strings), matched_(strings.patterns_.size()) {}

    // Appends to `text` what `more` makes certain.  Returns the stop string that `more` completes,
    // of which and of all behind it nothing is given out; nullptr if none.
    const std::string* append(std::string_view more, std::string& text);

    // The text ends here: what was held back belongs to it.  The matcher starts anew.
    void flush(std::string& text);

    std::string_view held() const { return held_; }

  private:
    const StopStrings* strings_;
    std::vector<std::size_t>
        matched_;  // of each pattern, how many of its bytes end the text so far
    std::string held_;
};

}  // namespace percheron
