// The replies of one request to its one writer: a request may hold several prompts, each with its
// own reply.  Choice c of reply r is the writer's choice r * n + c; usage is that of all.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "percheron/engine.h"

#include "server/reply.h"
#include "server/reply_writer.h"

namespace percheron::server {

class ReplyGroup {
  public:
    // `writer` must stay as long as the group.  `failed` is called when one of several replies has
    // failed: the writer has said so, and the others are being ended.
    ReplyGroup(ReplyWriter& writer, std::size_t replies, std::function<void()> failed);
    ~ReplyGroup();

    void add(std::shared_ptr<Reply> reply);
    // Hands the requests to the engine, one a reply.  An error leaves none of them running.
    Status start(std::vector<GenerationRequest> requests, const Reply::EndCallback& ended);

    // Nothing more will be written.
    bool done() const;
    // The client is gone.
    void detach();

  private:
    class Member;

    ReplyUsage usage() const;
    void fail(const ApiError& error);

    ReplyWriter& writer_;
    std::size_t size_;
    std::function<void()> failed_;
    std::vector<std::shared_ptr<Reply>> replies_;
    std::vector<std::unique_ptr<Member>> members_;  // empty for a single reply
    std::size_t open_;
    bool begun_ = false;
    bool has_failed_ = false;
};

}  // namespace percheron::server
