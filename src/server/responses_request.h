// The Responses form of a chat (POST /v1/responses) as a chat body.
//
// Items become messages in their order; reasoning, text and calls of one turn are one message.  Of
// the tools, functions are offered, also those inside a namespace; a custom tool is offered as a
// function of one string, `input`; tools that run elsewhere are left out.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "server/converted_body.h"
#include "server/response_store.h"

namespace percheron::server {

// What a reply needs to know of its request.
struct ResponseRequest {
    Json echo = Json::object();  // fields of the request that the reply repeats
    Json input = Json::array();  // this turn's items
    bool store = true;
    std::shared_ptr<const StoredResponse> previous;
    std::map<std::string, std::string> namespaces;  // of functions that have one
    std::map<std::string, bool> custom;             // names of custom tools
};

struct ConvertedResponse {
    ConvertedBody body;
    ResponseRequest request;
};
ConvertedResponse chat_of_response(std::string_view body, const ResponseStore& store,
                                   std::string_view owner);

// Appends the messages that `items` mean to body.chat["messages"].  `place`: where they stand.
void add_items(const Json& items, const std::string& place, ConvertedBody& body);

}  // namespace percheron::server
