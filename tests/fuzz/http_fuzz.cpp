// Bytes as a connection brings them, cut anywhere, through the request parser.
#include <algorithm>
#include <string>

#include "fuzz.h"
#include "server/http_parser.h"

namespace percheron::fuzz {

void http_request(Input input) {
    Reader reader(input);
    const std::size_t piece = 1 + reader.byte() % 64;
    server::HttpLimits limits;
    limits.header_bytes = 4096;
    limits.body_bytes = 1024;
    server::HttpParser parser(limits);
    std::string_view rest = reader.rest();
    std::string inbox;
    while (parser.state() != server::HttpParser::State::complete &&
           parser.state() != server::HttpParser::State::failed) {
        const std::size_t taken = parser.feed(inbox);
        promise(taken <= inbox.size(), "the parser takes no more than it is given");
        inbox.erase(0, taken);
        if (parser.state() == server::HttpParser::State::header_complete) {
            parser.accept_body();
        } else if (rest.empty()) {
            parser.end_of_input();
            break;
        } else if (parser.state() == server::HttpParser::State::header ||
                   parser.state() == server::HttpParser::State::body) {
            inbox += rest.substr(0, piece);
            rest.remove_prefix(std::min(piece, rest.size()));
        }
    }
    if (parser.state() == server::HttpParser::State::complete) {
        promise(parser.request().body.size() <= limits.body_bytes, "bodies stay within the limit");
        promise(!parser.request().method.empty(), "a request has a method");
    } else if (parser.state() == server::HttpParser::State::failed) {
        promise(parser.fault().status >= 400 && parser.fault().status < 500,
                "what is wrong with a request is its client's fault");
    } else {
        promise(!parser.started(), "what has begun ends whole or with a fault");
    }
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(http_request)
