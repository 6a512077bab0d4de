#include "text/content_gate.h"

#include <algorithm>

#include "text/unicode.h"

namespace percheron {
namespace {

// Longer than any name with blanks around it has reason to be.
constexpr std::size_t longest_held = 512;

// The last line that is not blank: where it begins, and where the blanks behind it begin.
struct Line {
    std::size_t begin = 0;
    std::size_t end = 0;
};

Line last_line(std::string_view text) {
    Line line;
    line.end = text.find_last_not_of(" \t\r\n");
    line.end = line.end == std::string_view::npos ? 0 : line.end + 1;
    const std::size_t feed = text.substr(0, line.end).rfind('\n');
    line.begin = feed == std::string_view::npos ? 0 : feed + 1;
    return line;
}

}  // namespace

bool ContentGate::may_be_name(std::string_view line, bool ended) const {
    return std::any_of(names_->begin(), names_->end(), [&](const std::string& name) {
        return ended ? name == line : std::string_view(name).starts_with(line);
    });
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
    if (held_.empty() && !line_start_ && text.find('\n') == std::string_view::npos) {
        out += text;
        return;
    }
    held_ += text;
    const Line line = last_line(held_);
    const bool is_whole_line = line.begin > 0 || line_start_;
    const std::string_view written =
        std::string_view(held_).substr(line.begin, line.end - line.begin);
    const bool waits = is_whole_line && held_.size() - line.begin <= longest_held &&
                       may_be_name(without_blanks_around(written), line.end < held_.size());
    std::size_t release = waits ? line.begin : held_.size();
    if (leading_ && release <= leading_blanks_) release = 0;
    if (release == 0) return;
    leading_ = false;
    line_start_ = held_[release - 1] == '\n';
    out.append(held_, 0, release);
    held_.erase(0, release);
}

std::optional<std::string> ContentGate::take_name(std::string& out) {
    const Line line = last_line(held_);
    const std::string name(
        without_blanks_around(std::string_view(held_).substr(line.begin, line.end - line.begin)));
    const bool is_whole_line = line.begin > 0 || line_start_;
    if (!is_whole_line || std::find(names_->begin(), names_->end(), name) == names_->end()) {
        return std::nullopt;
    }
    held_.erase(line.begin);
    begin_call(out);
    return name;
}

void ContentGate::begin_call(std::string& out) {
    if (!only_layout()) out += held_;
    held_.clear();
    leading_ = true;
    leading_blanks_ = 0;
    line_start_ = true;
    ++calls_;
}

void ContentGate::flush(std::string& out) {
    if (!only_layout() || calls_ == 0) out += held_;
    held_.clear();
}

}  // namespace percheron
