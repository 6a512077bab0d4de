// One tool call, from the tag that opens it to the tag that ends it.
//
//   call := "<tool_call>" name ("<arg_key>" key "</arg_key>" "<arg_value>" value "</arg_value>")*
//           "</tool_call>"
//
// Blanks may stand between tags.  Values are raw text whose type the tool's schema decides; strings
// are streamed as they come, all else waits for its end.
//
// A closing tag inside a value may be part of its text (code that prints tags, say).  </arg_value>
// closes only if the next token that is not blank is <arg_key>, </tool_call> or a stop id.
// </tool_call> without it closes only before <tool_call> or a stop id.  All other tags there are
// text.
//
// Models slip; what can be understood in one way only is: a missing </arg_key>, <arg_value> or
// closing tag before the reply's end, `name>{json}` and `{"name":...,"arguments":{...}}` in place
// of keys, and `<arg_key>key=value` in place of a pair.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/detokenizer.h"
#include "text/reply_event.h"
#include "text/reply_tags.h"
#include "text/tool_schema.h"

namespace percheron {

class ToolCallParser {
  public:
    // `schemas` must outlive the parser.
    ToolCallParser(const ToolSchemas& schemas, std::uint32_t index, std::string call_id)
        : schemas_(&schemas), index_(index), call_id_(std::move(call_id)) {}

    enum class State {
        open,           // more of the call is expected
        closed,         // the token ended the call
        closed_before,  // the call ended before the token, which is not part of it
    };
    // One token: its tag and its bytes.  Not after the call is closed.
    State push(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);

    // The reply ends inside the call.  `complete`: the model meant to end here, so the call is
    // closed if it makes sense; otherwise it was cut and stays as it is.
    void end(bool complete, ReplyEventWriter& events);

    bool begun() const { return begun_; }  // its name was given out
    bool complete() const { return complete_; }
    // Text between the tags that names no function; only if nothing was given out.
    const std::string& unusable_text() const { return name_; }

  private:
    enum class Place {
        name,
        key,
        after_key,
        value,
        value_closing,  // </arg_value> was read, and only blanks since
        call_closing,   // </tool_call> was read in a value, and only blanks since
        after_value,
    };

    State in_name(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);
    State in_key(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);
    State after_key(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);
    State in_value(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);
    State value_closing(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);
    State call_closing(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);
    State after_value(ReplyTag tag, ReplyEventWriter& events);

    void begin(std::string name, ReplyEventWriter& events);
    bool begin_without_keys(ReplyEventWriter& events);
    bool close(ReplyEventWriter& events);
    void begin_key() { key_.clear(), place_ = Place::key; }
    void finish_key();
    bool split_key(std::string& value);
    void key_without_value(ReplyEventWriter& events);
    void begin_value(ReplyEventWriter& events);
    void value_bytes(std::string_view bytes, ReplyEventWriter& events);
    void value_text(std::string_view text, ReplyEventWriter& events);
    void end_value(ReplyEventWriter& events);
    void put(std::string_view json, ReplyEventWriter& events) {
        // Keys may come without a name before them: there is nothing to give them to.
        if (begun_) events.text(ReplyEvent::Kind::tool_arguments, json, index_);
    }

    const ToolSchemas* schemas_;
    std::uint32_t index_;
    std::string call_id_;
    Place place_ = Place::name;
    bool begun_ = false;
    bool complete_ = false;
    bool has_members_ = false;  // the arguments' object has been opened
    std::string name_;          // as written until the call has begun, then the function's
    std::string key_;
    Detokenizer detokenizer_;  // of the part being read
    JsonTypes types_;          // of the value being read
    bool streaming_ = false;   // the value is known to be a string and is given out as it comes
    std::string raw_;          // the value so far, when it is not
    std::string held_;         // a closing tag and the blanks after it
};

}  // namespace percheron
