// The picture of `percheron top`: lines of text out of what a server said.  A pure function, so
// that what is shown can be tested at every size of a terminal.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/server_sample.h"

namespace percheron::tools {

struct TopState {
    std::string url;
    std::optional<ServerSample> now;
    // The oldest sample of the last minute, from the same run of the server; `now` minus this is
    // what the last minute brought.
    std::optional<ServerSample> earlier;
    // Of the samples so far, oldest first, `now` included.
    std::vector<double> prefill_rates;
    std::vector<double> decode_rates;
    std::string trouble;  // why there is nothing newer, in one sentence; empty: all is well
};

struct TopLook {
    std::size_t columns = 80;
    std::size_t rows = 24;
    bool colour = false;  // escape sequences for colour and weight; no others are ever written
    bool unicode = true;  // false: ASCII alone
    bool keys = false;    // says that q quits
};

// At most `rows` lines of at most `columns` characters.
std::vector<std::string> render_top(const TopState& state, const TopLook& look);

// The same in one line, for where there is no terminal.
std::string render_top_line(const ServerSample& now);

}  // namespace percheron::tools
