#include "grammar/regex_syntax.h"

#include <algorithm>
#include <string>

#include "text/unicode.h"

namespace percheron::grammar {
namespace {

constexpr int deepest_regex_group = 64;

const CodepointSet decimal_digits{{'0', '9'}};
const CodepointSet word_characters{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodepointSet spaces{{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                          {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                          {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CodepointSet line_ends{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

Regex of_set(CodepointSet set) {
    Regex regex;
    regex.kind = Regex::Kind::set;
    regex.set = std::move(set);
    return regex;
}

Regex repeated(Regex part, std::uint32_t least, std::optional<std::uint32_t> most) {
    Regex regex;
    regex.kind = Regex::Kind::repeat;
    regex.parts.push_back(std::move(part));
    regex.least = least;
    regex.most = most;
    return regex;
}

class Parser {
  public:
    Parser(std::string_view pattern, RegexMatch match) : rest_(pattern), match_(match) {}

    Result<Regex> parse() {
        PERCHERON_ASSIGN(Regex regex, alternatives(0));
        if (!rest_.empty()) return wrong("has a ) without its (");
        if (expansion(regex) > largest_expansion) {
            return Error(ErrorCode::invalid_argument,
                         "the expression stands for more than " +
                             std::to_string(largest_expansion) +
                             " characters with its counts multiplied out; use smaller counts");
        }
        return regex;
    }

  private:
    Error wrong(const std::string& what) const {
        return Error(ErrorCode::invalid_argument, "the expression " + what + before_rest());
    }
    Error unsupported(const std::string& what) const {
        return Error(ErrorCode::unsupported, what + before_rest() + " is not supported");
    }
    std::string before_rest() const {
        if (rest_.empty()) return " at its end";
        return " before \"" + with_replacements(rest_.substr(0, 16)) + "\"";
    }
    bool take(std::string_view text) {
        if (!rest_.starts_with(text)) return false;
        rest_.remove_prefix(text.size());
        return true;
    }
    Result<std::uint32_t> character() {
        const Utf8Unit unit = next_utf8_unit(rest_);
        if (unit.kind != Utf8Unit::Kind::character) return wrong("is not UTF-8");
        rest_.remove_prefix(unit.length);
        return static_cast<std::uint32_t>(unit.character);
    }

    Result<Regex> alternatives(int depth) {
        if (depth > deepest_regex_group) return wrong("has too many groups in each other");
        Regex regex;
        regex.kind = Regex::Kind::alternatives;
        do {
            PERCHERON_ASSIGN(Regex branch, sequence(depth));
            regex.parts.push_back(std::move(branch));
        } while (take("|"));
        if (regex.parts.size() > 1) return regex;
        Regex only = std::move(regex.parts.front());
        return only;
    }

    Result<Regex> sequence(int depth) {
        Regex regex;
        const bool outer = depth == 0;
        const bool from_start = outer && take("^");
        bool to_end = false;
        while (!rest_.empty() && rest_.front() != '|' && rest_.front() != ')') {
            if (rest_.front() == '$') {
                to_end = outer && (rest_.size() == 1 || rest_[1] == '|');
                if (!to_end) return unsupported("$");
                rest_.remove_prefix(1);
                break;
            }
            PERCHERON_ASSIGN(Regex part, quantified(depth));
            regex.parts.push_back(std::move(part));
        }
        if (outer && match_ == RegexMatch::search) {
            const auto anything = [] { return repeated(of_set(CodepointSet::all()), 0, {}); };
            if (!from_start) regex.parts.insert(regex.parts.begin(), anything());
            if (!to_end) regex.parts.push_back(anything());
        }
        return regex;
    }

    Result<Regex> quantified(int depth) {
        PERCHERON_ASSIGN(Regex part, atom(depth));
        std::uint32_t least = 0;
        std::optional<std::uint32_t> most;
        if (take("*")) {
        } else if (take("+")) {
            least = 1;
        } else if (take("?")) {
            most = 1;
        } else if (rest_.starts_with('{')) {
            rest_.remove_prefix(1);
            PERCHERON_ASSIGN(least, count());
            most = least;
            if (take(",")) {
                most.reset();
                if (!rest_.starts_with('}')) {
                    PERCHERON_ASSIGN(most, count());
                }
            }
            if (!take("}")) return wrong("has a { that is no count");
            if (most && *most < least) return wrong("has a count whose end is below its start");
        } else {
            return part;
        }
        take("?");  // how eagerly a matcher looks does not change the language
        if (!rest_.empty() && (rest_.front() == '*' || rest_.front() == '+' ||
                               rest_.front() == '?' || rest_.front() == '{')) {
            return wrong("repeats a repetition");
        }
        return repeated(std::move(part), least, most);
    }

    Result<std::uint32_t> count() {
        std::uint32_t value = 0;
        bool some = false;
        while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
            value = value * 10 + static_cast<std::uint32_t>(rest_.front() - '0');
            if (value > largest_count) {
                return wrong("has a count above " + std::to_string(largest_count));
            }
            rest_.remove_prefix(1);
            some = true;
        }
        if (!some) return wrong("has a { that is no count");
        return value;
    }

    Result<Regex> atom(int depth) {
        if (take("(")) {
            if (take("?")) {
                if (take("<") && !rest_.starts_with('=') && !rest_.starts_with('!')) {
                    const std::size_t name = rest_.find('>');
                    if (name == std::string_view::npos) return wrong("has a group without a name");
                    rest_.remove_prefix(name + 1);
                } else if (!take(":")) {
                    return unsupported("a look-around or flag");
                }
            }
            PERCHERON_ASSIGN(Regex inner, alternatives(depth + 1));
            if (!take(")")) return wrong("has a ( without its )");
            return inner;
        }
        if (take("[")) return character_class();
        if (take(".")) return of_set(line_ends.complement());
        if (take("\\")) {
            PERCHERON_ASSIGN(CodepointSet set, escape());
            return of_set(std::move(set));
        }
        if (rest_.front() == '^') return unsupported("^");
        if (std::string_view("*+?{").find(rest_.front()) != std::string_view::npos) {
            return wrong("repeats nothing");
        }
        PERCHERON_ASSIGN(const std::uint32_t plain, character());
        return of_set({{plain, plain}});
    }

    Result<std::uint32_t> hexadecimal(std::size_t least, std::size_t most) {
        std::uint32_t value = 0;
        std::size_t count = 0;
        for (; count < most && !rest_.empty(); ++count) {
            const char c = rest_.front();
            std::uint32_t digit = 0;
            if (c >= '0' && c <= '9') {
                digit = static_cast<std::uint32_t>(c - '0');
            } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
                digit = static_cast<std::uint32_t>((c | 32) - 'a') + 10;
            } else {
                break;
            }
            value = value * 16 + digit;
            rest_.remove_prefix(1);
        }
        if (count < least || value > CodepointSet::last) return wrong("has a broken \\u or \\x");
        return value;
    }

    // Behind a backslash.
    Result<CodepointSet> escape() {
        if (rest_.empty()) return wrong("has a backslash before nothing");
        const char c = rest_.front();
        if (c >= '1' && c <= '9') return unsupported("a back-reference");
        if (c == 'b' || c == 'B') return unsupported("a word's edge");
        if (c == 'p' || c == 'P') return unsupported("a Unicode property");
        if (c == 'k') return unsupported("a back-reference");
        PERCHERON_ASSIGN(const std::uint32_t taken, character());
        const auto only = [](std::uint32_t codepoint) {
            return CodepointSet{{codepoint, codepoint}};
        };
        switch (taken) {
            case 'd':
                return decimal_digits;
            case 'D':
                return decimal_digits.complement();
            case 'w':
                return word_characters;
            case 'W':
                return word_characters.complement();
            case 's':
                return spaces;
            case 'S':
                return spaces.complement();
            case 'n':
                return only('\n');
            case 'r':
                return only('\r');
            case 't':
                return only('\t');
            case 'f':
                return only('\f');
            case 'v':
                return only('\v');
            case '0':
                return only(0);
            case 'x': {
                PERCHERON_ASSIGN(const std::uint32_t value, hexadecimal(2, 2));
                return only(value);
            }
            case 'u':
                return unicode_escape();
            default:
                break;
        }
        const bool letter = (taken | 32) >= 'a' && (taken | 32) <= 'z';
        if (letter) return wrong("has an unknown escape");
        return only(taken);
    }

    Result<CodepointSet> unicode_escape() {
        std::uint32_t value = 0;
        if (take("{")) {
            PERCHERON_ASSIGN(value, hexadecimal(1, 6));
            if (!take("}")) return wrong("has a broken \\u");
        } else {
            PERCHERON_ASSIGN(value, hexadecimal(4, 4));
            if (value >= 0xd800 && value < 0xdc00 && take("\\u")) {
                PERCHERON_ASSIGN(const std::uint32_t low, hexadecimal(4, 4));
                if (low < 0xdc00 || low > 0xdfff) return wrong("has half a character in \\u");
                value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
            }
        }
        CodepointSet set{{value, value}};
        if (set.empty()) return wrong("has half a character in \\u");
        return set;
    }

    Result<Regex> character_class() {
        const bool negated = take("^");
        CodepointSet set;
        while (!take("]")) {
            if (rest_.empty()) return wrong("has a [ without its ]");
            PERCHERON_ASSIGN(CodepointSet first, class_member());
            const bool one =
                first.ranges().size() == 1 && first.ranges()[0].first == first.ranges()[0].last;
            if (rest_.size() >= 2 && rest_[0] == '-' && rest_[1] != ']') {
                rest_.remove_prefix(1);
                PERCHERON_ASSIGN(const CodepointSet last, class_member());
                const bool also_one =
                    last.ranges().size() == 1 && last.ranges()[0].first == last.ranges()[0].last;
                if (!one || !also_one || last.ranges()[0].first < first.ranges()[0].first) {
                    return wrong("has a range in [] that does not rise");
                }
                first.add(first.ranges()[0].first, last.ranges()[0].last);
            }
            set.add(first);
        }
        if (negated) set = set.complement();
        if (set.empty()) return wrong("has a [] that no character fits");
        return of_set(std::move(set));
    }

    Result<CodepointSet> class_member() {
        if (take("\\b")) return CodepointSet{{'\b', '\b'}};
        if (take("\\-")) return CodepointSet{{'-', '-'}};
        if (take("\\")) return escape();
        PERCHERON_ASSIGN(const std::uint32_t plain, character());
        return CodepointSet{{plain, plain}};
    }

    static std::uint64_t expansion(const Regex& regex) {
        std::uint64_t size = 1;
        for (const Regex& part : regex.parts)
            size += expansion(part);
        if (regex.kind == Regex::Kind::repeat) {
            size *= std::max<std::uint64_t>(regex.most.value_or(regex.least), 1);
        }
        return std::min(size, 2 * largest_expansion);
    }

    std::string_view rest_;
    RegexMatch match_;
};

}  // namespace

Result<Regex> parse_regex(std::string_view pattern, RegexMatch match) {
    if (pattern.size() > longest_regex) {
        return Error(ErrorCode::invalid_argument,
                     "the expression has " + std::to_string(pattern.size()) +
                         " bytes, and at most " + std::to_string(longest_regex) + " are taken");
    }
    return Parser(pattern, match).parse();
}

}  // namespace percheron::grammar
