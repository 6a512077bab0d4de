#include "checkpoint/formats.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace percheron::checkpoint {
namespace {

using ops::WeightFormat;

constexpr std::size_t fp8_block = 128;
constexpr std::size_t w4a16_group = 128;
constexpr std::size_t nvfp4_group = 16;

std::size_t blocks(std::size_t count, std::size_t size) {
    return (count + size - 1) / size;
}

Error corrupt(const TensorPlace& place, const std::string& what) {
    return Error(ErrorCode::corrupt, describe(place) + ": " + what);
}

Error unsupported(const TensorPlace& place, const std::string& what) {
    return Error(ErrorCode::unsupported, describe(place) + ": " + what);
}

Status check_shape(const TensorPlace& place, const Shape& expected) {
    if (place.tensor->shape == expected) return {};
    return corrupt(place, "has shape " + to_string(place.tensor->shape) + ", the network needs " +
                              to_string(expected));
}

Status check_type(const TensorPlace& place, DType expected) {
    if (place.tensor->dtype == expected) return {};
    return corrupt(place, "is " + std::string(name_of(place.tensor->dtype)) +
                              ", its format needs " + std::string(name_of(expected)));
}

// The stored tensors around one stem.
class StemReader {
  public:
    StemReader(const ShardSet& shards, std::string_view stem) : shards_(shards), stem_(stem) {}

    TensorPlace find(std::string_view suffix) const {
        return shards_.find(stem_ + std::string(suffix));
    }

    // A part that `data` cannot do without.
    Result<TensorPlace> need(const TensorPlace& data, std::string_view suffix, DType dtype,
                             const Shape& shape) const {
        const TensorPlace place = find(suffix);
        if (!place) {
            return Error(ErrorCode::not_found,
                         describe(data) + ": " + stem_ + std::string(suffix) + " is missing");
        }
        PERCHERON_TRY(check_type(place, dtype));
        PERCHERON_TRY(check_shape(place, shape));
        return place;
    }

    void collect_unused(WeightParts& parts) const {
        for (const char* suffix : {".input_scale", ".input_global_scale"}) {
            if (const TensorPlace place = find(suffix)) parts.unused.push_back(place);
        }
    }

    const std::string& stem() const { return stem_; }

  private:
    const ShardSet& shards_;
    std::string stem_;
};

Result<WeightParts> find_fp8(const StemReader& stem, const TensorPlace& data,
                             std::string_view data_suffix, const Shape& shape) {
    if (shape.size() != 2) return unsupported(data, "only matrices may be stored in FP8 blocks");
    PERCHERON_TRY(check_shape(data, shape));
    WeightParts parts;
    parts.format = WeightFormat::fp8_block;
    parts.data = data;
    PERCHERON_ASSIGN(parts.scales,
                     stem.need(data, std::string(data_suffix) + "_scale_inv", DType::f32,
                               {blocks(shape[0], fp8_block), blocks(shape[1], fp8_block)}));
    return parts;
}

Result<WeightParts> find_w4a16(const StemReader& stem, const TensorPlace& data,
                               const Shape& shape) {
    if (shape.size() != 2) return unsupported(data, "only matrices may be stored in W4A16");
    const std::size_t n = shape[0];
    const std::size_t k = shape[1];
    if (k % w4a16_group != 0) {
        return unsupported(
            data, "W4A16 needs a row length that is a multiple of 128, not " + std::to_string(k));
    }
    PERCHERON_TRY(check_shape(data, {n, k / 8}));
    WeightParts parts;
    parts.format = WeightFormat::w4a16;
    parts.data = data;
    PERCHERON_ASSIGN(parts.scales,
                     stem.need(data, ".weight_scale", DType::bf16, {n, k / w4a16_group}));
    PERCHERON_ASSIGN(parts.shape, stem.need(data, ".weight_shape", DType::i64, {2}));
    std::uint64_t stored[2] = {};
    std::memcpy(stored, parts.shape.tensor->bytes.data(), sizeof(stored));
    if (stored[0] != n || stored[1] != k) {
        return corrupt(parts.shape, "says " + to_string({stored[0], stored[1]}) +
                                        ", the network needs " + to_string(shape));
    }
    return parts;
}

Result<WeightParts> find_nvfp4(const StemReader& stem, const TensorPlace& data, bool compressed,
                               const Shape& shape) {
    if (shape.size() != 2) return unsupported(data, "only matrices may be stored in NVFP4");
    const std::size_t n = shape[0];
    const std::size_t k = shape[1];
    if (k % nvfp4_group != 0) {
        return unsupported(
            data, "NVFP4 needs a row length that is a multiple of 16, not " + std::to_string(k));
    }
    PERCHERON_TRY(check_shape(data, {n, k / 2}));
    WeightParts parts;
    parts.format = WeightFormat::nvfp4;
    parts.data = data;
    parts.global_scale_is_inverse = compressed;
    PERCHERON_ASSIGN(parts.scales,
                     stem.need(data, ".weight_scale", DType::f8_e4m3, {n, k / nvfp4_group}));
    const std::string suffix = compressed ? ".weight_global_scale" : ".weight_scale_2";
    const TensorPlace found = stem.find(suffix);
    // One number, written as a scalar or as a list of one.
    const Shape scalar = found && found.tensor->shape.empty() ? Shape{} : Shape{1};
    PERCHERON_ASSIGN(parts.global_scale, stem.need(data, suffix, DType::f32, scalar));
    PERCHERON_TRY(global_scale(parts));
    return parts;
}

Result<WeightParts> find_by_type(const StemReader& stem, const TensorPlace& data,
                                 std::string_view data_suffix, const Shape& shape) {
    WeightParts parts;
    switch (data.tensor->dtype) {
        case DType::bf16:
        case DType::f32:
            PERCHERON_TRY(check_shape(data, shape));
            parts.format =
                data.tensor->dtype == DType::bf16 ? WeightFormat::bf16 : WeightFormat::f32;
            parts.data = data;
            return parts;
        case DType::f8_e4m3:
            return find_fp8(stem, data, data_suffix, shape);
        case DType::u8:
            return find_nvfp4(stem, data, false, shape);
        default:
            return unsupported(data, "weights stored as " +
                                         std::string(name_of(data.tensor->dtype)) +
                                         " are not read; convert it to BF16");
    }
}

}  // namespace

std::vector<TensorPlace> WeightParts::all() const {
    std::vector<TensorPlace> places;
    for (const TensorPlace& place : {data, scales, global_scale, shape}) {
        if (place) places.push_back(place);
    }
    places.insert(places.end(), unused.begin(), unused.end());
    return places;
}

bool has_weight(const ShardSet& shards, std::string_view stem) {
    const StemReader reader(shards, stem);
    return reader.find(".weight") || reader.find(".weight_packed") || reader.find("");
}

Result<WeightParts> find_weight(const ShardSet& shards, std::string_view stem_name,
                                const Shape& shape) {
    const StemReader stem(shards, stem_name);
    const TensorPlace packed = stem.find(".weight_packed");
    const TensorPlace plain = stem.find(".weight");
    const TensorPlace bare = stem.find("");
    if (packed && plain) {
        return corrupt(plain, "is stored both plainly and packed (" + describe(packed) + ")");
    }
    WeightParts parts;
    if (packed) {
        if (packed.tensor->dtype == DType::i32) {
            PERCHERON_ASSIGN(parts, find_w4a16(stem, packed, shape));
        } else if (packed.tensor->dtype == DType::u8) {
            PERCHERON_ASSIGN(parts, find_nvfp4(stem, packed, true, shape));
        } else {
            return unsupported(packed, "packed weights stored as " +
                                           std::string(name_of(packed.tensor->dtype)) +
                                           " are not read");
        }
    } else if (plain) {
        PERCHERON_ASSIGN(parts, find_by_type(stem, plain, ".weight", shape));
    } else if (bare) {
        PERCHERON_ASSIGN(parts, find_by_type(stem, bare, "", shape));
    } else {
        return Error(ErrorCode::not_found, shards.folder().string() + ": tensor " + stem.stem() +
                                               ": is in none of the files");
    }
    stem.collect_unused(parts);
    return parts;
}

Status check_codes(const TensorPlace& place) {
    const std::span<const std::byte> codes = place.tensor->bytes;
    // Eight at a time: low seven bits all ones carry into the eighth.
    constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7f, ones = 0x0101010101010101;
    constexpr std::uint64_t high = 0x8080808080808080;
    constexpr std::size_t block = 4096;
    for (std::size_t first = 0; first < codes.size(); first += block) {
        const std::size_t count = std::min(block, codes.size() - first);
        std::uint64_t found = 0;
        std::size_t i = 0;
        for (; i + 8 <= count; i += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, codes.data() + first + i, sizeof word);
            found |= (word & low) + ones;
        }
        if ((found & high) == 0 && i == count) continue;
        for (std::size_t at = first; at < first + count; ++at) {
            if ((codes[at] & std::byte{0x7f}) == std::byte{0x7f}) {
                return corrupt(place, "element " + std::to_string(at) +
                                          " is NaN; the file is damaged or badly converted");
            }
        }
    }
    return {};
}

Result<float> global_scale(const WeightParts& parts) {
    if (!parts.global_scale) return 1.0f;
    float stored = 0;
    std::memcpy(&stored, parts.global_scale.tensor->bytes.data(), sizeof(stored));
    const float factor = parts.global_scale_is_inverse ? 1.0f / stored : stored;
    if (!std::isfinite(factor) || !(factor > 0.0f)) {
        return corrupt(parts.global_scale, "is not a finite positive number");
    }
    return factor;
}

}  // namespace percheron::checkpoint
