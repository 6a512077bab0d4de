// Replies of /v1/responses that are kept: for GET and DELETE, and for requests that go on from one.
//
// Bounded by bytes: the oldest go first.  What a younger one goes on from stays as long as that one
// does, and counts.  Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "server/json_body.h"

namespace percheron::server {

struct StoredResponse {
    std::string id;
    std::string owner;   // KeyHolder::owner of the key it was made with; others do not see it
    std::string object;  // the reply's JSON
    Json input;          // this turn's items
    Json output;
    std::shared_ptr<const StoredResponse> previous;  // what this turn went on from
};

class ResponseStore {
  public:
    explicit ResponseStore(std::size_t most_bytes) : most_bytes_(most_bytes) {}

    void add(StoredResponse response);
    // Null: there is none, or not for `owner`.
    std::shared_ptr<const StoredResponse> find(const std::string& id, std::string_view owner) const;
    // False: find() would have given nothing.
    bool erase(const std::string& id, std::string_view owner);

    std::size_t bytes() const { return bytes_->load(); }

  private:
    std::size_t most_bytes_;
    // Of all that live, forgotten ones that others go on from included.
    std::shared_ptr<std::atomic<std::size_t>> bytes_ =
        std::make_shared<std::atomic<std::size_t>>(0);
    mutable std::mutex mutex_;
    std::unordered_map<std::string, std::shared_ptr<const StoredResponse>> responses_;
    std::deque<std::string> order_;  // oldest first; erased ones too
};

}  // namespace percheron::server
