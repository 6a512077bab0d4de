#include "text/image_parts.h"

#include <algorithm>
#include <utility>

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;

// A text that stands nowhere in `rendered`.
std::string unused_text(const std::string& rendered) {
    for (std::size_t salt = 0;; ++salt) {
        std::string text = "[[picture " + std::to_string(salt) + "-";
        if (rendered.find(text) == std::string::npos) return text;
    }
}

// `Part` is Json or const Json, `String` std::string alike.
template <class String, class Part>
String* find_url(Part& part) {
    for (const char* name : {"image_url", "image"}) {
        const auto found = part.find(name);
        if (found == part.end()) continue;
        if (found->is_string()) return found->template get_ptr<String*>();
        if (!found->is_object()) continue;
        const auto url = found->find("url");
        if (url != found->end() && url->is_string()) return url->template get_ptr<String*>();
    }
    return nullptr;
}

}  // namespace

const std::string* image_url_of(const Json& part) {
    return find_url<const std::string>(part);
}

std::string* image_url_of(Json& part) {
    return find_url<std::string>(part);
}

bool is_image_part(const Json& part) {
    if (!part.is_object()) return false;
    const auto type = part.find("type");
    return type != part.end() &&
           (*type == "image" || *type == "image_url" || *type == "input_image");
}

void for_each_image_part(Json& messages,
                         const std::function<void(Json&, const std::string&)>& visit) {
    if (!messages.is_array()) return;
    for (std::size_t m = 0; m < messages.size(); ++m) {
        if (!messages[m].is_object()) continue;
        const auto content = messages[m].find("content");
        if (content == messages[m].end() || !content->is_array()) continue;
        for (std::size_t p = 0; p < content->size(); ++p) {
            if (!is_image_part((*content)[p])) continue;
            visit((*content)[p],
                  "messages[" + std::to_string(m) + "].content[" + std::to_string(p) + "]");
        }
    }
}

std::size_t count_image_parts(const Json& messages) {
    std::size_t count = 0;
    if (!messages.is_array()) return count;
    for (const Json& message : messages) {
        if (!message.is_object()) continue;
        const auto content = message.find("content");
        if (content == message.end() || !content->is_array()) continue;
        count += static_cast<std::size_t>(
            std::count_if(content->begin(), content->end(), is_image_part));
    }
    return count;
}

Result<std::vector<std::size_t>> order_of_image_parts(
    Json messages, const std::string& rendered,
    const std::function<Result<std::string>(const Json&)>& render) {
    const std::string mark = unused_text(rendered);
    std::size_t parts = 0;
    for_each_image_part(messages, [&](Json& part, const std::string&) {
        part = {{"type", "text"}, {"text", mark + std::to_string(parts++) + "]]"}};
    });
    PERCHERON_ASSIGN(const std::string marked, render(messages));
    std::vector<std::size_t> order;
    for (std::size_t at = marked.find(mark); at != std::string::npos; at = marked.find(mark, at)) {
        at += mark.size();
        order.push_back(std::stoul(marked.substr(at)));
    }
    std::vector<std::size_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t k = 0; k < std::max(parts, sorted.size()); ++k) {
        if (k >= parts || k >= sorted.size() || sorted[k] != k) {
            return Error(ErrorCode::invalid_argument,
                         "the chat template does not print every image of messages once; send "
                         "images in user or tool messages");
        }
    }
    return order;
}

}  // namespace percheron
