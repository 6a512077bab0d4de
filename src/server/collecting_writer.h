// Replies that are sent whole: keeps what comes and answers when all choices have ended.
#pragma once

#include <string>
#include <vector>

#include "server/generation.h"
#include "server/reply_writer.h"

namespace percheron::server {

// A run of one kind within a reply: thinking, answer, or one call.
struct ReplyBlock {
    enum class Kind { reasoning, content, call };
    Kind kind = Kind::content;
    std::string text;  // of a call: its arguments
    std::string call_id;
    std::string name;  // of a called function
};

// Appends a piece to the block it continues, or opens a new one; true: it did.
bool add_to_blocks(std::vector<ReplyBlock>& blocks, const ReplyEvent& event);

struct CollectedChoice {
    std::vector<ReplyBlock> blocks;  // in the order of the reply
    std::vector<TokenDetail> tokens;
    ChoiceEnd end;

    // The text of all blocks of that kind.
    std::string text_of(ReplyBlock::Kind kind) const;
};

class CollectingWriter : public ReplyWriter {
  public:
    CollectingWriter(const WriterSetting& setting, std::size_t choices,
                     ErrorForm form = ErrorForm::openai)
        : exchange_(setting.exchange),
          identity_(setting.identity),
          tokenizer_(setting.tokenizer),
          form_(form),
          choices_(choices) {}

    void begin() override {}
    void pieces(std::uint32_t index, std::span<const ReplyPiece> pieces,
                const ReplyUsage& usage) override;
    void end_choice(std::uint32_t index, const ChoiceEnd& end, const ReplyUsage& usage) override;
    void end(const ReplyUsage& usage) override;
    void fail(const ApiError& error) override;

  protected:
    // The reply's body.
    virtual std::string render(const ReplyUsage& usage) = 0;

    const ReplyIdentity& identity() const { return identity_; }
    const Tokenizer& tokenizer() const { return tokenizer_; }
    const std::vector<CollectedChoice>& choices() const { return choices_; }

  private:
    HttpExchange& exchange_;
    ReplyIdentity identity_;
    const Tokenizer& tokenizer_;
    ErrorForm form_;
    std::vector<CollectedChoice> choices_;
};

}  // namespace percheron::server
