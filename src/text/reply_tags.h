// The control tokens that give a reply its structure.
#pragma once

#include <vector>

#include "percheron/types.h"

#include "text/tokenizer.h"

namespace percheron {

enum class ReplyTag : std::uint8_t {
    none,  // text
    think_open,
    think_close,
    call_open,
    call_close,
    key_open,
    key_close,
    value_open,
    value_close,
    stop,
};

// Which ids are tags.  A tag spelled in ordinary tokens is text; only the id makes it a tag.
class ReplyTags {
  public:
    // `stops_only`: nothing but a stop id is a tag.
    ReplyTags(const Tokenizer& tokenizer, std::vector<TokenId> stop_tokens, bool stops_only);

    ReplyTag of(TokenId id) const {
        if (to_int(id) < lowest_) return ReplyTag::none;
        for (const auto& [tagged, tag] : tags_) {
            if (tagged == id) return tag;
        }
        return ReplyTag::none;
    }

  private:
    std::vector<std::pair<TokenId, ReplyTag>> tags_;
    std::int32_t lowest_ = 0;
};

}  // namespace percheron
