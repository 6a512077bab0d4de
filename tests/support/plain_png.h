// PNG files written by hand, as small as they can be.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace percheron::test {

namespace png {

using Bytes = std::vector<std::uint8_t>;

inline void append_u32(Bytes& bytes, std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
        bytes.push_back(static_cast<std::uint8_t>(value >> shift));
}

inline std::uint32_t crc32(const std::uint8_t* bytes, std::size_t count) {
    std::uint32_t crc = 0xffffffffu;
    for (std::size_t i = 0; i < count; ++i) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit)
            crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

inline void append_chunk(Bytes& file, std::string_view type, const Bytes& data) {
    append_u32(file, static_cast<std::uint32_t>(data.size()));
    const std::size_t begin = file.size();
    file.insert(file.end(), type.begin(), type.end());
    file.insert(file.end(), data.begin(), data.end());
    append_u32(file, crc32(file.data() + begin, file.size() - begin));
}

inline Bytes header(std::uint32_t height, std::uint32_t width) {
    constexpr std::uint8_t signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    Bytes file(std::begin(signature), std::end(signature));
    Bytes data;
    append_u32(data, width);
    append_u32(data, height);
    data.insert(data.end(), {8, 0, 0, 0, 0});  // 8-bit gray, not interlaced
    append_chunk(file, "IHDR", data);
    return file;
}

}  // namespace png

// A gray picture of one shade.
inline std::vector<std::uint8_t> plain_png(std::uint32_t height, std::uint32_t width,
                                           std::uint8_t shade = 128) {
    std::vector<std::uint8_t> rows;
    for (std::uint32_t y = 0; y < height; ++y) {
        rows.push_back(0);  // no filter
        rows.insert(rows.end(), width, shade);
    }
    // zlib with stored blocks.
    std::vector<std::uint8_t> data{0x78, 0x01};
    std::uint32_t low = 1;
    std::uint32_t high = 0;
    for (std::size_t at = 0; at < rows.size(); at += 65535) {
        const std::size_t count = rows.size() - at < 65535 ? rows.size() - at : 65535;
        data.push_back(at + count == rows.size() ? 1 : 0);
        for (const std::size_t value : {count, ~count}) {
            data.push_back(static_cast<std::uint8_t>(value));
            data.push_back(static_cast<std::uint8_t>(value >> 8));
        }
        for (std::size_t i = at; i < at + count; ++i) {
            data.push_back(rows[i]);
            low = (low + rows[i]) % 65521;
            high = (high + low) % 65521;
        }
    }
    png::append_u32(data, high << 16 | low);
    std::vector<std::uint8_t> file = png::header(height, width);
    png::append_chunk(file, "IDAT", data);
    png::append_chunk(file, "IEND", {});
    return file;
}

// A file that promises a picture of this size and holds none of it.
inline std::vector<std::uint8_t> png_header_only(std::uint32_t height, std::uint32_t width) {
    std::vector<std::uint8_t> file = png::header(height, width);
    png::append_chunk(file, "IDAT", {0x78, 0x01, 3, 0});
    png::append_chunk(file, "IEND", {});
    return file;
}

}  // namespace percheron::test
