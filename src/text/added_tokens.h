// Strings that stand for one id each, looked for in trusted text only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/types.h"

namespace percheron {

class AddedTokens {
  public:
    void add(std::string string, TokenId id, bool special);

    struct Match {
        std::size_t length = 0;  // 0: no added token starts here
        TokenId id{};
    };
    // The longest added token at the front of `text`.
    Match at_front_of(std::string_view text) const;

    std::optional<TokenId> find(std::string_view string) const;
    // Empty for ids that are not added tokens.
    std::string_view string_of(TokenId id) const;
    bool is_special(TokenId id) const;
    std::uint32_t end_id() const { return end_id_; }

  private:
    struct Token {
        std::string string;
        bool special = false;
    };
    std::map<std::int32_t, Token> tokens_;
    // By first byte, longest first.
    std::array<std::vector<std::int32_t>, 256> by_first_byte_;
    std::int32_t first_id_ = 0x7fffffff;  // most ids asked for are below it
    std::uint32_t end_id_ = 0;
};

}  // namespace percheron
