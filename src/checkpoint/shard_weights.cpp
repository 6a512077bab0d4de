#include "checkpoint/shard_weights.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "checkpoint/fused_names.h"
#include "checkpoint/names.h"

namespace percheron::checkpoint {
namespace {

std::size_t count_of(const StoredTensor& tensor) {
    return tensor.bytes.size() / size_of(tensor.dtype);
}

// Share `index` of `shares` equal ones of a stored tensor.
Status take(const TensorPlace& place, bool halves, std::size_t index, std::size_t shares,
            std::span<float> out) {
    const StoredTensor& tensor = *place.tensor;
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16 &&
        !(halves && tensor.dtype == DType::f16)) {
        return Error(ErrorCode::unsupported, describe(place) + ": is " +
                                                 std::string(name_of(tensor.dtype)) +
                                                 ", this tensor must be BF16 or F32");
    }
    if (count_of(tensor) != out.size() * shares) {
        return Error(ErrorCode::corrupt, describe(place) + ": has shape " +
                                             to_string(tensor.shape) + ", the network needs " +
                                             std::to_string(out.size() * shares) + " elements");
    }
    PERCHERON_TRY(check_values(place));
    widen_elements(place, index * out.size(), out);
    return {};
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
    ops::WeightMatrix matrix;
    matrix.format = parts.format;
    matrix.n = n;
    matrix.k = k;
    if (parts.rewritten()) {
        if (parts.scales) PERCHERON_TRY(check_values(parts.scales));
        PERCHERON_ASSIGN(matrix.data, rewritten(name, parts, shape));
        return matrix;
    }
    matrix.data = aligned(parts.data);
    if (parts.first_row > 0) {
        matrix.data = static_cast<const std::byte*>(matrix.data) +
                      parts.first_row * k * size_of(parts.data.tensor->dtype);
    }
    if (parts.scales) matrix.scales = aligned(parts.scales);
    // What stays in the files, or is read from them later, is looked at then.
    if (!stays_in_files(name) && !(reads_ && reads_->holds(matrix))) {
        if (parts.data.tensor->dtype == DType::f8_e4m3) PERCHERON_TRY(check_values(parts.data));
        if (parts.scales) PERCHERON_TRY(check_values(parts.scales));
    }
    PERCHERON_ASSIGN(matrix.global_scale, global_scale(parts));
    matrix.global_inverse = global_inverse(parts);
    if (input_scales_ && parts.format == ops::WeightFormat::nvfp4) {
        PERCHERON_ASSIGN(matrix.input_scale, input_scale(parts));
    }
    return matrix;
}

ExpertFiles& ShardWeights::keep_experts_in_files(std::size_t layers) {
    layers_in_files_ = layers;
    expert_files_ = std::make_unique<ExpertFiles>(shards_);
    return *expert_files_;
}

Result<WeightReads*> ShardWeights::read_past_the_cache(WeightReads::Progress progress) {
    PERCHERON_ASSIGN(reads_, WeightReads::open(shards_, std::move(progress)));
    return reads_.get();
}

Bytes ShardWeights::expert_bytes(std::size_t layers) const {
    Bytes total = 0;
    for (const auto& [name, place] : shards_.tensors()) {
        if (is_routed_expert(name) && *layer_of(name) < layers) {
            total += place.tensor->bytes.size();
        }
    }
    return total;
}

bool ShardWeights::stays_in_files(std::string_view canonical) const {
    return expert_files_ != nullptr && is_routed_expert(canonical) &&
           *layer_of(canonical) < layers_in_files_;
}

Result<ops::StreamedExperts> ShardWeights::stream(
    std::string_view prefix, std::span<const ops::FeedForwardWeights> experts) {
    if (!stays_in_files(canonical_name(std::string(prefix) + "experts."))) {
        return ops::StreamedExperts{};
    }
    return expert_files_->add_layer(experts);
}

Status ShardWeights::vector(std::string_view name, std::span<float> out) {
    const std::string canonical = canonical_name(name);
    const bool halves = shards_.has_trellis();
    if (const TensorPlace place = shards_.find(canonical)) return take(place, halves, 0, 1, out);
    if (const auto share = share_of_stack(canonical)) {
        const TensorPlace stack = shards_.find(share->name);
        if (stack) return take(stack, halves, share->index, share->shares, out);
    }
    const std::vector<std::string> pieces = pieces_of(canonical);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const TensorPlace piece = shards_.find(pieces[i]);
        if (!piece) break;
        const std::size_t size = out.size() / pieces.size();
        PERCHERON_TRY(take(piece, halves, 0, 1, out.subspan(i * size, size)));
        if (i + 1 == pieces.size()) return {};
    }
    return Error(ErrorCode::not_found, shards_.folder().string() + ": tensor " + std::string(name) +
                                           ": is in none of the files");
}

Result<const float*> ShardWeights::rewritten(const std::string& name, const WeightParts& parts,
                                             const Shape& shape) {
    {
        const std::lock_guard lock(copies_mutex_);
        const auto made = rewritten_.find(name);
        if (made != rewritten_.end()) return made->second.data();
    }
    PERCHERON_ASSIGN(std::vector<float> values, rewritten_values(parts, shape));
    const std::lock_guard lock(copies_mutex_);
    return rewritten_.try_emplace(name, std::move(values)).first->second.data();
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
