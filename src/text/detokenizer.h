// Token bytes in, well-formed UTF-8 out, a character at a time.
//
// A character whose bytes are spread over tokens is held back until it is whole.  Bytes that no
// continuation can make well-formed become U+FFFD as soon as that is known.  Linear time; at most
// three bytes are held.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace percheron {

class Detokenizer {
  public:
    // Appends to `text` what `bytes` completes.
    void append(std::string_view bytes, std::string& text);

    // Something else follows (a tag): a held beginning can no longer become a character.  Its
    // missing bytes are skipped should they come all the same, so that one character that was cut
    // is one U+FFFD.
    void close(std::string& text);

    // The reply was cut here: a held beginning is dropped, for it may have been a good character.
    void drop() { held_.clear(); }

    bool holds_bytes() const { return !held_.empty(); }

  private:
    void skip_missing(std::string_view& bytes);

    std::string held_;
    std::size_t missing_ = 0;  // bytes that the character closed last would have had
};

}  // namespace percheron
