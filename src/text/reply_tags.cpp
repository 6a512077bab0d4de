#include "text/reply_tags.h"

#include <algorithm>
#include <string_view>

namespace percheron {

ReplyTags::ReplyTags(const Tokenizer& tokenizer, std::vector<TokenId> stop_tokens,
                     bool stops_only) {
    for (const TokenId id : stop_tokens)
        tags_.emplace_back(id, ReplyTag::stop);
    static constexpr std::pair<std::string_view, ReplyTag> strings[] = {
        {"<think>", ReplyTag::think_open},     {"</think>", ReplyTag::think_close},
        {"<tool_call>", ReplyTag::call_open},  {"</tool_call>", ReplyTag::call_close},
        {"<arg_key>", ReplyTag::key_open},     {"</arg_key>", ReplyTag::key_close},
        {"<arg_value>", ReplyTag::value_open}, {"</arg_value>", ReplyTag::value_close},
    };
    for (const auto& [string, tag] : strings) {
        if (stops_only) break;
        if (const auto id = tokenizer.added_token(string)) tags_.emplace_back(*id, tag);
    }
    if (tags_.empty()) return;
    lowest_ = to_int(std::min_element(tags_.begin(), tags_.end())->first);
}

}  // namespace percheron
