#include "text/jinja_lexer.h"

#include <algorithm>

#include "text/jinja_value.h"
#include "text/unicode.h"

namespace percheron::jinja {
namespace {

bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

std::string with_unix_lines(std::string_view source) {
    std::string text;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] != '\r') {
            text += source[i];
            continue;
        }
        text += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(with_unix_lines(source)) {}

    std::vector<Token> run() {
        while (at_ < source_.size())
            read_text();
        put(Token::Kind::end, "");
        return std::move(tokens_);
    }

  private:
    [[noreturn]] void fail(const std::string& what) const {
        throw Failure("line " + std::to_string(line()) + ": " + what);
    }
    int line() const {
        // Counted on from the place of the last question: the whole stays linear.
        line_ +=
            static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                        source_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
        counted_ = at_;
        return line_;
    }
    std::string_view rest() const { return std::string_view(source_).substr(at_); }
    void put(Token::Kind kind, std::string_view text) {
        tokens_.push_back({kind, line(), std::string(text)});
    }

    // Text up to the next tag, then that tag.
    void read_text() {
        std::size_t tag = at_;
        while (true) {
            tag = source_.find('{', tag);
            if (tag == std::string::npos || tag + 1 == source_.size()) {
                put(Token::Kind::text, rest());
                at_ = source_.size();
                return;
            }
            const char kind = source_[tag + 1];
            if (kind == '{' || kind == '%' || kind == '#') break;
            ++tag;
        }
        const char kind = source_[tag + 1];
        const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
        put_text_before(tag, kind, sign);
        at_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
        if (kind == '#') return skip_comment();
        if (kind == '%' && skip_raw()) return;
        put(kind == '{' ? Token::Kind::output_begin : Token::Kind::block_begin, "");
        read_code(kind);
    }

    void put_text_before(std::size_t tag, char kind, char sign) {
        std::size_t end = tag;
        if (sign == '-') {
            while (end > at_ && is_space(source_[end - 1]))
                --end;
        } else if (sign != '+' && kind != '{') {
            std::size_t start = tag;
            while (start > at_ && source_[start - 1] != '\n' && is_space(source_[start - 1]))
                --start;
            const bool at_line_start = start == 0 || source_[start - 1] == '\n';
            if (at_line_start) end = start;
        }
        if (end > at_) put(Token::Kind::text, std::string_view(source_).substr(at_, end - at_));
    }

    // After a tag's closing braces: `sign` is what stood before them.
    void skip_after_tag(char sign, bool trim_line) {
        if (sign == '-') {
            while (at_ < source_.size() && is_space(source_[at_]))
                ++at_;
        } else if (sign != '+' && trim_line && at_ < source_.size() && source_[at_] == '\n') {
            ++at_;
        }
    }

    void skip_comment() {
        const std::size_t end = source_.find("#}", at_);
        if (end == std::string::npos) fail("a comment is not closed");
        const char sign = end > at_ ? source_[end - 1] : ' ';
        at_ = end + 2;
        skip_after_tag(sign, true);
    }

    // `raw %} ... {% endraw %}`, already past `{%`.
    bool skip_raw() {
        std::size_t i = at_;
        const auto skip_spaces = [&] {
            while (i < source_.size() && is_space(source_[i]))
                ++i;
        };
        skip_spaces();
        if (!std::string_view(source_).substr(i).starts_with("raw")) return false;
        i += 3;
        skip_spaces();
        const char sign = i < source_.size() ? source_[i] : ' ';
        if (sign == '-' || sign == '+') ++i;
        if (!std::string_view(source_).substr(i).starts_with("%}")) return false;
        at_ = i + 2;
        skip_after_tag(sign, false);  // here the reference keeps the line feed
        for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos;
             tag = source_.find("{%", tag + 2)) {
            i = tag + 2;
            const char open_sign = i < source_.size() ? source_[i] : ' ';
            if (open_sign == '-' || open_sign == '+') ++i;
            skip_spaces();
            if (!std::string_view(source_).substr(i).starts_with("endraw")) continue;
            i += 6;
            skip_spaces();
            const char close_sign = i < source_.size() ? source_[i] : ' ';
            if (close_sign == '-' || close_sign == '+') ++i;
            if (!std::string_view(source_).substr(i).starts_with("%}")) continue;
            put_text_before(tag, '%', open_sign);
            at_ = i + 2;
            skip_after_tag(close_sign, true);
            return true;
        }
        fail("a raw block is not closed");
    }

    void read_code(char kind) {
        const std::string_view close = kind == '{' ? "}}" : "%}";
        int open_brackets = 0;
        while (true) {
            while (at_ < source_.size() && is_space(source_[at_]))
                ++at_;
            if (at_ == source_.size()) fail("a tag is not closed");
            if (open_brackets == 0) {
                const char sign = source_[at_];
                const bool signed_close = (sign == '-' || (sign == '+' && kind == '%')) &&
                                          rest().substr(1).starts_with(close);
                if (signed_close || rest().starts_with(close)) {
                    put(kind == '{' ? Token::Kind::output_end : Token::Kind::block_end, "");
                    at_ += signed_close ? 3 : 2;
                    return skip_after_tag(signed_close ? sign : ' ', kind == '%');
                }
            }
            const char c = source_[at_];
            if (is_name_start(c)) {
                read_name();
            } else if (is_digit(c)) {
                read_number();
            } else if (c == '\'' || c == '"') {
                read_string(c);
            } else {
                read_symbol(open_brackets);
            }
        }
    }

    void read_name() {
        std::size_t end = at_;
        while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end])))
            ++end;
        put(Token::Kind::name, std::string_view(source_).substr(at_, end - at_));
        at_ = end;
    }

    void read_number() {
        std::size_t end = at_;
        std::string digits;
        const auto take_digits = [&] {
            while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) {
                if (source_[end] != '_') digits += source_[end];
                ++end;
            }
        };
        take_digits();
        Token::Kind kind = Token::Kind::integer;
        if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
            kind = Token::Kind::number;
            digits += source_[end++];
            take_digits();
        }
        if (end + 1 < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
            const bool signed_exponent = source_[end + 1] == '-' || source_[end + 1] == '+';
            const std::size_t first = end + (signed_exponent ? 2 : 1);
            if (first < source_.size() && is_digit(source_[first])) {
                kind = Token::Kind::number;
                digits += source_.substr(end, first - end);
                end = first;
                take_digits();
            }
        }
        put(kind, digits);
        at_ = end;
    }

    void read_string(char quote) {
        std::string content;
        std::size_t i = at_ + 1;
        for (; i < source_.size() && source_[i] != quote; ++i) {
            if (source_[i] != '\\') {
                content += source_[i];
                continue;
            }
            if (++i == source_.size()) break;
            i = read_escape(i, content);
        }
        if (i >= source_.size()) fail("a string is not closed");
        put(Token::Kind::string, content);
        at_ = i + 1;
    }

    // The escape whose letter is at `i`; returns the place of its last character.
    std::size_t read_escape(std::size_t i, std::string& content) {
        const char c = source_[i];
        static constexpr std::string_view letters = "abfnrtv\\'\"";
        static constexpr std::string_view meanings = "\a\b\f\n\r\t\v\\'\"";
        if (const std::size_t letter = letters.find(c); letter != std::string_view::npos) {
            content += meanings[letter];
            return i;
        }
        if (c == '\n') return i;
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (digits == 0) {
            content += '\\';
            content += c;
            return i;
        }
        char32_t character = 0;
        for (std::size_t k = 1; k <= digits; ++k) {
            const char digit = i + k < source_.size() ? source_[i + k] : ' ';
            const std::size_t value = std::string_view("0123456789abcdef").find(digit | 0x20);
            if (value == std::string_view::npos) fail("an escape in a string lacks a digit");
            character = character * 16 + static_cast<char32_t>(value);
        }
        if (character > 0x10FFFF || (character >= 0xD800 && character < 0xE000)) {
            fail("an escape in a string names no character");
        }
        append_utf8(content, character);
        return i + digits;
    }

    void read_symbol(int& open_brackets) {
        static constexpr std::string_view doubled[] = {"==", "!=", "<=", ">=", "//", "**"};
        std::size_t length = 1;
        for (const std::string_view symbol : doubled) {
            if (rest().starts_with(symbol)) length = 2;
        }
        const char c = source_[at_];
        if (length == 1 &&
            std::string_view("+-*/%~<>=|.,:()[]{};").find(c) == std::string_view::npos) {
            fail(std::string("a stray character: ") + c);
        }
        if (c == '(' || c == '[' || c == '{') ++open_brackets;
        if (c == ')' || c == ']' || c == '}') {
            if (open_brackets == 0) fail(std::string("a bracket was never opened: ") + c);
            --open_brackets;
        }
        put(Token::Kind::symbol, rest().substr(0, length));
        at_ += length;
    }

    std::string source_;
    std::size_t at_ = 0;
    mutable int line_ = 1;
    mutable std::size_t counted_ = 0;
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
    return Lexer(source).run();
}

}  // namespace percheron::jinja
