#include "checkpoint/formats.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "checkpoint/float16.h"
#include "checkpoint/fused_names.h"
#include "checkpoint/trellis.h"

namespace percheron::checkpoint {
namespace {

using ops::WeightFormat;

constexpr std::size_t fp8_block = 128;
constexpr std::size_t w4a16_group = 128;
constexpr std::size_t nvfp4_group = 16;
constexpr std::string_view half_name = "f16";
constexpr std::string_view trellis_name = "exl3";

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

void set_format(WeightParts& parts, WeightFormat format) {
    parts.format = format;
    parts.stored_as = ops::name_of(format);
}

std::size_t padded(std::size_t size) {
    return blocks(size, trellis_block) * trellis_block;
}

TrellisCodebook codebook_of(const WeightParts& parts) {
    if (!parts.codebook) return TrellisCodebook::three_instructions;
    return parts.codebook.tensor->name.ends_with(".mcg") ? TrellisCodebook::mcg
                                                         : TrellisCodebook::mul1;
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

    // Of other converters F16 is a mistake: the network was trained in BF16.
    bool halves_are_read() const { return shards_.has_trellis(); }
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
    set_format(parts, WeightFormat::fp8_block);
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
    set_format(parts, WeightFormat::w4a16);
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
    set_format(parts, WeightFormat::nvfp4);
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

// Scales of a trellis, as numbers under one name or as signs under another.
Result<TensorPlace> find_trellis_scales(const StemReader& stem, const TensorPlace& trellis,
                                        std::string_view scales, std::string_view signs,
                                        std::size_t size) {
    const TensorPlace packed = stem.find(signs);
    if (packed && stem.find(scales))
        return corrupt(packed, "is stored both as numbers and as signs");
    if (packed) return stem.need(trellis, signs, DType::i16, {size / 16});
    return stem.need(trellis, scales, DType::f16, {size});
}

Result<WeightParts> find_trellis(const StemReader& stem, const TensorPlace& trellis,
                                 const Shape& shape) {
    if (shape.size() != 2) return unsupported(trellis, "only matrices may be stored in EXL3");
    const std::size_t n = padded(shape[0]);
    const std::size_t k = padded(shape[1]);
    WeightParts parts;
    parts.format = WeightFormat::f32;
    parts.stored_as = trellis_name;
    parts.data = trellis;
    const TensorPlace mcg = stem.find(".mcg");
    const TensorPlace mul1 = stem.find(".mul1");
    if (mcg && mul1)
        return corrupt(mcg, "is stored beside a second codebook (" + describe(mul1) + ")");
    if (mcg || mul1) {
        parts.codebook = mcg ? mcg : mul1;
        PERCHERON_TRY(check_type(parts.codebook, DType::i32));
        const Shape scalar = parts.codebook.tensor->shape.empty() ? Shape{} : Shape{1};
        PERCHERON_TRY(check_shape(parts.codebook, scalar));
        std::uint32_t multiplier = 0;
        std::memcpy(&multiplier, parts.codebook.tensor->bytes.data(), sizeof multiplier);
        if (multiplier != (mcg ? mcg_multiplier : mul1_multiplier)) {
            return unsupported(parts.codebook, "names a multiplier that no version of EXL3 has");
        }
    }
    PERCHERON_TRY(check_type(trellis, DType::i16));
    const Shape& stored = trellis.tensor->shape;
    const std::size_t words = stored.size() == 3 ? stored[2] : 0;
    PERCHERON_TRY(check_shape(trellis, {k / 16, n / 16, words}));
    if (trellis_half_bits(words, codebook_of(parts)) == 0) {
        return unsupported(trellis, "has tiles of " + std::to_string(words) +
                                        " words; EXL3 has 1 to 8 bits a weight, and 1.5, 2.5 and "
                                        "3.5 with the codebook mul1");
    }
    PERCHERON_ASSIGN(parts.input_scales, find_trellis_scales(stem, trellis, ".suh", ".su", k));
    PERCHERON_ASSIGN(parts.output_scales, find_trellis_scales(stem, trellis, ".svh", ".sv", n));
    return parts;
}

Result<WeightParts> find_by_type(const StemReader& stem, const TensorPlace& data,
                                 std::string_view data_suffix, const Shape& shape) {
    WeightParts parts;
    switch (data.tensor->dtype) {
        case DType::bf16:
        case DType::f32:
            PERCHERON_TRY(check_shape(data, shape));
            set_format(parts,
                       data.tensor->dtype == DType::bf16 ? WeightFormat::bf16 : WeightFormat::f32);
            parts.data = data;
            return parts;
        case DType::f16:
            if (!stem.halves_are_read()) break;
            PERCHERON_TRY(check_shape(data, shape));
            parts.format = WeightFormat::f32;
            parts.stored_as = half_name;
            parts.data = data;
            return parts;
        case DType::f8_e4m3:
            return find_fp8(stem, data, data_suffix, shape);
        case DType::u8:
            return find_nvfp4(stem, data, false, shape);
        default:
            break;
    }
    return unsupported(data, "weights stored as " + std::string(name_of(data.tensor->dtype)) +
                                 " are not read; convert it to BF16");
}

// A weight stored as itself: not as a share of a stack and not in pieces.
Result<WeightParts> find_whole(const ShardSet& shards, std::string_view stem_name,
                               const Shape& shape) {
    const StemReader stem(shards, stem_name);
    const TensorPlace packed = stem.find(".weight_packed");
    const TensorPlace plain = stem.find(".weight");
    const TensorPlace trellis = stem.find(".trellis");
    const TensorPlace bare = stem.find("");
    for (const TensorPlace& other : {packed, trellis}) {
        if (plain && other) {
            return corrupt(plain, "is stored both plainly and packed (" + describe(other) + ")");
        }
    }
    if (packed && trellis) {
        return corrupt(packed, "is packed in two ways (" + describe(trellis) + ")");
    }
    WeightParts parts;
    if (trellis) {
        PERCHERON_ASSIGN(parts, find_trellis(stem, trellis, shape));
    } else if (packed) {
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

bool has_whole(const ShardSet& shards, std::string_view stem) {
    const StemReader reader(shards, stem);
    return reader.find(".weight") || reader.find(".weight_packed") || reader.find(".trellis") ||
           reader.find("");
}

// Rows of a stack that is stored as one.
Result<WeightParts> find_share(const ShardSet& shards, const FusedShare& share,
                               const Shape& shape) {
    Shape stacked = shape;
    stacked[0] *= share.shares;
    PERCHERON_ASSIGN(WeightParts parts, find_whole(shards, share.name, stacked));
    if (!parts.rewritten() && parts.format != WeightFormat::bf16 &&
        parts.format != WeightFormat::f32) {
        return unsupported(parts.data,
                           "is a stack of weights, which is read in BF16, F16, F32 and "
                           "EXL3 only; store them one by one");
    }
    parts.first_row = share.index * shape[0];
    return parts;
}

Result<WeightParts> find_pieces(const ShardSet& shards, const std::vector<std::string>& names,
                                const Shape& shape) {
    Shape piece = shape;
    piece[0] /= names.size();
    WeightParts parts;
    parts.format = WeightFormat::f32;
    for (const std::string& name : names) {
        PERCHERON_ASSIGN(WeightParts found, find_whole(shards, name, piece));
        if (!found.rewritten() && found.format != WeightFormat::bf16 &&
            found.format != WeightFormat::f32) {
            return unsupported(found.data,
                               "is a piece of a weight, which is read in BF16, F16, F32 "
                               "and EXL3 only");
        }
        parts.stored_as = found.stored_as;
        parts.pieces.push_back(std::move(found));
    }
    return parts;
}

// An F16 or I16 tensor of scales or signs, widened.
Result<std::vector<float>> trellis_scales(const TensorPlace& place) {
    const StoredTensor& tensor = *place.tensor;
    const bool signs = tensor.dtype == DType::i16;
    std::vector<float> scales(tensor.bytes.size() / 2 * (signs ? 16 : 1));
    for (std::size_t i = 0; i < scales.size(); ++i) {
        std::uint16_t word = 0;
        std::memcpy(&word, tensor.bytes.data() + 2 * (signs ? i / 16 : i), sizeof word);
        scales[i] = !signs ? half_to_float(word) : ((word >> (i % 16)) & 1) != 0 ? -1.0f : 1.0f;
        if (!std::isfinite(scales[i])) {
            return corrupt(place, "element " + std::to_string(i) + " is not a finite number");
        }
    }
    return scales;
}

// Rows of a stored tensor as float, to out[rows * row_size].
Status widen_rows(const WeightParts& parts, std::size_t rows, std::size_t row_size, float* out) {
    if (parts.stored_as == trellis_name) {
        TrellisMatrix matrix;
        matrix.trellis = parts.data.tensor->bytes;
        matrix.codebook = codebook_of(parts);
        matrix.half_bits = trellis_half_bits(parts.data.tensor->shape[2], matrix.codebook);
        PERCHERON_ASSIGN(matrix.input_scales, trellis_scales(parts.input_scales));
        PERCHERON_ASSIGN(matrix.output_scales, trellis_scales(parts.output_scales));
        decode_rows(matrix, parts.first_row, rows, row_size, out);
        return {};
    }
    widen_elements(parts.data, parts.first_row * row_size, {out, rows * row_size});
    return {};
}

// The first element all of whose bits of `exponent` are set: infinity or NaN.
template <class T>
std::optional<std::size_t> first_with_exponent(std::span<const std::byte> values, T exponent) {
    const auto is_one = [&](std::size_t i) {
        T bits = 0;
        std::memcpy(&bits, values.data() + i * sizeof bits, sizeof bits);
        return (bits & exponent) == exponent;
    };
    constexpr std::size_t block = 2048;
    const std::size_t count = values.size() / sizeof(T);
    for (std::size_t first = 0; first < count; first += block) {
        const std::size_t end = std::min(count, first + block);
        bool any = false;  // of a whole block, which compilers turn into vectors
        for (std::size_t i = first; i < end; ++i)
            any |= is_one(i);
        for (std::size_t i = first; any && i < end; ++i) {
            if (is_one(i)) return i;
        }
    }
    return std::nullopt;
}

float stored_global_scale(const WeightParts& parts) {
    float stored = 0;
    std::memcpy(&stored, parts.global_scale.tensor->bytes.data(), sizeof(stored));
    return stored;
}

}  // namespace

std::vector<TensorPlace> WeightParts::all() const {
    std::vector<TensorPlace> places;
    for (const TensorPlace& place :
         {data, scales, global_scale, shape, input_scales, output_scales, codebook}) {
        if (place) places.push_back(place);
    }
    for (const WeightParts& piece : pieces) {
        const std::vector<TensorPlace> more = piece.all();
        places.insert(places.end(), more.begin(), more.end());
    }
    places.insert(places.end(), unused.begin(), unused.end());
    return places;
}

bool has_weight(const ShardSet& shards, std::string_view stem) {
    if (has_whole(shards, stem)) return true;
    if (const auto share = share_of_stack(stem)) return has_whole(shards, share->name);
    const std::vector<std::string> pieces = pieces_of(stem);
    return !pieces.empty() && has_whole(shards, pieces.front());
}

Result<WeightParts> find_weight(const ShardSet& shards, std::string_view stem, const Shape& shape) {
    if (!has_whole(shards, stem)) {
        const auto share = share_of_stack(stem);
        if (share && has_whole(shards, share->name)) return find_share(shards, *share, shape);
        const std::vector<std::string> pieces = pieces_of(stem);
        if (!pieces.empty() && has_whole(shards, pieces.front())) {
            return find_pieces(shards, pieces, shape);
        }
    }
    return find_whole(shards, stem, shape);
}

void widen_elements(const TensorPlace& place, std::size_t first, std::span<float> out) {
    const DType dtype = place.tensor->dtype;
    const std::byte* from = place.tensor->bytes.data() + first * size_of(dtype);
    if (dtype == DType::f32) {
        if (!out.empty()) std::memcpy(out.data(), from, out.size_bytes());
        return;
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, from + 2 * i, sizeof bits);
        out[i] = dtype == DType::f16 ? half_to_float(bits)
                                     : static_cast<float>(BFloat16::from_bits(bits));
    }
}

Result<std::vector<float>> rewritten_values(const WeightParts& parts, const Shape& shape) {
    std::size_t count = 0;
    element_count(shape, count);
    std::vector<float> values(count);
    const std::size_t row_size = count / shape[0];
    if (parts.pieces.empty()) {
        PERCHERON_TRY(widen_rows(parts, shape[0], row_size, values.data()));
        return values;
    }
    const std::size_t rows = shape[0] / parts.pieces.size();
    for (std::size_t i = 0; i < parts.pieces.size(); ++i) {
        PERCHERON_TRY(
            widen_rows(parts.pieces[i], rows, row_size, values.data() + i * rows * row_size));
    }
    return values;
}

std::optional<std::size_t> find_nan(std::span<const std::byte> codes) {
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
            if ((codes[at] & std::byte{0x7f}) == std::byte{0x7f}) return at;
        }
    }
    return std::nullopt;
}

std::optional<std::size_t> find_not_finite(std::span<const std::byte> values, DType dtype) {
    switch (dtype) {
        case DType::f32:
            return first_with_exponent<std::uint32_t>(values, 0x7f800000);
        case DType::bf16:
            return first_with_exponent<std::uint16_t>(values, 0x7f80);
        case DType::f16:
            return first_with_exponent<std::uint16_t>(values, 0x7c00);
        default:
            return std::nullopt;
    }
}

bool is_damaged(const ops::WeightMatrix& rows) {
    const std::span<const std::byte> data{static_cast<const std::byte*>(rows.data),
                                          ops::data_bytes(rows)};
    const std::span<const std::byte> scales{static_cast<const std::byte*>(rows.scales),
                                            rows.scales == nullptr ? 0 : ops::scale_bytes(rows)};
    switch (rows.format) {
        case ops::WeightFormat::fp8_block:
            return find_nan(data) || find_not_finite(scales, DType::f32);
        case ops::WeightFormat::w4a16:
            return find_not_finite(scales, DType::bf16).has_value();
        case ops::WeightFormat::nvfp4:
            return find_nan(scales).has_value();
        case ops::WeightFormat::bf16:
        case ops::WeightFormat::f32:
            break;
    }
    return false;
}

Status check_values(const TensorPlace& place) {
    const StoredTensor& tensor = *place.tensor;
    const bool codes = tensor.dtype == DType::f8_e4m3;
    const auto at = codes ? find_nan(tensor.bytes) : find_not_finite(tensor.bytes, tensor.dtype);
    if (!at) return {};
    return corrupt(place, "element " + std::to_string(*at) + " is " +
                              (codes ? "NaN" : "not a finite number") +
                              "; the file is damaged or badly converted");
}

float global_inverse(const WeightParts& parts) {
    return parts.global_scale_is_inverse ? stored_global_scale(parts) : 0.0f;
}

Result<float> global_scale(const WeightParts& parts) {
    if (!parts.global_scale) return 1.0f;
    const float stored = stored_global_scale(parts);
    const float factor = parts.global_scale_is_inverse ? 1.0f / stored : stored;
    if (!std::isfinite(factor) || !(factor > 0.0f)) {
        return corrupt(parts.global_scale, "is not a finite positive number");
    }
    return factor;
}

Result<float> input_scale(const WeightParts& parts) {
    const std::string_view suffix =
        parts.global_scale_is_inverse ? ".input_global_scale" : ".input_scale";
    const auto place = std::find_if(
        parts.unused.begin(), parts.unused.end(),
        [&](const TensorPlace& unused) { return unused.tensor->name.ends_with(suffix); });
    if (place == parts.unused.end()) {
        return Error(ErrorCode::not_found,
                     describe(parts.data) + ": has no " + std::string(suffix.substr(1)) +
                         " beside it, by which its inputs would be rounded to FP4; leave "
                         "--fp4-activations out");
    }
    if (place->tensor->dtype != DType::f32 || place->tensor->bytes.size() != sizeof(float)) {
        return corrupt(*place, "is not one F32 number");
    }
    float stored = 0;
    std::memcpy(&stored, place->tensor->bytes.data(), sizeof(stored));
    const float factor = parts.global_scale_is_inverse ? 1.0f / stored : stored;
    if (!std::isnormal(factor) || !(factor > 0.0f)) {
        return corrupt(*place, "is not a finite positive number");
    }
    return factor;
}

}  // namespace percheron::checkpoint
