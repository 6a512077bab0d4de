#include "server/completion_logprobs.h"

#include <algorithm>
#include <set>

#include "server/sse.h"
#include "text/unicode.h"

namespace percheron::server {
namespace {

// Where a probability is zero the API's clients expect this value instead of an infinity.
float shown(float logprob) {
    return std::max(logprob, -9999.0f);
}

}  // namespace

// Part of a character is named by its bytes: as text all such parts would be one.
std::string CompletionLogprobs::name_of(TokenId id) const {
    const std::string_view bytes = tokenizer_.bytes_of(id);
    if (is_valid_utf8(bytes)) return std::string(bytes);
    constexpr std::string_view digits = "0123456789abcdef";
    std::string name = "bytes:";
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        name += "\\x";
        name += digits[byte >> 4];
        name += digits[byte & 15];
    }
    return name;
}

std::uint64_t CompletionLogprobs::add(TokenId id, const EngineEvents::Logprobs* scores,
                                      std::uint64_t offset) {
    if (!tokens_.empty()) {
        for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_})
            *list += ',';
    }
    append_quoted(tokens_, name_of(id));
    append_number(offsets_, offset);
    if (scores == nullptr) {
        logprobs_ += "null";
        top_ += "null";
    } else {
        append_number(logprobs_, shown(scores->chosen));
        add_top(id, *scores);
    }
    const std::string_view bytes = tokenizer_.bytes_of(id);
    const auto begins_character = [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; };
    return offset +
           static_cast<std::uint64_t>(std::count_if(bytes.begin(), bytes.end(), begins_character));
}

// The largest first; the chosen token is always among them.  Harnesses compare its value with the
// largest, so both are written from the same number.
void CompletionLogprobs::add_top(TokenId id, const EngineEvents::Logprobs& scores) {
    std::set<std::string> seen;
    const auto add_one = [&](TokenId token, float logprob) {
        std::string name = name_of(token);
        if (seen.contains(name)) return;
        if (!seen.empty()) top_ += ',';
        append_quoted(top_, name);
        top_ += ':';
        append_number(top_, shown(logprob));
        seen.insert(std::move(name));
    };
    top_ += '{';
    for (const TokenLogprob& entry : scores.top)
        add_one(entry.id, entry.logprob);
    add_one(id, scores.chosen);
    top_ += '}';
}

void CompletionLogprobs::append_to(std::string& json) const {
    json += R"({"tokens":[)" + tokens_ + R"(],"token_logprobs":[)" + logprobs_ +
            R"(],"top_logprobs":[)" + top_ + R"(],"text_offset":[)" + offsets_ + "]}";
}

}  // namespace percheron::server
