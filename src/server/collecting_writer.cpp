#include "server/collecting_writer.h"

namespace percheron::server {

bool add_to_blocks(std::vector<ReplyBlock>& blocks, const ReplyEvent& event) {
    using Kind = ReplyEvent::Kind;
    using Block = ReplyBlock::Kind;
    if (event.kind == Kind::tool_begin) {
        blocks.push_back({Block::call, "", event.call_id, event.text});
        return true;
    }
    const Block kind = event.kind == Kind::reasoning ? Block::reasoning
                       : event.kind == Kind::content ? Block::content
                                                     : Block::call;
    const bool opens = kind != Block::call && (blocks.empty() || blocks.back().kind != kind);
    if (opens) blocks.push_back({kind, "", "", ""});
    blocks.back().text += event.text;
    return opens;
}

std::string CollectedChoice::text_of(ReplyBlock::Kind kind) const {
    std::string text;
    for (const ReplyBlock& block : blocks) {
        if (block.kind == kind) text += block.text;
    }
    return text;
}

void CollectingWriter::pieces(std::uint32_t index, std::span<const ReplyPiece> pieces,
                              const ReplyUsage& /*usage*/) {
    CollectedChoice& choice = choices_[index];
    for (const ReplyPiece& piece : pieces) {
        add_to_blocks(choice.blocks, piece.event);
        choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
    }
}

void CollectingWriter::end_choice(std::uint32_t index, const ChoiceEnd& end,
                                  const ReplyUsage& /*usage*/) {
    CollectedChoice& choice = choices_[index];
    choice.end = end;
    choice.tokens.insert(choice.tokens.end(), end.rest.begin(), end.rest.end());
}

void CollectingWriter::end(const ReplyUsage& usage) {
    HttpResponse response;
    response.body = render(usage);
    exchange_.respond(std::move(response));
}

void CollectingWriter::fail(const ApiError& error) {
    exchange_.respond(error_response(error, form_));
}

}  // namespace percheron::server
