#include "engine/answer_masks.h"

#include <algorithm>
#include <string>
#include <utility>

namespace percheron::engine {
namespace {

// Of the rows behind a text and its drafts, the first that is not inside the thinking; a number
// beyond them: all are.
std::uint32_t first_answer_row(ThinkingBudget thinking, std::span<const TokenId> drafts) {
    std::uint32_t row = 0;
    while (thinking.inside() && row < drafts.size()) {
        thinking.observe(drafts[row]);
        ++row;
    }
    return thinking.inside() ? row + 1 : row;
}

}  // namespace

bool AnswerMasks::begin(std::size_t tokens, const ThinkingBudget& thinking,
                        std::span<const TokenId> drafts) {
    const std::uint32_t first = first_answer_row(thinking, drafts);
    if (first > drafts.size()) return false;
    ordered_ = tokens;
    drafts_.assign(drafts.begin(), drafts.end());
    first_row_ = first;
    told_.swap(untold_);
    untold_.clear();
    rows_ = 0;
    under_way_.store(true, std::memory_order_release);
    return true;
}

std::optional<std::uint32_t> AnswerMasks::usable_drafts(std::size_t tokens,
                                                        const ThinkingBudget& thinking,
                                                        std::span<const TokenId> drafts) const {
    const std::uint32_t first = first_answer_row(thinking, drafts);
    if (first > drafts.size()) return static_cast<std::uint32_t>(drafts.size());
    std::uint32_t usable = 0;  // rows, from the first on
    if (is_of(tokens) && idle()) {
        const auto same =
            std::mismatch(drafts.begin(), drafts.end(), drafts_.begin(), drafts_.end());
        const auto agreed = static_cast<std::uint32_t>(same.first - drafts.begin());
        if (first == first_row_) usable = std::min(rows_, agreed + 1 - std::min(first, agreed + 1));
    }
    if (first + usable == 0) return std::nullopt;
    return first + usable - 1;
}

Result<std::span<const std::uint32_t>> AnswerMasks::mask(std::uint32_t row) const {
    const std::uint32_t at = row - first_row_;
    if (at + 1 == rows_ && !failure_.ok()) return failure_.error();
    return std::span(masks_).subspan(at * words_, words_);
}

// The constraint stands behind the text: what it has accepted of drafts that hold stays.
Status AnswerMasks::catch_up() {
    const auto same = std::mismatch(ahead_.begin(), ahead_.end(), told_.begin(), told_.end());
    constraint_->roll_back(static_cast<std::size_t>(ahead_.end() - same.first));
    ahead_.clear();
    for (auto token = same.second; token != told_.end(); ++token) {
        if (!constraint_->accept(*token)) {
            return Error(ErrorCode::internal, "token " + std::to_string(to_int(*token)) +
                                                  " was chosen against the reply's grammar");
        }
    }
    return {};
}

void AnswerMasks::fulfil() {
    failure_ = catch_up();
    told_.clear();
    const auto most = static_cast<std::uint32_t>(drafts_.size()) - first_row_ + 1;
    masks_.resize(std::max(masks_.size(), most * words_));
    for (std::uint32_t row = 0; row < most; ++row) {
        rows_ = row + 1;
        if (failure_.ok()) {
            failure_ = constraint_->fill(std::span(masks_).subspan(row * words_, words_));
        }
        if (!failure_.ok() || row + 1 == most) break;
        const TokenId draft = drafts_[first_row_ + row];
        const bool ends = std::find(stops_.begin(), stops_.end(), draft) != stops_.end();
        // What may not come here is not chosen either, so nothing behind it is looked at.
        if (ends || !constraint_->accept(draft)) break;
        ahead_.push_back(draft);
    }
    under_way_.store(false, std::memory_order_release);
}

}  // namespace percheron::engine
