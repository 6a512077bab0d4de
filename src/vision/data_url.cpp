#include "vision/data_url.h"

#include <algorithm>
#include <array>

namespace percheron::vision {
namespace {

bool equal_without_case(std::string_view left, std::string_view right) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [&](char a, char b) { return lower(a) == lower(b); });
}

constexpr std::string_view scheme = "data:";
constexpr std::uint8_t not_a_digit = 0xff;

using DigitTable = std::array<std::uint8_t, 256>;

constexpr DigitTable make_base64_digits() {
    DigitTable table{};
    table.fill(not_a_digit);
    constexpr std::string_view letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    for (std::size_t i = 0; i < letters.size(); ++i) {
        table[static_cast<std::uint8_t>(letters[i])] = static_cast<std::uint8_t>(i);
    }
    table['+'] = table['-'] = 62;
    table['/'] = table['_'] = 63;
    return table;
}
constexpr DigitTable base64_digits = make_base64_digits();

std::uint8_t hex_digit(char c) {
    if (c >= '0' && c <= '9') return static_cast<std::uint8_t>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<std::uint8_t>(c - 'a' + 10);
    if (c >= 'A' && c <= 'F') return static_cast<std::uint8_t>(c - 'A' + 10);
    return not_a_digit;
}

// The text one character at a time, percent-encoding undone.
class PercentReader {
  public:
    explicit PercentReader(std::string_view text) : text_(text) {}

    bool at_end() const { return at_ == text_.size(); }
    std::uint8_t next() {
        const char c = text_[at_++];
        if (c != '%' || at_ + 2 > text_.size()) return static_cast<std::uint8_t>(c);
        const std::uint8_t high = hex_digit(text_[at_]);
        const std::uint8_t low = hex_digit(text_[at_ + 1]);
        if (high == not_a_digit || low == not_a_digit) return static_cast<std::uint8_t>(c);
        at_ += 2;
        return static_cast<std::uint8_t>(high << 4 | low);
    }

  private:
    std::string_view text_;
    std::size_t at_ = 0;
};

Error no_base64() {
    return {ErrorCode::invalid_argument, "is not a data: URL with valid base64; encode it again"};
}

Result<std::vector<std::uint8_t>> decode_base64(std::string_view text) {
    std::vector<std::uint8_t> bytes;
    bytes.reserve(text.size() / 4 * 3 + 3);
    std::uint32_t bits = 0;
    std::size_t digits = 0;
    std::size_t padding = 0;
    for (PercentReader reader(text); !reader.at_end();) {
        const std::uint8_t c = reader.next();
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f') continue;
        if (c == '=') {
            ++padding;
            continue;
        }
        const std::uint8_t digit = base64_digits[c];
        if (digit == not_a_digit || padding > 0) return no_base64();
        bits = bits << 6 | digit;
        if (++digits % 4 == 0) {
            bytes.push_back(static_cast<std::uint8_t>(bits >> 16));
            bytes.push_back(static_cast<std::uint8_t>(bits >> 8));
            bytes.push_back(static_cast<std::uint8_t>(bits));
        }
    }
    const std::size_t rest = digits % 4;
    // Padding fills up the last four or is left out.
    if (rest == 1 || (padding > 0 && (rest == 0 || padding != 4 - rest))) return no_base64();
    if (rest == 2) bytes.push_back(static_cast<std::uint8_t>(bits >> 4));
    if (rest == 3) {
        bytes.push_back(static_cast<std::uint8_t>(bits >> 10));
        bytes.push_back(static_cast<std::uint8_t>(bits >> 2));
    }
    return bytes;
}

}  // namespace

bool is_data_url(std::string_view url) {
    return url.size() >= scheme.size() && equal_without_case(url.substr(0, scheme.size()), scheme);
}

Result<std::vector<std::uint8_t>> bytes_of_data_url(std::string_view url) {
    const std::size_t comma = url.find(',');
    if (!is_data_url(url) || comma == std::string_view::npos) {
        return Error(ErrorCode::invalid_argument,
                     "is not a data: URL of the form data:image/png;base64,...");
    }
    std::string_view head = url.substr(0, comma);
    const std::string_view text = url.substr(comma + 1);
    while (!head.empty() && head.back() == ' ')
        head.remove_suffix(1);
    const std::size_t last = head.find_last_of("; ");
    if (last != std::string_view::npos && equal_without_case(head.substr(last + 1), "base64")) {
        return decode_base64(text);
    }
    std::vector<std::uint8_t> bytes;
    for (PercentReader reader(text); !reader.at_end();)
        bytes.push_back(reader.next());
    return bytes;
}

}  // namespace percheron::vision
