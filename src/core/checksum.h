// XXH64: a checksum that costs less than reading the bytes.  Against accidents, not against malice.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace percheron {

inline std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed = 0) {
    static_assert(std::endian::native == std::endian::little);
    constexpr std::uint64_t p1 = 0x9e3779b185ebca87u, p2 = 0xc2b2ae3d27d4eb4fu,
                            p3 = 0x165667b19e3779f9u, p4 = 0x85ebca77c2b2ae63u,
                            p5 = 0x27d4eb2f165667c5u;
    const auto round = [](std::uint64_t lane, std::uint64_t word) {
        return std::rotl(lane + word * p2, 31) * p1;
    };
    const std::byte* at = bytes.data();
    const std::byte* const end = at + bytes.size();
    const auto take = [&at]<class Word>(Word word) {
        std::memcpy(&word, at, sizeof word);
        at += sizeof word;
        return word;
    };
    std::uint64_t hash = 0;
    if (bytes.size() >= 32) {
        std::uint64_t a = seed + p1 + p2, b = seed + p2, c = seed, d = seed - p1;
        while (end - at >= 32) {
            a = round(a, take(std::uint64_t{}));
            b = round(b, take(std::uint64_t{}));
            c = round(c, take(std::uint64_t{}));
            d = round(d, take(std::uint64_t{}));
        }
        hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
        for (const std::uint64_t lane : {a, b, c, d})
            hash = (hash ^ round(0, lane)) * p1 + p4;
    } else {
        hash = seed + p5;
    }
    hash += bytes.size();
    while (end - at >= 8)
        hash = std::rotl(hash ^ round(0, take(std::uint64_t{})), 27) * p1 + p4;
    if (end - at >= 4) hash = std::rotl(hash ^ take(std::uint32_t{}) * p1, 23) * p2 + p3;
    while (at < end)
        hash = std::rotl(hash ^ take(std::uint8_t{}) * p5, 11) * p1;
    hash = (hash ^ (hash >> 33)) * p2;
    hash = (hash ^ (hash >> 29)) * p3;
    return hash ^ (hash >> 32);
}

}  // namespace percheron
