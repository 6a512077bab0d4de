#include "text/reply_stream.h"

#include "text/reply_parser.h"
#include "text/reply_tags.h"
#include "text/stop_strings.h"

namespace percheron {

struct ReplyStream::State {
    const Tokenizer& tokenizer;
    ReplyTags tags;
    StopStrings stops;
    ReplyParser parser;
    ReplySummary summary;
    bool stopped = false;

    State(const Tokenizer& tokenizer, const ToolSchemas& tools, ReplyOptions options)
        : tokenizer(tokenizer),
          tags(tokenizer, std::move(options.stop_tokens), options.verbatim),
          stops(options.stop_strings),
          parser(tools, stops,
                 {options.starts_in_reasoning && !options.verbatim,
                  options.parse_tool_calls && !options.verbatim, std::move(options.call_id_prefix),
                  options.verbatim}) {}

    void count_calls() {
        summary.tool_calls = parser.calls();
        summary.complete_tool_calls = parser.complete_calls();
        summary.dropped_tool_calls = parser.dropped_calls();
        summary.open_tool_call = parser.in_call();
        summary.in_reasoning = parser.in_reasoning();
    }
};

ReplyStream::ReplyStream(const Tokenizer& tokenizer, const ToolSchemas& tools, ReplyOptions options)
    : state_(std::make_unique<State>(tokenizer, tools, std::move(options))) {}
ReplyStream::ReplyStream(ReplyStream&&) noexcept = default;
ReplyStream& ReplyStream::operator=(ReplyStream&&) noexcept = default;
ReplyStream::~ReplyStream() = default;

ReplyStream::Step ReplyStream::push(std::span<const TokenId> ids, std::vector<ReplyEvent>& events) {
    State& state = *state_;
    Step step{0, state.stopped};
    ReplyEventWriter writer(events);
    while (!state.stopped && step.consumed < ids.size()) {
        const TokenId id = ids[step.consumed++];
        const ReplyTag tag = state.tags.of(id);
        ++state.summary.tokens;
        const bool counts =
            state.parser.in_reasoning() && tag != ReplyTag::stop && tag != ReplyTag::think_close;
        state.summary.reasoning_tokens += counts ? 1 : 0;
        // Special tokens have no place in what people read.
        const bool hidden = tag == ReplyTag::none && state.tokenizer.is_special(id);
        const std::string* found = state.parser.push(
            tag, hidden ? std::string_view() : state.tokenizer.bytes_of(id), writer);
        if (found != nullptr) state.summary.stop_string = *found;
        state.summary.stop_token_seen = tag == ReplyTag::stop;
        state.stopped = found != nullptr || tag == ReplyTag::stop;
    }
    state.count_calls();
    step.stop = state.stopped;
    return step;
}

void ReplyStream::finish(End end, std::vector<ReplyEvent>& events) {
    State& state = *state_;
    if (!state.stopped) {
        ReplyEventWriter writer(events);
        state.parser.end(end == End::stopped, writer);
        state.stopped = true;
    }
    state.count_calls();
}

const ReplySummary& ReplyStream::summary() const {
    return state_->summary;
}

}  // namespace percheron
