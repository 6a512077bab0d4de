#include "grammar/grammar_text.h"

#include <algorithm>
#include <string>
#include <vector>

#include "percheron/engine.h"

#include "grammar/regex_syntax.h"
#include "text/unicode.h"

namespace percheron::grammar {
namespace {

constexpr std::size_t deepest_group = 64;

bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

Error wrong(const std::string& what) {
    return Error(ErrorCode::invalid_argument, "the grammar " + what, reasons::invalid_value);
}

class Scanner {
  public:
    explicit Scanner(std::string_view text) : text_(text) {}

    Status scan() {
        while (at_ < text_.size()) {
            const char c = text_[at_];
            if (c == '"') {
                PERCHERON_TRY(skip_to('"'));
                grow(1);
            } else if (c == '[') {
                PERCHERON_TRY(skip_to(']'));
                after_class_ = true;
                grow(1);
                continue;
            } else if (c == '#') {
                at_ = std::min(text_.find('\n', at_), text_.size());
            } else if (c == '(') {
                if (groups_.size() > deepest_group)
                    return wrong("has too many groups in each other");
                groups_.push_back(0);
                ++at_;
            } else if (c == ')') {
                if (groups_.size() == 1) return wrong("has a ) without its (");
                last_ = groups_.back();
                groups_.pop_back();
                groups_.back() += last_;
                ++at_;
            } else if (c == '{') {
                PERCHERON_TRY(count());
            } else if (is_name(c)) {
                PERCHERON_TRY(name());
            } else if (text_.substr(at_).starts_with("::=")) {
                if (after_class_) return unsupported("options of a rule");
                groups_ = {0};
                at_ += 3;
            } else {
                ++at_;
            }
            if (c != ' ' && c != '\t') after_class_ = false;
        }
        return {};
    }

  private:
    static Error unsupported(const std::string& what) {
        return Error(ErrorCode::unsupported, what + " are not supported in a grammar",
                     reasons::unsupported_parameter);
    }

    void grow(std::uint64_t size) {
        last_ = size;
        groups_.back() += size;
    }

    // Behind the closing sign of a literal or class.
    Status skip_to(char closing) {
        for (++at_; at_ < text_.size() && text_[at_] != closing; ++at_) {
            if (text_[at_] == '\\') ++at_;
        }
        if (at_ >= text_.size()) return wrong(std::string("lacks a closing ") + closing);
        ++at_;
        return {};
    }

    Status name() {
        while (at_ < text_.size() && is_name(text_[at_]))
            ++at_;
        std::size_t next = at_;
        while (next < text_.size() && (text_[next] == ' ' || text_[next] == '\t'))
            ++next;
        if (next == at_ && next < text_.size() && text_[next] == '(') {
            return unsupported("macros (a name before a parenthesis)");
        }
        grow(1);
        return {};
    }

    // {m}, {m,n} or {m,} behind what was last.
    Status count() {
        std::uint64_t largest = 0;
        std::uint64_t value = 0;
        for (++at_; at_ < text_.size() && text_[at_] != '}'; ++at_) {
            const char c = text_[at_];
            if (c >= '0' && c <= '9') {
                value = std::min<std::uint64_t>(value * 10 + static_cast<std::uint64_t>(c - '0'),
                                                std::uint64_t{1} << 40);
                largest = std::max(largest, value);
            } else {
                value = 0;
            }
        }
        if (at_ >= text_.size()) return wrong("lacks a closing }");
        ++at_;
        if (largest > largest_count) {
            return wrong("has a count above " + std::to_string(largest_count));
        }
        const std::uint64_t more = last_ * (std::max<std::uint64_t>(largest, 1) - 1);
        groups_.back() += more;
        last_ += more;
        if (last_ > largest_expansion) {
            return wrong("has counts that multiply to more than " +
                         std::to_string(largest_expansion));
        }
        return {};
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::vector<std::uint64_t> groups_{0};  // what stands in each open group, counts multiplied out
    std::uint64_t last_ = 1;                // of the element just read
    bool after_class_ = false;
};

}  // namespace

Status check_grammar_text(std::string_view text) {
    if (text.empty() || text.size() > longest_grammar) {
        return wrong("must have from 1 to " + std::to_string(longest_grammar) + " bytes");
    }
    if (!is_valid_utf8(text) || text.find('\0') != std::string_view::npos) {
        return wrong("must be UTF-8 without zero bytes");
    }
    return Scanner(text).scan();
}

}  // namespace percheron::grammar
