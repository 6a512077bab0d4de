#include "checkpoint/synthetic_values.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "core/philox.h"

namespace percheron::checkpoint {
namespace {

using Words = std::array<std::uint32_t, 4>;

std::uint64_t fnv1a(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char letter : text) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
    }
    return hash;
}

// The random words of one tensor.
class WordSource {
  public:
    WordSource(std::string_view name, std::uint64_t seed)
        : key_{low(fnv1a(name)), high(fnv1a(name))}, seed_{low(seed), high(seed)} {}

    Words block(std::uint64_t index) const {
        return philox4x32_10({low(index), high(index), seed_[0], seed_[1]}, key_);
    }

  private:
    static std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
    static std::uint32_t high(std::uint64_t value) {
        return static_cast<std::uint32_t>(value >> 32);
    }

    std::array<std::uint32_t, 2> key_;
    std::array<std::uint32_t, 2> seed_;
};

// Fills `out` with elements from `first` on; `make(words)` gives the elements of one block.
template <class Element, class Make>
void fill(const WordSource& words, std::size_t first, std::span<std::byte> out, const Make& make) {
    using Block = decltype(make(Words{}));
    constexpr std::size_t per_block = std::tuple_size_v<Block>;
    static_assert(std::is_same_v<typename Block::value_type, Element>);
    const std::size_t end = first + out.size() / sizeof(Element);
    std::byte* to = out.data();
    for (std::size_t element = first; element < end;) {
        const Block block = make(words.block(element / per_block));
        const std::size_t skipped = element % per_block;
        const std::size_t count = std::min(per_block - skipped, end - element);
        std::memcpy(to, block.data() + skipped, count * sizeof(Element));
        to += count * sizeof(Element);
        element += count;
    }
}

// In double: the product of two floats is exact there, so a fused multiply-add changes nothing.
float scaled(const SyntheticTensor& tensor, double value) {
    return static_cast<float>(tensor.offset + static_cast<double>(tensor.scale) * value);
}

double normal_sum(std::uint32_t word) {
    const std::uint32_t sum =
        (word & 0xffu) + (word >> 8 & 0xffu) + (word >> 16 & 0xffu) + (word >> 24);
    return static_cast<double>(sum) - 510.0;
}

double real_value(const SyntheticTensor& tensor, std::uint32_t word) {
    switch (tensor.kind) {
        case ValueKind::normal:
            return normal_sum(word);
        case ValueKind::uniform:
            return (word >> 8) * 0x1p-24;
        case ValueKind::scales:
            return 0.75 + (word & 0xffu) / 512.0;
        default:
            return 0.0;
    }
}

template <class Real>
void fill_reals(const SyntheticTensor& tensor, const WordSource& words, std::size_t first,
                std::span<std::byte> out) {
    fill<Real>(words, first, out, [&](const Words& block) {
        std::array<Real, 4> values;
        for (std::size_t i = 0; i < 4; ++i) {
            values[i] = Real(scaled(tensor, real_value(tensor, block[i])));
        }
        return values;
    });
}

std::array<Float8E4M3, 256> fp8_code_table() {
    std::array<Float8E4M3, 256> table;
    for (int byte = 0; byte < 256; ++byte) {
        table[static_cast<std::size_t>(byte)] =
            Float8E4M3(16.0f * static_cast<float>((byte & 15) + (byte >> 4) - 15));
    }
    return table;
}

using Bytes16 = std::array<std::uint8_t, 16>;

Bytes16 bytes_of(const Words& words) {
    Bytes16 bytes;
    for (std::size_t i = 0; i < 16; ++i) {
        bytes[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
    }
    return bytes;
}

// -8 would have no counterpart and shift the mean.
std::uint32_t symmetric_nibbles(std::uint32_t word) {
    std::uint32_t any = word | word >> 1;
    any |= any >> 2;
    return word | (~any & 0x11111111u) << 3;
}

}  // namespace

void make_values(const SyntheticTensor& tensor, std::uint64_t seed, std::size_t first,
                 std::span<std::byte> out) {
    const WordSource words(tensor.header.name, seed);
    switch (tensor.kind) {
        case ValueKind::normal:
        case ValueKind::uniform:
        case ValueKind::constant:
        case ValueKind::scales:
            if (tensor.header.dtype == DType::f32) {
                fill_reals<float>(tensor, words, first, out);
            } else {
                fill_reals<BFloat16>(tensor, words, first, out);
            }
            return;
        case ValueKind::fp8_codes: {
            static const std::array<Float8E4M3, 256> table = fp8_code_table();
            fill<std::uint8_t>(words, first, out, [](const Words& block) {
                Bytes16 codes = bytes_of(block);
                for (std::uint8_t& code : codes) {
                    code = table[code].bits;
                }
                return codes;
            });
            return;
        }
        case ValueKind::int4_words:
            fill<std::uint32_t>(words, first, out, [](const Words& block) {
                Words codes;
                std::transform(block.begin(), block.end(), codes.begin(), symmetric_nibbles);
                return codes;
            });
            return;
        case ValueKind::fp4_codes:
            fill<std::uint8_t>(words, first, out, bytes_of);
            return;
        case ValueKind::fp8_scales:
            fill<std::uint8_t>(words, first, out, [](const Words& block) {
                Bytes16 codes = bytes_of(block);
                for (std::uint8_t& code : codes) {
                    code = static_cast<std::uint8_t>(0x38 + (code & 7));  // 2^0 * (1 + m / 8)
                }
                return codes;
            });
            return;
        case ValueKind::extents: {
            const std::int64_t both[2] = {static_cast<std::int64_t>(tensor.extents[0]),
                                          static_cast<std::int64_t>(tensor.extents[1])};
            std::memcpy(out.data(), both + first, out.size());
            return;
        }
    }
}

}  // namespace percheron::checkpoint
