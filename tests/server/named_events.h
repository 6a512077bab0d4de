// Event streams whose events have names: "event: NAME\ndata: JSON\n\n".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "server/http_client.h"
#include "server/understood.h"

namespace percheron::test {

// The data of every event, in order; each must name itself by its type.
inline std::vector<Json> named_events(const ClientReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.header("content-type"), "text/event-stream");
    EXPECT_TRUE(reply.whole);
    std::vector<Json> events;
    std::string_view rest = reply.body;
    while (!rest.empty()) {
        const std::size_t end = rest.find("\n\n");
        const std::size_t line = rest.find("\ndata: ");
        if (end == std::string_view::npos || line > end || rest.substr(0, 7) != "event: ") {
            ADD_FAILURE() << "no named event: " << rest.substr(0, 200);
            return events;
        }
        events.push_back(Json::parse(rest.substr(line + 7, end - line - 7), nullptr, false));
        EXPECT_FALSE(events.back().is_discarded());
        EXPECT_EQ(events.back()["type"], rest.substr(7, line - 7));
        rest.remove_prefix(end + 2);
    }
    return events;
}

inline std::vector<std::string> types_of(const std::vector<Json>& events) {
    std::vector<std::string> types;
    for (const Json& event : events)
        types.push_back(event["type"]);
    return types;
}

// Asks for a reply cut in every way, whole and as a stream: all must be one, and that comes back.
// `whole` and `streamed` take the server and the request, and give the reply without what differs
// from one to the next (ids).
template <class Whole, class Streamed>
Json same_for_every_cut(const std::vector<TokenId>& ids, Json request, Whole whole,
                        Streamed streamed) {
    const auto forms = all_step_forms(ids);
    Lines lines;
    for (const Json& steps : forms) {
        for (int i = 0; i < 2; ++i)
            lines.push_back({{"steps", steps}});
    }
    const ReplayServer server(lines);
    request["seed"] = 5;
    Json first;
    for (const Json& steps : forms) {
        SCOPED_TRACE("steps " + steps.dump());
        request["stream"] = false;
        const Json once = whole(server, request);
        request["stream"] = true;
        EXPECT_EQ(streamed(server, request), once);
        if (first.is_null()) first = once;
        EXPECT_EQ(once, first);
        if (testing::Test::HasFailure()) break;
    }
    return first;
}

}  // namespace percheron::test
