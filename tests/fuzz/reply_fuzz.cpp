// Any tokens in any steps: streamed equals whole, arguments are JSON, text is UTF-8.
#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "fuzz.h"
#include "text/reply_stream.h"
#include "text/unicode.h"

namespace percheron::fuzz {
namespace {

using Json = nlohmann::ordered_json;

const Tokenizer& nano() {
    static const Tokenizer tokenizer =
        Tokenizer::load(PERCHERON_SOURCE_DIR "/models/nano/tokenizer.json").value();
    return tokenizer;
}

const ToolSchemas& tools() {
    static const ToolSchemas schemas(Json::parse(
        R"([{"function":{"name":"f","parameters":{"properties":{"a":{"type":"string"},
            "b":{"type":"integer"},"c":{"type":["string","null"]},"d":{}}}}},
            {"function":{"name":"list_rooms"}}])"));
    return schemas;
}

// What a client joins: text by kind and call, in order.
struct Joined {
    std::string reasoning;
    std::string content;
    std::vector<std::string> names;
    std::vector<std::string> calls;  // arguments
    std::vector<bool> ended;
    std::uint32_t tokens = 0;
    bool operator==(const Joined&) const = default;
};

void join(const std::vector<ReplyEvent>& events, Joined& joined) {
    using Kind = ReplyEvent::Kind;
    for (const ReplyEvent& event : events) {
        promise(is_valid_utf8(event.text), "text is whole characters");
        if (event.kind == Kind::reasoning) joined.reasoning += event.text;
        if (event.kind == Kind::content) joined.content += event.text;
        if (event.kind == Kind::tool_begin) {
            promise(event.tool_index == joined.calls.size(), "calls count up");
            joined.calls.emplace_back();
            promise(!event.text.empty(), "a call has a name");
            joined.names.push_back(event.text);
            joined.ended.push_back(false);
        }
        if (event.kind == Kind::tool_arguments) joined.calls.at(event.tool_index) += event.text;
        if (event.kind == Kind::tool_end) joined.ended.at(event.tool_index) = true;
    }
}

Joined read(const std::vector<TokenId>& ids, const ReplyOptions& options, ReplyStream::End end,
            std::size_t step) {
    ReplyStream stream(nano(), tools(), options);
    Joined joined;
    std::vector<ReplyEvent> events;
    std::span<const TokenId> rest = ids;
    while (!rest.empty()) {
        const auto taken = stream.push(rest.first(std::min(step, rest.size())), events);
        rest = rest.subspan(taken.consumed);
        if (taken.stop) break;
    }
    stream.finish(end, events);
    join(events, joined);
    joined.tokens = stream.summary().tokens;
    return joined;
}

}  // namespace

void reply(Input input) {
    Reader reader(input);
    const std::uint8_t shape = reader.byte();
    ReplyOptions options;
    options.starts_in_reasoning = (shape & 1) != 0;
    options.parse_tool_calls = (shape & 6) != 0;
    if ((shape & 8) != 0) options.stop_strings = {"ab", "b c", "abcabd"};
    options.stop_tokens = {nano().added_token("<|user|>").value()};
    const auto end = (shape & 16) != 0 ? ReplyStream::End::cut : ReplyStream::End::stopped;
    std::vector<TokenId> ids;
    while (!reader.empty()) {
        // Bytes below 0xE0 are themselves; above are tags, which no byte sequence spells.
        static const char* const tags[] = {"<think>",   "</think>",   "<tool_call>", "</tool_call>",
                                           "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
                                           "<|image|>", "<|system|>"};
        const std::uint8_t byte = reader.byte();
        if (byte == 0xFE) {
            ids.push_back(nano().byte_token(reader.byte()));
        } else if (byte == 0xFF) {
            ids.push_back(TokenId{reader.byte() * 33 - 60});
        } else if (byte == 0xFD) {
            ids.push_back(options.stop_tokens[0]);
        } else if (byte >= 0xE0) {
            ids.push_back(nano().added_token(tags[(byte - 0xE0) % std::size(tags)]).value());
        } else {
            ids.push_back(nano().byte_token(byte));
        }
    }
    const Joined whole = read(ids, options, end, ids.size() + 1);
    for (const std::size_t step : {1u, 2u, 3u, 7u}) {
        promise(read(ids, options, end, step) == whole, "every cut gives the same reply");
    }
    for (std::size_t i = 0; i < whole.calls.size(); ++i) {
        if (!whole.ended[i]) continue;
        promise(Json::parse(whole.calls[i], nullptr, false).is_object(), "arguments are an object");
    }
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(reply)
