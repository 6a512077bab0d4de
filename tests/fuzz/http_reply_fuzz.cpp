// Bytes as a server brings them, cut anywhere, through the client's reader of replies.
#include <algorithm>
#include <string>

#include "fuzz.h"
#include "tools/http_reply_reader.h"

namespace percheron::fuzz {
namespace {

using tools::HttpReplyReader;

constexpr std::uint64_t most_body_bytes = 2048;

struct Read {
    HttpReplyReader::State state{};
    int status = 0;
    std::string body;
};

Read read(std::string_view bytes, std::size_t piece) {
    HttpReplyReader reader(most_body_bytes);
    Read result;
    const auto take = [&] {
        while (const auto part = reader.next_piece()) {
            promise(!part->empty(), "a piece has bytes");
            result.body += *part;
        }
    };
    while (!bytes.empty()) {
        reader.add(bytes.substr(0, piece));
        bytes.remove_prefix(std::min(piece, bytes.size()));
        take();
    }
    reader.end();
    take();
    result.state = reader.state();
    result.status = reader.status();
    const bool broken = result.state == HttpReplyReader::State::broken;
    promise(broken || result.state == HttpReplyReader::State::ended,
            "a connection's end is a reply's end or its fault");
    promise(broken == !reader.problem().empty(), "what is broken says why, and only that");
    promise(broken || (result.status >= 200 && result.status <= 999), "a reply has a status");
    promise(result.body.size() <= most_body_bytes, "bodies stay within the limit");
    return result;
}

}  // namespace

void http_reply(Input input) {
    Reader reader(input);
    const std::size_t piece = 1 + reader.byte() % 32;
    const Read whole = read(reader.rest(), reader.rest().size() + 1);
    for (const std::size_t size : {piece, std::size_t{1}}) {
        const Read cut = read(reader.rest(), size);
        promise(cut.state == whole.state && cut.status == whole.status,
                "every cut is the same reply");
        // A body that breaks off may have been given out as far as it came.
        promise(whole.state == HttpReplyReader::State::broken || cut.body == whole.body,
                "every cut is the same body");
    }
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(http_reply)
