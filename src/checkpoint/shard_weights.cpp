#include "checkpoint/shard_weights.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "checkpoint/formats.h"
#include "checkpoint/names.h"

namespace percheron::checkpoint {
namespace {

std::size_t count_of(const StoredTensor& tensor) {
    return tensor.bytes.size() / size_of(tensor.dtype);
}

}  // namespace

Bytes ShardWeights::mapped_bytes() const {
    Bytes total = 0;
    for (const SafetensorsFile& file : shards_.files()) {
        total += file.mapping().bytes().size();
    }
    return total;
}

bool ShardWeights::has(std::string_view stem) const {
    return has_weight(shards_, canonical_name(stem));
}

Result<ops::WeightMatrix> ShardWeights::matrix(std::string_view stem, std::size_t n,
                                               std::size_t k) {
    Shape shape{n, k};
    const std::string name = canonical_name(stem);
    for (const char* suffix : {".weight", ""}) {
        const TensorPlace place = shards_.find(name + suffix);
        if (place && place.tensor->shape.size() > 2 && place.tensor->shape[0] == n &&
            count_of(*place.tensor) == n * k) {
            shape = place.tensor->shape;
        }
    }
    PERCHERON_ASSIGN(const WeightParts parts, find_weight(shards_, name, shape));
    for (const TensorPlace& place : {parts.data, parts.scales}) {
        if (place && place.tensor->dtype == DType::f8_e4m3) PERCHERON_TRY(check_codes(place));
    }
    ops::WeightMatrix matrix;
    matrix.format = parts.format;
    matrix.n = n;
    matrix.k = k;
    matrix.data = aligned(parts.data);
    if (parts.scales) matrix.scales = aligned(parts.scales);
    PERCHERON_ASSIGN(matrix.global_scale, global_scale(parts));
    return matrix;
}

Status ShardWeights::vector(std::string_view name, std::span<float> out) {
    const TensorPlace place = shards_.find(canonical_name(name));
    if (!place) {
        return Error(ErrorCode::not_found, shards_.folder().string() + ": tensor " +
                                               std::string(name) + ": is in none of the files");
    }
    const StoredTensor& tensor = *place.tensor;
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16) {
        return Error(ErrorCode::unsupported, describe(place) + ": is " +
                                                 std::string(name_of(tensor.dtype)) +
                                                 ", this tensor must be BF16 or F32");
    }
    if (count_of(tensor) != out.size()) {
        return Error(ErrorCode::corrupt, describe(place) + ": has shape " +
                                             to_string(tensor.shape) + ", the network needs " +
                                             std::to_string(out.size()) + " elements");
    }
    if (tensor.dtype == DType::f32) {
        std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
        return {};
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof(bits));
        out[i] = static_cast<float>(BFloat16::from_bits(bits));
    }
    return {};
}

const void* ShardWeights::aligned(const TensorPlace& place) {
    const std::span<const std::byte> bytes = place.tensor->bytes;
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % size_of(place.tensor->dtype) == 0) {
        return bytes.data();
    }
    const std::lock_guard lock(copies_mutex_);
    const auto [copy, fresh] = copies_.try_emplace(place.tensor);
    if (fresh) copy->second.assign(bytes.begin(), bytes.end());
    return copy->second.data();
}

}  // namespace percheron::checkpoint
