#include "text/added_tokens.h"

#include <algorithm>

namespace percheron {

void AddedTokens::add(std::string string, TokenId id, bool special) {
    auto& same_start = by_first_byte_[static_cast<std::uint8_t>(string[0])];
    const auto place = std::find_if(same_start.begin(), same_start.end(), [&](std::int32_t other) {
        return tokens_.at(other).string.size() < string.size();
    });
    same_start.insert(place, to_int(id));
    tokens_[to_int(id)] = {std::move(string), special};
    first_id_ = std::min(first_id_, to_int(id));
    end_id_ = std::max(end_id_, static_cast<std::uint32_t>(to_int(id)) + 1);
}

AddedTokens::Match AddedTokens::at_front_of(std::string_view text) const {
    if (text.empty()) return {};
    for (const std::int32_t id : by_first_byte_[static_cast<std::uint8_t>(text[0])]) {
        const std::string& string = tokens_.at(id).string;
        if (text.starts_with(string)) return {string.size(), TokenId{id}};
    }
    return {};
}

std::optional<TokenId> AddedTokens::find(std::string_view string) const {
    const Match match = at_front_of(string);
    if (match.length == 0 || match.length != string.size()) return std::nullopt;
    return match.id;
}

std::string_view AddedTokens::string_of(TokenId id) const {
    if (to_int(id) < first_id_) return {};
    const auto token = tokens_.find(to_int(id));
    return token == tokens_.end() ? std::string_view() : std::string_view(token->second.string);
}

bool AddedTokens::is_special(TokenId id) const {
    if (to_int(id) < first_id_) return false;
    const auto token = tokens_.find(to_int(id));
    return token != tokens_.end() && token->second.special;
}

}  // namespace percheron
