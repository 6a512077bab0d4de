// Runs a syntax tree over variables.
#pragma once

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_syntax.h"

namespace percheron::jinja {

struct RunLimits {
    std::uint64_t steps = 100'000'000;
    std::size_t text_bytes = std::size_t{256} << 20;
};

// Throws Failure.
MarkedText run_template(const Block& block, std::vector<std::pair<std::string, Value>> variables,
                        const RunLimits& limits, std::time_t now);

}  // namespace percheron::jinja
