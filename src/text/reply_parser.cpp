#include "text/reply_parser.h"

#include "text/unicode.h"

namespace percheron {
namespace {

const std::vector<std::string> no_names;

}  // namespace

ReplyParser::ReplyParser(const ToolSchemas& tools, const StopStrings& stops, Settings settings)
    : tools_(&tools),
      settings_(std::move(settings)),
      place_(settings_.starts_in_reasoning ? Place::reasoning : Place::content),
      stops_(stops),
      gate_(settings_.parse_tool_calls ? tools.names() : no_names) {}

const std::string* ReplyParser::push(ReplyTag tag, std::string_view bytes,
                                     ReplyEventWriter& events) {
    if (tag == ReplyTag::stop) {
        end(true, events);
        return nullptr;
    }
    switch (place_) {
        case Place::reasoning:
            return reasoning_token(tag, bytes, events);
        case Place::content:
            return content_token(tag, bytes, events);
        case Place::call:
            return call_token(tag, bytes, events);
        case Place::ended:
            break;
    }
    return nullptr;
}

void ReplyParser::end(bool complete, ReplyEventWriter& events) {
    if (place_ == Place::reasoning) return close_reasoning(true, events);
    if (place_ == Place::call) {
        call_->end(complete, events);
        if (!complete) {
            calls_ += call_->begun() ? 1 : 0;
            return;  // still in the call
        }
        finish_call(events);
    }
    if (place_ == Place::content) {
        detokenizer_.drop();
        settle_content(events);
        std::string text;
        gate_.flush(text);
        events.text(ReplyEvent::Kind::content, text);
    }
    place_ = Place::ended;
}

// ---- thinking -----------------------------------------------------------------------------------

const std::string* ReplyParser::reasoning_text(std::string_view text, ReplyEventWriter& events) {
    reasoning_seen_ = reasoning_seen_ || !is_blank(text);
    std::string certain;
    const std::string* found = stops_.append(text, certain);
    events.text(ReplyEvent::Kind::reasoning, certain);
    return found;
}

void ReplyParser::close_reasoning(bool cut, ReplyEventWriter& events) {
    if (cut) detokenizer_.drop();
    std::string text;
    stops_.flush(text);
    detokenizer_.close(text);
    events.text(ReplyEvent::Kind::reasoning, text);
}

const std::string* ReplyParser::reasoning_token(ReplyTag tag, std::string_view bytes,
                                                ReplyEventWriter& events) {
    if (tag == ReplyTag::think_close) {
        close_reasoning(false, events);
        place_ = Place::content;
        return nullptr;
    }
    // A model that opens the thinking which the prompt has opened already.
    if (tag == ReplyTag::think_open && !reasoning_seen_) return nullptr;
    std::string text;
    detokenizer_.append(bytes, text);
    return text.empty() ? nullptr : reasoning_text(text, events);
}

// ---- content ------------------------------------------------------------------------------------

const std::string* ReplyParser::content_text(std::string_view text, ReplyEventWriter& events) {
    std::string certain;
    const std::string* found = stops_.append(text, certain);
    if (settings_.verbatim) {
        events.text(ReplyEvent::Kind::content, certain);
        return found;
    }
    std::string content;
    gate_.append(certain, content);
    if (found != nullptr) gate_.flush(content);
    events.text(ReplyEvent::Kind::content, content);
    return found;
}

// Something else than text follows: what the decoder and the stop strings hold is decided.
void ReplyParser::settle_content(ReplyEventWriter& events) {
    std::string text;
    stops_.flush(text);
    detokenizer_.close(text);
    std::string content;
    gate_.append(text, content);
    events.text(ReplyEvent::Kind::content, content);
}

void ReplyParser::begin_call(ReplyEventWriter& events) {
    settle_content(events);
    std::string content;
    gate_.begin_call(content);
    events.text(ReplyEvent::Kind::content, content);
    call_.emplace(*tools_, calls_, settings_.call_id_prefix + std::to_string(calls_));
    place_ = Place::call;
}

const std::string* ReplyParser::content_token(ReplyTag tag, std::string_view bytes,
                                              ReplyEventWriter& events) {
    if (tag == ReplyTag::think_close) return nullptr;
    if (tag == ReplyTag::think_open && gate_.nothing_yet()) {
        settle_content(events);
        place_ = Place::reasoning;
        return nullptr;
    }
    const bool of_calls = tag != ReplyTag::none && tag != ReplyTag::think_open;
    if (!of_calls || !settings_.parse_tool_calls) {
        std::string text;
        detokenizer_.append(bytes, text);
        return text.empty() ? nullptr : content_text(text, events);
    }
    if (tag == ReplyTag::call_open) {
        begin_call(events);
        return nullptr;
    }
    if (tag != ReplyTag::key_open && tag != ReplyTag::call_close) return nullptr;
    settle_content(events);
    std::string content;
    // A closing tag alone says less than a key: then the name must be all there is on its line.
    const auto name = gate_.take_name(tag == ReplyTag::call_close, content);
    events.text(ReplyEvent::Kind::content, content);
    if (!name) return nullptr;
    call_.emplace(*tools_, calls_, settings_.call_id_prefix + std::to_string(calls_));
    place_ = Place::call;
    call_->push(ReplyTag::none, *name, events);
    return call_token(tag, bytes, events);
}

// ---- calls --------------------------------------------------------------------------------------

const std::string* ReplyParser::call_token(ReplyTag tag, std::string_view bytes,
                                           ReplyEventWriter& events) {
    const ToolCallParser::State state = call_->push(tag, bytes, events);
    if (state == ToolCallParser::State::open) return nullptr;
    const std::string* found = finish_call(events);
    if (found == nullptr && state == ToolCallParser::State::closed_before) {
        return content_token(tag, bytes, events);
    }
    return found;
}

const std::string* ReplyParser::finish_call(ReplyEventWriter& events) {
    place_ = Place::content;
    std::string unusable;
    if (call_->begun()) {
        ++calls_;
        complete_calls_ += call_->complete() ? 1 : 0;
    } else {
        ++dropped_calls_;
        unusable = call_->unusable_text();
    }
    call_.reset();
    // What names no function is shown rather than lost.
    return is_blank(unusable) ? nullptr : content_text(unusable, events);
}

}  // namespace percheron
