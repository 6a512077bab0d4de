// Rules in the notation of xgrammar's core, written piece by piece under a limit of size.
//
// An expression is text that may stand as one element of a rule: a literal, a class, a name or
// something in parentheses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "percheron/types.h"

#include "grammar/codepoint_set.h"
#include "grammar/regex_syntax.h"

namespace percheron::grammar {

// How a string's characters stand in the output.
enum class TextForm {
    raw,          // as they are
    json_string,  // inside the quotes of a JSON string: escaped where they must be
};

// The pieces in a row.
std::string joined(std::initializer_list<std::string_view> pieces);

class RuleWriter {
  public:
    static constexpr std::size_t largest = 512 * 1024;  // bytes of all rules

    // A rule with this body; rules with the same body are one.
    std::string rule(const std::string& body);
    // A name whose body comes later, for what refers to itself.
    std::string reserve();
    void define(const std::string& name, const std::string& body);

    // True once the limit has been passed; nothing is added then.
    bool full() const { return size_ > largest; }

    // All rules, `root` first.
    std::string text(std::string_view root_body) const;

    // ---- expressions ----
    static std::string literal(std::string_view text);
    static std::string token(TokenId id);
    static std::string sequence(const std::vector<std::string>& parts);
    static std::string alternatives(const std::vector<std::string>& parts);
    static std::string optional(const std::string& part) { return joined({"(", part, ")?"}); }
    static std::string repeated(const std::string& part, std::uint64_t least,
                                std::optional<std::uint64_t> most);
    std::string character(const CodepointSet& set, TextForm form);
    std::string regex(const Regex& regex, TextForm form);

  private:
    std::vector<std::pair<std::string, std::string>> rules_;  // name, body
    std::unordered_map<std::string, std::string> names_;      // of bodies
    std::size_t reserved_ = 0;
    std::size_t size_ = 0;
};

}  // namespace percheron::grammar
