#include "text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <cstdint>
#include <utility>

#include <pcre2.h>

#include "text/unicode.h"

namespace percheron {
namespace {

// Unicode's White_Space, as it stands inside brackets.
constexpr std::string_view white_space =
    R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// `\s` and `\S` spelled out.  `\S` inside brackets cannot be, and no known pattern has it.
std::string with_white_space_spelled_out(std::string_view pattern) {
    std::string spelled;
    bool in_brackets = false;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '\\' && i + 1 < pattern.size()) {
            const char escaped = pattern[++i];
            if (escaped == 's') {
                if (!in_brackets) spelled += '[';
                spelled += white_space;
                if (!in_brackets) spelled += ']';
            } else if (escaped == 'S' && !in_brackets) {
                spelled += "[^";
                spelled += white_space;
                spelled += ']';
            } else {
                spelled += c;
                spelled += escaped;
            }
            continue;
        }
        if (c == '[') in_brackets = true;
        if (c == ']') in_brackets = false;
        spelled += c;
    }
    return spelled;
}

}  // namespace

Result<SplitPattern> SplitPattern::compile(std::string_view pattern) {
    const std::string spelled = with_white_space_spelled_out(pattern);
    int code_number = 0;
    PCRE2_SIZE place = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                                     PCRE2_UTF | PCRE2_UCP, &code_number, &place, nullptr);
    if (code == nullptr) {
        PCRE2_UCHAR message[256];
        pcre2_get_error_message(code_number, message, sizeof message);
        return Error(ErrorCode::unsupported, "the split pattern is not understood at its byte " +
                                                 std::to_string(place) + ": " +
                                                 reinterpret_cast<const char*>(message));
    }
    // Where the machine has no JIT the interpreter does the same work.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return SplitPattern(code);
}

SplitPattern::SplitPattern(SplitPattern&& other) noexcept
    : code_(std::exchange(other.code_, nullptr)) {}

SplitPattern& SplitPattern::operator=(SplitPattern&& other) noexcept {
    std::swap(code_, other.code_);
    return *this;
}

SplitPattern::~SplitPattern() {
    pcre2_code_free(static_cast<pcre2_code*>(code_));
}

SplitPattern::Walk::Walk(const SplitPattern& pattern, std::string_view text)
    : pattern_(pattern),
      text_(text),
      all_valid_(is_valid_utf8(text)),
      match_data_(pcre2_match_data_create(1, nullptr)) {
    if (all_valid_) valid_end_ = text_.size();
}

SplitPattern::Walk::~Walk() {
    pcre2_match_data_free(static_cast<pcre2_match_data*>(match_data_));
}

std::string_view SplitPattern::Walk::take(std::size_t end) {
    const std::string_view piece = text_.substr(at_, end - at_);
    at_ = end;
    return piece;
}

void SplitPattern::Walk::find_valid_span() {
    while (valid_end_ < text_.size()) {
        const Utf8Unit unit = next_utf8_unit(text_.substr(valid_end_));
        if (unit.kind != Utf8Unit::Kind::character) return;
        valid_end_ += unit.length;
    }
}

std::string_view SplitPattern::Walk::next() {
    if (at_ == text_.size()) return {};
    if (match_end_ > at_) return take(match_end_);
    if (at_ == valid_end_) {
        find_valid_span();
        if (at_ == valid_end_) {
            std::size_t end = at_;
            while (end < text_.size()) {
                const Utf8Unit unit = next_utf8_unit(text_.substr(end));
                if (unit.kind == Utf8Unit::Kind::character) break;
                end += unit.length;
            }
            valid_end_ = end;
            return take(end);
        }
    }
    auto* match_data = static_cast<pcre2_match_data*>(match_data_);
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
    const int found =
        pcre2_match(static_cast<const pcre2_code*>(pattern_.code_), subject, valid_end_, at_,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match_data, nullptr);
    if (found < 0) return take(valid_end_);
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match_data);
    if (ends[0] > at_) {
        match_end_ = ends[1];
        return take(ends[0]);
    }
    return take(ends[1]);
}

}  // namespace percheron
