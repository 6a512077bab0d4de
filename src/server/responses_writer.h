// Replies of /v1/responses: one response object, or its whole sequence of events, numbered from 0.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/reply_writer.h"
#include "server/responses_request.h"

namespace percheron::server {

struct ResponsesWriterOptions {
    std::shared_ptr<const ResponseRequest> request;
    ResponseStore* store = nullptr;  // where the reply is kept, if the request wants that
    std::string owner;
};

std::unique_ptr<ReplyWriter> make_responses_writer(const WriterSetting& setting,
                                                   const ResponsesWriterOptions& options);
std::unique_ptr<ReplyWriter> make_responses_stream_writer(const WriterSetting& setting,
                                                          const ResponsesWriterOptions& options);

}  // namespace percheron::server
