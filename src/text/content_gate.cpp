#include "text/content_gate.h"

#include <algorithm>

#include "text/unicode.h"

namespace percheron {
namespace {

// Longer than any name with blanks behind it has reason to be.
constexpr std::size_t longest_held = 512;

bool is_name_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || (c & 0x80) != 0;
}

}  // namespace

ContentGate::Word ContentGate::last_word() const {
    Word word;
    const std::size_t last = held_.find_last_not_of(" \t\r\n");
    word.end = last == std::string::npos ? 0 : last + 1;
    word.begin = word.end;
    while (word.begin > 0 && is_name_character(held_[word.begin - 1]))
        --word.begin;
    return word;
}

bool ContentGate::may_be_name(const Word& word) const {
    if (word.begin == word.end || (word.begin == 0 && in_word_)) return false;
    const std::string_view written =
        std::string_view(held_).substr(word.begin, word.end - word.begin);
    const bool ended = word.end < held_.size();
    return std::any_of(names_->begin(), names_->end(), [&](const std::string& name) {
        return ended ? name == written : std::string_view(name).starts_with(written);
    });
}

void ContentGate::release(std::size_t count, std::string& out) {
    if (count == 0) return;
    leading_ = false;
    const std::string_view text = std::string_view(held_).substr(0, count);
    const std::size_t feed = text.rfind('\n');
    if (feed != std::string_view::npos) line_has_text_ = false;
    const std::string_view line = text.substr(feed == std::string_view::npos ? 0 : feed + 1);
    line_has_text_ = line_has_text_ || !is_blank(line);
    in_word_ = is_name_character(text.back());
    out += text;
    held_.erase(0, count);
}

void ContentGate::append(std::string_view text, std::string& out) {
    if (text.empty()) return;
    if (only_layout()) {
        const std::size_t word = text.find_first_not_of(" \t\r\n");
        leading_blanks_ += std::min(word, text.size());
        if (word == std::string_view::npos) {
            held_ += text;
            return;
        }
        seen_text_ = true;
    }
    held_ += text;
    const Word word = last_word();
    const bool waits = held_.size() - word.begin <= longest_held && may_be_name(word);
    if (waits && leading_ && word.begin <= leading_blanks_) return;
    release(waits ? word.begin : held_.size(), out);
}

std::optional<std::string> ContentGate::take_name(bool alone_on_its_line, std::string& out) {
    const Word word = last_word();
    const std::string name = held_.substr(word.begin, word.end - word.begin);
    const bool known = std::find(names_->begin(), names_->end(), name) != names_->end();
    const bool alone = leading_ || !line_has_text_;
    if (!known || (word.begin == 0 && in_word_) || (alone_on_its_line && !alone)) {
        return std::nullopt;
    }
    held_.erase(word.begin);
    begin_call(out);
    return name;
}

void ContentGate::begin_call(std::string& out) {
    if (!only_layout()) out += held_;
    held_.clear();
    leading_ = true;
    leading_blanks_ = 0;
    line_has_text_ = false;
    in_word_ = false;
    ++calls_;
}

void ContentGate::flush(std::string& out) {
    if (!only_layout() || calls_ == 0) out += held_;
    held_.clear();
}

}  // namespace percheron
