// tests/data/vision/cases.json (scripts/make-vision-cases writes it), and the picture that both
// sides compute.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "vision/image.h"

namespace percheron::vision {

inline const std::filesystem::path& data_folder() {
    static const std::filesystem::path folder =
        std::filesystem::path(PERCHERON_SOURCE_DIR) / "tests/data/vision";
    return folder;
}

inline const nlohmann::json& cases() {
    static const nlohmann::json all =
        nlohmann::json::parse(std::ifstream(data_folder() / "cases.json"));
    return all;
}

inline std::vector<std::uint8_t> file_bytes(const std::string& name) {
    std::ifstream file(data_folder() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::vector<std::uint8_t> from_hex(const std::string& hex) {
    std::vector<std::uint8_t> bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
        bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    return bytes;
}

// Ramps, fine noise and hard edges; all in wrapping 32-bit arithmetic.
inline RgbImage formula(std::size_t width, std::size_t height) {
    RgbImage image{width, height, {}};
    image.pixels.reserve(width * height * 3);
    for (std::uint32_t y = 0; y < height; ++y) {
        for (std::uint32_t x = 0; x < width; ++x) {
            for (std::uint32_t c = 0; c < 3; ++c) {
                const std::uint32_t v =
                    x * 7 + y * 13 + c * 50 + ((x * x * 31 + y * y * 17 + x * y * c * 5) >> 4);
                const bool edge = (x / 9 + y / 5 + c) % 4 == 0;
                image.pixels.push_back(edge ? 255 : static_cast<std::uint8_t>(v));
            }
        }
    }
    return image;
}

// CRC-32 as zlib counts it.
inline std::uint32_t checksum(std::span<const std::uint8_t> bytes) {
    std::uint32_t crc = 0xffffffffu;
    for (const std::uint8_t byte : bytes) {
        crc ^= byte;
        for (int bit = 0; bit < 8; ++bit)
            crc = crc >> 1 ^ (crc & 1u ? 0xedb88320u : 0u);
    }
    return ~crc;
}

}  // namespace percheron::vision
