#include "text/stop_strings.h"

#include <algorithm>

namespace percheron {

StopStrings::StopStrings(const std::vector<std::string>& strings) {
    for (const std::string& string : strings) {
        if (string.empty()) continue;
        Pattern pattern{string, std::vector<std::size_t>(string.size() + 1)};
        std::size_t border = 0;
        for (std::size_t i = 1; i < string.size(); ++i) {
            while (border > 0 && string[i] != string[border])
                border = pattern.borders[border];
            if (string[i] == string[border]) ++border;
            pattern.borders[i + 1] = border;
        }
        patterns_.push_back(std::move(pattern));
    }
}

const std::string* StopMatcher::append(std::string_view more, std::string& text) {
    if (strings_->empty()) {
        text += more;
        return nullptr;
    }
    std::size_t longest = held_.size();
    for (std::size_t i = 0; i < more.size(); ++i) {
        longest = 0;
        const std::string* found = nullptr;
        for (std::size_t p = 0; p < matched_.size(); ++p) {
            const StopStrings::Pattern& pattern = strings_->patterns_[p];
            std::size_t& matched = matched_[p];
            while (matched > 0 && pattern.string[matched] != more[i]) {
                matched = pattern.borders[matched];
            }
            if (pattern.string[matched] == more[i]) ++matched;
            if (matched == pattern.string.size()) {
                if (found == nullptr || found->size() < matched) found = &pattern.string;
            }
            longest = std::max(longest, matched);
        }
        if (found != nullptr) {
            held_ += more.substr(0, i + 1);
            text.append(held_, 0, held_.size() - found->size());
            held_.clear();
            return found;
        }
    }
    held_ += more;
    text.append(held_, 0, held_.size() - longest);
    held_.erase(0, held_.size() - longest);
    return nullptr;
}

void StopMatcher::flush(std::string& text) {
    text += held_;
    held_.clear();
    std::fill(matched_.begin(), matched_.end(), 0);
}

}  // namespace percheron
