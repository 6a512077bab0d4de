// Base64 as RFC 4648 writes it, in either alphabet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace percheron::test {

inline constexpr std::string_view plus_alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
inline constexpr std::string_view dash_alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

inline std::string base64(const std::vector<std::uint8_t>& bytes,
                          std::string_view alphabet = plus_alphabet, bool padded = true) {
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
        std::uint32_t bits = 0;
        for (std::size_t k = 0; k < 3; ++k)
            bits = bits << 8 | (k < count ? bytes[i + k] : 0u);
        for (std::size_t k = 0; k < 4; ++k) {
            if (k <= count) {
                text += alphabet[bits >> (18 - 6 * k) & 63];
            } else if (padded) {
                text += '=';
            }
        }
    }
    return text;
}

}  // namespace percheron::test
