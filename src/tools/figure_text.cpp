#include "tools/figure_text.h"

#include <cmath>
#include <cstdio>

#include "text/unicode.h"

namespace percheron::tools {
namespace {

constexpr double largest_shown = 1e15;

template <class... Values>
std::string format(const char* pattern, Values... values) {
    char text[64];
    std::snprintf(text, sizeof text, pattern, values...);
    return text;
}

// Halves go up, as on the dashboard; printf alone would send some of them down.
std::string fixed(double number, int digits) {
    const double power = std::pow(10.0, digits);
    return format("%.*f", digits, std::round(number * power) / power);
}

bool shown(double number) {
    return std::isfinite(number) && number >= 0 && number < largest_shown;
}

// Commas between groups of three digits before the point.
std::string grouped(std::string digits) {
    std::size_t at = std::min(digits.find('.'), digits.size());
    while (at > 3) {
        at -= 3;
        digits.insert(at, 1, ',');
    }
    return digits;
}

// Letters that stand in one column wherever a terminal has them.
bool one_column(char32_t character) {
    return (character >= 0x20 && character < 0x7f) ||
           (character > 0xa0 && character < 0x250 && character != 0xad) ||
           (character >= 0x391 && character < 0x3ca) || (character >= 0x410 && character < 0x450);
}

}  // namespace

std::string whole_text(double number) {
    return shown(number) ? grouped(fixed(number, 0)) : "-";
}

std::string rate_text(double per_second) {
    return shown(per_second) ? grouped(fixed(per_second, 1)) : "-";
}

std::string share_text(double share) {
    return shown(share) ? fixed(share * 100, 1) + " %" : "-";
}

std::string latency_text(double seconds) {
    if (!shown(seconds)) return "-";
    if (seconds < 0.00995) return fixed(seconds * 1000, 1) + " ms";
    if (seconds < 0.9995) return fixed(seconds * 1000, 0) + " ms";
    return fixed(seconds, 2) + " s";
}

std::string duration_text(double seconds) {
    if (!shown(seconds)) return "-";
    if (seconds < 9.95) return fixed(seconds, 1) + " s";
    const auto whole = static_cast<unsigned long long>(seconds + 0.5);
    if (whole < 120) return format("%llu s", whole);
    const unsigned long long minutes = whole / 60;
    if (minutes < 120) return format("%llu min", minutes);
    const unsigned long long hours = minutes / 60;
    if (hours < 48) return format("%llu h %02llu min", hours, minutes % 60);
    return format("%llu d %02llu h", hours / 24, hours % 24);
}

std::string banded_text(double mean, std::optional<double> band, int decimals, bool sign,
                        std::string_view unit) {
    const std::string text = format(sign ? "%+.*f" : "%.*f", decimals, mean);
    const std::string behind(unit);
    return band ? text + " ± " + format("%.*f", decimals, *band) + behind
                : text + behind + ", no band";
}

std::string bytes_text(double bytes) {
    if (!shown(bytes)) return "-";
    constexpr double mebibyte = 1024.0 * 1024.0;
    if (bytes < 1024 * mebibyte) return fixed(bytes / mebibyte, 0) + " MiB";
    return fixed(bytes / mebibyte / 1024, 1) + " GiB";
}

std::string printable(std::string_view text) {
    std::string shown;
    while (!text.empty()) {
        const Utf8Unit unit = next_utf8_unit(text);
        const bool letter = unit.kind == Utf8Unit::Kind::character && one_column(unit.character);
        shown += letter ? text.substr(0, unit.length) : std::string_view("?");
        text.remove_prefix(unit.length);
    }
    return shown;
}

}  // namespace percheron::tools
