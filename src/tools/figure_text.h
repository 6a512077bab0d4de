// Figures as people read them: the same way in `percheron top` and on the dashboard.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace percheron::tools {

// 1,234,567; what no counter can be shows as "-".
std::string whole_text(double number);
// One digit after the point: 1,204.0
std::string rate_text(double per_second);
// "61.3 %" of a share from 0 to 1
std::string share_text(double share);
// "0.8 ms", "12 ms", "1.24 s"
std::string latency_text(double seconds);
// "9.3 s", "83 s", "12 min", "3 h 05 min", "4 d 02 h"
std::string duration_text(double seconds);
// A figure and its noise band, with so many decimals: "0.0082 ± 0.0009", "95.32 ± 0.84 %", or
// "0.0082, no band" where a single text or item shows none.
std::string banded_text(double mean, std::optional<double> band, int decimals, bool sign = false,
                        std::string_view unit = "");
// "812 MiB", "1.6 GiB"
std::string bytes_text(double bytes);

// Text from outside for a terminal: one column a character, nothing that moves the cursor.
std::string printable(std::string_view text);

}  // namespace percheron::tools
