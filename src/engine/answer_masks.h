// The masks of one choice's rows, worked out beside the trunk (M1 to M4 of docs/SCHEDULER.md).
//
// A step's rows want the mask behind the tokens so far, and behind each of its drafts: all of them
// follow from ids that are known before the trunk runs.  So the engine thread begins an order of
// them and goes on; a mask thread fulfils it; whoever comes for masks that are not there goes
// without them.  While an order is under way the grammar's state is the mask thread's alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "percheron/token_constraint.h"
#include "percheron/types.h"

#include "core/status.h"
#include "engine/thinking_budget.h"

namespace percheron::engine {

class AnswerMasks {
  public:
    // `stops` end the text wherever they are accepted.
    AnswerMasks(std::unique_ptr<TokenConstraint> constraint, std::vector<TokenId> stops,
                std::size_t vocabulary)
        : constraint_(std::move(constraint)),
          stops_(std::move(stops)),
          words_((vocabulary + 31) / 32) {}

    // ---- the engine thread

    // A token of the answer was taken: it belongs to the next order.
    void take(TokenId token) { untold_.push_back(token); }

    // Whether the latest order is of a text of so many tokens.
    bool is_of(std::size_t tokens) const { return ordered_ && *ordered_ == tokens; }
    // Nothing is under way.
    bool idle() const { return !under_way_.load(std::memory_order_acquire); }

    // Begins an order for the rows behind a text of `tokens` tokens and behind its drafts, some of
    // which may be thinking still.  False: no row needs a mask.  Only while idle.
    bool begin(std::size_t tokens, const ThinkingBudget& thinking, std::span<const TokenId> drafts);

    // How many of `drafts` the rows can be taken for with the masks there are; nothing: not even
    // the first row can.
    std::optional<std::uint32_t> usable_drafts(std::size_t tokens, const ThinkingBudget& thinking,
                                               std::span<const TokenId> drafts) const;

    // The mask of a row that needs one, among those usable_drafts() allows.  Errors: the
    // constraint's; internal, where it does not take the token before.
    Result<std::span<const std::uint32_t>> mask(std::uint32_t row) const;

    // ---- the mask thread

    void fulfil();
    // Where the engine thread has let go of it.
    void keep(std::shared_ptr<AnswerMasks> self) { self_ = std::move(self); }
    std::shared_ptr<AnswerMasks> release() { return std::move(self_); }

  private:
    Status catch_up();

    std::unique_ptr<TokenConstraint> constraint_;
    const std::vector<TokenId> stops_;
    const std::size_t words_;

    // The engine thread's.
    std::vector<TokenId> untold_;
    std::optional<std::size_t> ordered_;  // the latest order's text, in tokens
    std::vector<TokenId> drafts_;         // its drafts, of thinking and of the answer
    std::uint32_t first_row_ = 0;         // rows before it are inside the thinking

    // Of whoever has the order.
    std::vector<TokenId> told_;          // tokens of the answer since the order before
    std::vector<TokenId> ahead_;         // drafts that the constraint has accepted beyond the text
    std::vector<std::uint32_t> masks_;   // [row from first_row_][words]
    std::uint32_t rows_ = 0;             // how many of them are there
    Status failure_;                     // of the last of them
    std::shared_ptr<AnswerMasks> self_;  // while the order is under way

    std::atomic<bool> under_way_{false};
};

}  // namespace percheron::engine
