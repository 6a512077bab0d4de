#include "server/block_stream_writer.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace percheron::server {

bool cuts_last_call(const std::vector<ReplyBlock>& blocks, const ChoiceEnd& end) {
    return !blocks.empty() && blocks.back().kind == ReplyBlock::Kind::call &&
           end.finish_reason != "tool_calls" && !nlohmann::json::accept(blocks.back().text);
}

bool completes_last_block(const std::vector<ReplyBlock>& blocks, const ChoiceEnd& end) {
    return end.finish_reason != "length" && !cuts_last_call(blocks, end);
}

void BlockStreamWriter::pieces(std::uint32_t /*choice*/, std::span<const ReplyPiece> pieces,
                               const ReplyUsage& usage) {
    if (!std::exchange(opened_, true)) open_reply(usage);
    for (const ReplyPiece& piece : pieces) {
        const bool begins_call = piece.event.kind == ReplyEvent::Kind::tool_begin;
        const std::size_t before = blocks_.size();
        if (add_to_blocks(blocks_, piece.event)) {
            if (before > 0) close_block(before - 1, blocks_[before - 1], true);
            ReplyBlock empty = blocks_.back();
            empty.text.clear();
            open_block(before, empty);
        }
        if (!begins_call && !piece.event.text.empty()) {
            grow_block(blocks_.size() - 1, blocks_.back(), piece.event.text);
        }
    }
    flush();
}

void BlockStreamWriter::end_choice(std::uint32_t /*choice*/, const ChoiceEnd& end,
                                   const ReplyUsage& usage) {
    if (!std::exchange(opened_, true)) open_reply(usage);
    end_ = end;
    if (!blocks_.empty()) {
        close_block(blocks_.size() - 1, blocks_.back(), completes_last_block(blocks_, end));
    }
}

std::string& BlockStreamWriter::name_event(std::string_view name) {
    std::string& json = text();
    json += "event: ";
    json += name;
    json += "\ndata: {\"type\":\"";
    json += name;
    json += '"';
    return json;
}

void BlockStreamWriter::end(const ReplyUsage& usage) {
    close_reply(end_, usage);
    close();
}

}  // namespace percheron::server
