// Numbers of a command line, for programs that a slip of the keyboard must not turn into runs of
// nothing.
#pragma once

#include <charconv>
#include <concepts>
#include <string_view>

namespace percheron::tests {

// `text` to `number`; false unless all of it is one whole number from `least` up that fits.
template <std::unsigned_integral Number>
bool read_whole(std::string_view text, Number least, Number& number) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    return error == std::errc() && rest == end && number >= least;
}

}  // namespace percheron::tests
