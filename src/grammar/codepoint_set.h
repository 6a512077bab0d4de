// Sets of Unicode characters as ranges; surrogates are never members, for no text holds one.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace percheron::grammar {

class CodepointSet {
  public:
    static constexpr std::uint32_t last = 0x10ffff;
    struct Range {
        std::uint32_t first = 0;
        std::uint32_t last = 0;  // inclusive
        bool operator==(const Range&) const = default;
    };

    CodepointSet() = default;
    CodepointSet(std::initializer_list<Range> ranges) {
        for (const Range& range : ranges)
            add(range.first, range.last);
    }
    static CodepointSet all() { return {{0, last}}; }

    void add(std::uint32_t first, std::uint32_t last);
    void add(const CodepointSet& other);
    CodepointSet complement() const;
    CodepointSet without(const CodepointSet& other) const;

    bool empty() const { return ranges_.empty(); }
    bool contains(std::uint32_t codepoint) const;
    bool contains_all(std::uint32_t first, std::uint32_t last) const;
    // In rising order, apart from each other.
    const std::vector<Range>& ranges() const { return ranges_; }

    // As a character class of a rule; not of an empty set.
    std::string rule_text() const;

    bool operator==(const CodepointSet&) const = default;

  private:
    void add_range(std::uint32_t first, std::uint32_t last);

    std::vector<Range> ranges_;
};

}  // namespace percheron::grammar
