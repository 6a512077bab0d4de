// How many tokens a reply may spend inside <think>.  When they are spent the block is closed: the
// next token is the closing tag, and the answer follows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "percheron/types.h"

namespace percheron::engine {

struct ThinkTags {
    TokenId open{};
    TokenId close{};
};

class ThinkingBudget {
  public:
    ThinkingBudget() = default;
    // A prompt that ends inside an open block starts the reply inside it.
    ThinkingBudget(ThinkTags tags, std::optional<std::uint32_t> budget,
                   std::span<const TokenId> prompt)
        : tags_(tags), budget_(budget) {
        for (auto token = prompt.rbegin(); token != prompt.rend(); ++token) {
            if (*token == tags.open || *token == tags.close) {
                inside_ = *token == tags.open;
                break;
            }
        }
    }

    // The token that must come next, if the budget leaves no choice.
    std::optional<TokenId> forced() const {
        if (inside_ && (closing_ || (budget_ && spent_ >= *budget_))) {
            return tags_->close;
        }
        return std::nullopt;
    }

    // The block that is open is to be closed now, whatever is left of the budget; false: none is
    // open, or one was closed like this before.
    bool close() {
        if (!inside_ || closing_) {
            return false;
        }
        closing_ = true;
        return true;
    }

    // The next token is part of the thinking, or its closing tag.
    bool inside() const { return inside_; }

    // A token was generated.  The tags of a block cost nothing; an opening tag inside one is a token
    // of its thinking like any other.
    void observe(TokenId token) {
        if (!tags_) {
            return;
        }
        if (token == tags_->open && !inside_) {
            inside_ = true;
        } else if (token == tags_->close) {
            inside_ = false;
        } else if (inside_) {
            ++spent_;
        }
    }

  private:
    std::optional<ThinkTags> tags_;
    std::optional<std::uint32_t> budget_;
    bool inside_ = false;
    bool closing_ = false;  // from close() on: a block that is opened again is closed at once
    std::uint32_t spent_ = 0;
};

}  // namespace percheron::engine
