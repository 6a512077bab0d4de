// Streams that name the parts of a reply: each block (thinking, answer, call) is opened, grows and
// is closed before the next one opens.  For APIs whose replies have one choice.
#pragma once

#include <string_view>
#include <vector>

#include "server/collecting_writer.h"
#include "server/event_stream_writer.h"

namespace percheron::server {

class BlockStreamWriter : public EventStreamWriter {
  public:
    using EventStreamWriter::EventStreamWriter;

    void pieces(std::uint32_t choice, std::span<const ReplyPiece> pieces,
                const ReplyUsage& usage) override;
    void end_choice(std::uint32_t choice, const ChoiceEnd& end, const ReplyUsage& usage) override;
    void end(const ReplyUsage& usage) override;

  protected:
    // All of them append to text().
    virtual void open_reply(const ReplyUsage& usage) = 0;  // with the first block, or the end
    virtual void open_block(std::size_t index, const ReplyBlock& block) = 0;
    virtual void grow_block(std::size_t index, const ReplyBlock& block, std::string_view more) = 0;
    // `complete`: false for the last one if the reply's end has cut it.
    virtual void close_block(std::size_t index, const ReplyBlock& block, bool complete) = 0;
    virtual void close_reply(const ChoiceEnd& end, const ReplyUsage& usage) = 0;

    const std::vector<ReplyBlock>& blocks() const { return blocks_; }
    // Begins an event that names itself: `event: NAME`, then its data as far as {"type":NAME
    std::string& name_event(std::string_view name);

  private:
    std::vector<ReplyBlock> blocks_;
    bool opened_ = false;
    ChoiceEnd end_;
};

// Whether the reply ended inside its last block, a call.
bool cuts_last_call(const std::vector<ReplyBlock>& blocks, const ChoiceEnd& end);
// Whether the last block is all the model wanted to say in it.
bool completes_last_block(const std::vector<ReplyBlock>& blocks, const ChoiceEnd& end);

}  // namespace percheron::server
