// SHA-256 (FIPS 180-4): names that nobody can make two things of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace percheron {

using Sha256Digest = std::array<std::uint8_t, 32>;

class Sha256 {
  public:
    Sha256();
    void add(std::span<const std::byte> bytes);
    void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
    // Of all that was added; nothing may be added after it.
    Sha256Digest finish();

  private:
    static constexpr std::size_t block_bytes = 64;

    void compress(const std::byte* block);

    std::array<std::uint32_t, 8> state_;
    std::array<std::byte, block_bytes> open_{};  // the block that is not full yet
    std::size_t open_bytes_ = 0;
    std::uint64_t bytes_ = 0;
};

}  // namespace percheron
