// Text that remembers which of its bytes a template wrote and which came from outside.
//
// A prompt mixes both.  Control tokens may come only from the template, so every operation that
// builds, cuts or joins text keeps the mark of each byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace percheron {

enum class TextOrigin : std::uint8_t { from_template, from_input };

class MarkedText {
  public:
    // Bytes [previous run's end, end) share one origin.  Neighbouring runs differ; none is empty.
    struct Run {
        std::size_t end = 0;
        TextOrigin origin = TextOrigin::from_template;
    };

    MarkedText() = default;
    MarkedText(std::string text, TextOrigin origin);

    const std::string& text() const { return text_; }
    const std::vector<Run>& runs() const { return runs_; }
    std::size_t size() const { return text_.size(); }
    bool empty() const { return text_.empty(); }
    bool has_input() const;

    void append(std::string_view text, TextOrigin origin);
    void append(const MarkedText& other);
    MarkedText slice(std::size_t begin, std::size_t count) const;

    bool operator==(const MarkedText& other) const;

  private:
    std::string text_;
    std::vector<Run> runs_;
};

}  // namespace percheron
