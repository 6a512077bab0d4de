#include "number_checks.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

namespace percheron::apps {
namespace {

std::string fault_of_count(const std::string& text) {
    std::uint64_t value = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value);
    return error == std::errc() && end == last
               ? ""
               : text + " is no count that fits; name a whole number from 0 up";
}

// The library's ranges let nan through, which is in none.
std::string fault_of_number(const std::string& text) {
    return std::isfinite(std::strtod(text.c_str(), nullptr))
               ? ""
               : text + " is no number that fits; name a finite one";
}

}  // namespace

CLI::Validator positive_number() {
    return CLI::Validator(
        [](const std::string& text) {
            return std::strtod(text.c_str(), nullptr) > 0
                       ? std::string()
                       : text + " is too small; name a number above 0";
        },
        "POSITIVE");
}

void check_counts(CLI::App& app) {
    for (CLI::Option* const option : app.get_options()) {
        if (option->get_type_name().starts_with("UINT")) option->check(fault_of_count, "");
        if (option->get_type_name().starts_with("FLOAT")) option->check(fault_of_number, "");
    }
    for (CLI::App* const command : app.get_subcommands({}))
        check_counts(*command);
}

}  // namespace percheron::apps
