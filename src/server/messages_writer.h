// Replies in Anthropic's form: one message object, or the events message_start, then for each block
// content_block_start, content_block_delta, content_block_stop, then message_delta, message_stop.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/reply_writer.h"

namespace percheron::server {

std::unique_ptr<ReplyWriter> make_messages_writer(const WriterSetting& setting);
std::unique_ptr<ReplyWriter> make_messages_stream_writer(const WriterSetting& setting);

}  // namespace percheron::server
