#include "server/response_store.h"

namespace percheron::server {
namespace {

// About what a JSON value takes in memory.
std::size_t size_of(const Json& value) {
    std::size_t bytes = sizeof(Json);
    if (value.is_string()) return bytes + value.get_ref<const std::string&>().size();
    if (!value.is_structured()) return bytes;
    for (const auto& [name, inner] : value.items())
        bytes += (value.is_object() ? sizeof(std::string) + name.size() : 0) + size_of(inner);
    return bytes;
}

}  // namespace

void ResponseStore::add(StoredResponse response) {
    const std::size_t size = sizeof(StoredResponse) + response.object.size() +
                             size_of(response.input) + size_of(response.output);
    *bytes_ += size;
    std::shared_ptr<const StoredResponse> kept(new StoredResponse(std::move(response)),
                                               [bytes = bytes_, size](const StoredResponse* gone) {
                                                   delete gone;
                                                   *bytes -= size;
                                               });
    const std::lock_guard lock(mutex_);
    order_.push_back(kept->id);
    responses_[kept->id] = std::move(kept);
    while (bytes_->load() > most_bytes_ && !order_.empty()) {
        const auto oldest = responses_.find(order_.front());
        order_.pop_front();
        if (oldest != responses_.end()) responses_.erase(oldest);
    }
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id,
                                                          std::string_view owner) const {
    const std::lock_guard lock(mutex_);
    const auto found = responses_.find(id);
    if (found == responses_.end() || found->second->owner != owner) return nullptr;
    return found->second;
}

bool ResponseStore::erase(const std::string& id, std::string_view owner) {
    const std::lock_guard lock(mutex_);
    const auto found = responses_.find(id);
    if (found == responses_.end() || found->second->owner != owner) return false;
    responses_.erase(found);
    return true;
}

}  // namespace percheron::server
