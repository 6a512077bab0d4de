// Token bytes in, well-formed UTF-8 out, a character at a time.
//
// A character whose bytes are spread over tokens is held back until it is whole.  Bytes that no
// continuation can make well-formed become U+FFFD as soon as that is known.  Linear time; at most
// three bytes are held.
#pragma once

#include <string>
#include <string_view>

namespace percheron {

class Detokenizer {
  public:
    // Appends to `text` what `bytes` completes.
    void append(std::string_view bytes, std::string& text);

    // Something else follows (a tag): a held beginning can no longer become a character.
    void close(std::string& text);

    // The reply was cut here: a held beginning is dropped, for it may have been a good character.
    void drop() { held_.clear(); }

    bool holds_bytes() const { return !held_.empty(); }

  private:
    std::string held_;
};

}  // namespace percheron
