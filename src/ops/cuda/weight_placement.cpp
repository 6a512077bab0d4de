#include "ops/cuda/weight_placement.h"

#include <algorithm>
#include <string>

#include "ops/cuda/rearrange.h"

namespace percheron::ops::cuda {
namespace {

// Rows of a piece are whole blocks of fp8 scales.
constexpr std::size_t piece_rows = 128;
constexpr Bytes piece_bytes = Bytes{32} << 20;

Bytes aligned(Bytes bytes) {
    return (bytes + 255) / 256 * 256;
}

Error in_matrix(Error error, std::string_view name) {
    return error.in(std::string(name));
}

}  // namespace

PackedMatrix packed_view(const WeightMatrix& placed) {
    PackedMatrix view;
    view.format = placed.format;
    view.n = static_cast<int>(placed.n);
    view.k = static_cast<int>(placed.k);
    view.data = static_cast<const std::uint8_t*>(placed.data);
    view.global_scale = placed.global_scale;
    return view;
}

LatentHeadMatrices latent_heads_view(const WeightMatrix& placed, const NetworkShape& shape) {
    LatentHeadMatrices both;
    both.keys = packed_view(placed);
    both.keys.n = static_cast<int>(shape.attention_heads * shape.latent);
    both.keys.k = static_cast<int>(shape.query_key_dim);
    both.values = packed_view(placed);
    both.values.n = static_cast<int>(shape.attention_heads * shape.value_dim);
    both.values.k = static_cast<int>(shape.latent);
    both.values.data += packed_bytes(placed.format, static_cast<std::size_t>(both.keys.n),
                                     static_cast<std::size_t>(both.keys.k));
    return both;
}

Status WeightPlacement::read_from(int device, WeightFiles& files) {
    PERCHERON_ASSIGN(ring_, WeightRing::start(device, files));
    return {};
}

Status WeightPlacement::finish_reading() {
    const Status read = ring_ ? ring_->wait() : Status{};
    ring_.reset();
    const Status placed = check(cudaStreamSynchronize(stream_), "placing the weights");
    release_staging();
    return read.ok() ? placed : read;
}

Result<std::byte*> WeightPlacement::staging(Bytes bytes) {
    if (staging_.size() < bytes) {
        PERCHERON_TRY(check(cudaStreamSynchronize(stream_), "waiting for the weights"));
        staging_.reset();
        PERCHERON_ASSIGN(staging_, DeviceMemory::allocate(bytes, "uploading weights"));
    }
    return staging_.data();
}

Result<WeightMatrix> WeightPlacement::narrowed(const WeightMatrix& stored, std::string_view name) {
    if (stored.format != WeightFormat::f32) return stored;
    const auto* const values = static_cast<const float*>(stored.data);
    narrow_.resize(stored.n * stored.k);
    for (std::size_t i = 0; i < narrow_.size(); ++i) {
        narrow_[i] = BFloat16(values[i]);
        if (static_cast<float>(narrow_[i]) != values[i]) {
            return Error(ErrorCode::unsupported,
                         std::string(name) +
                             " is stored as fp32 and holds values that are no bf16, which the CUDA "
                             "kernels do not read; store it as bf16");
        }
    }
    WeightMatrix narrow = stored;
    narrow.format = WeightFormat::bf16;
    narrow.data = narrow_.data();
    return narrow;
}

Status WeightPlacement::pack_into(const WeightMatrix& stored, std::uint8_t* packed,
                                  std::string_view name) {
    if (ring_ && ring_->takes(stored)) {
        ring_->pack(stored, packed, name);
        return {};
    }
    const Bytes row = data_bytes(rows_of(stored, 0, 1));
    const std::size_t rows_a_piece =
        std::max<std::size_t>(piece_bytes / std::max<Bytes>(row, 1) / piece_rows, 1) * piece_rows;
    for (std::size_t first = 0; first < stored.n; first += rows_a_piece) {
        WeightMatrix piece = rows_of(stored, first, std::min(rows_a_piece, stored.n - first));
        const Bytes scales_at = aligned(data_bytes(piece));
        PERCHERON_ASSIGN(std::byte* const memory,
                         staging(std::max(piece_bytes, scales_at + scale_bytes(piece))));
        // The packing kernel of the piece before reads the staging buffer: the stream keeps order.
        PERCHERON_TRY(copy(piece, memory, memory + scales_at, name));
        piece.data = memory;
        if (piece.scales != nullptr) piece.scales = memory + scales_at;
        const auto done =
            pack_matrix(piece, packed + packed_bytes(stored.format, first, stored.k), stream_);
        if (!done.ok()) return in_matrix(done.error(), name);
    }
    return {};
}

Status WeightPlacement::copy(const WeightMatrix& stored, std::byte* data, std::byte* scales,
                             std::string_view name) {
    PERCHERON_TRY(
        check(cudaMemcpyAsync(data, stored.data, data_bytes(stored), cudaMemcpyDefault, stream_),
              "uploading " + std::string(name)));
    if (scale_bytes(stored) == 0) return {};
    return check(
        cudaMemcpyAsync(scales, stored.scales, scale_bytes(stored), cudaMemcpyDefault, stream_),
        "uploading the scales of " + std::string(name));
}

Result<WeightMatrix> WeightPlacement::pack(const WeightMatrix& given, std::string_view name) {
    PERCHERON_ASSIGN(const WeightMatrix stored, narrowed(given, name));
    PERCHERON_ASSIGN(std::byte* const memory,
                     arena_.take(packed_bytes(stored.format, stored.n, stored.k), name));
    PERCHERON_TRY(pack_into(stored, reinterpret_cast<std::uint8_t*>(memory), name));
    WeightMatrix placed = stored;
    placed.data = memory;
    placed.scales = nullptr;
    placed.global_scale = packed_global_scale(stored);
    return placed;
}

Result<WeightMatrix> WeightPlacement::keep_rows(const WeightMatrix& given, std::string_view name) {
    PERCHERON_ASSIGN(const WeightMatrix stored, narrowed(given, name));
    const Bytes scales_at = aligned(data_bytes(stored));
    const Bytes scales = scale_bytes(stored);
    PERCHERON_ASSIGN(std::byte* const memory, arena_.take(scales_at + scales, name));
    WeightMatrix placed = stored;
    placed.data = memory;
    if (scales > 0) placed.scales = memory + scales_at;
    if (ring_ && ring_->takes(stored)) {
        ring_->copy(stored, memory, memory + scales_at, name);
        return placed;
    }
    PERCHERON_TRY(copy(stored, memory, memory + scales_at, name));
    // `narrow_` is used again for the next matrix.
    PERCHERON_TRY(check(cudaStreamSynchronize(stream_), "uploading " + std::string(name)));
    return placed;
}

Result<WeightMatrix> WeightPlacement::latent_heads(const WeightMatrix& given,
                                                   const NetworkShape& shape,
                                                   std::string_view name) {
    PERCHERON_ASSIGN(const WeightMatrix stored, narrowed(given, name));
    if (stored.format != WeightFormat::bf16 && stored.format != WeightFormat::fp8_block) {
        return Error(ErrorCode::unsupported,
                     std::string(name) + " is stored as " + std::string(name_of(stored.format)) +
                         ", whose scales run along rows that CUDA attention reads transposed; "
                         "store it as bf16 or fp8");
    }
    const bool fp8 = stored.format == WeightFormat::fp8_block;
    const Bytes element = fp8 ? 1 : 2;
    const HeadShape head{static_cast<int>(shape.attention_heads),
                         static_cast<int>(shape.query_key_dim), static_cast<int>(shape.value_dim),
                         static_cast<int>(shape.latent)};
    const HeadShape blocks{head.heads, head.keys / 128, head.values / 128, head.latent / 128};
    const std::size_t key_rows = shape.attention_heads * shape.latent;
    const std::size_t value_rows = shape.attention_heads * shape.value_dim;
    const Bytes key_bytes = packed_bytes(stored.format, key_rows, shape.query_key_dim);
    const Bytes value_bytes = packed_bytes(stored.format, value_rows, shape.latent);
    PERCHERON_ASSIGN(std::byte* const packed, arena_.take(key_bytes + value_bytes, name));

    // As stored, then both parts as matrices of their own, then packed: three places on the device
    // for a moment.
    const Bytes data = aligned(data_bytes(stored));
    const Bytes scales = aligned(scale_bytes(stored));
    PERCHERON_ASSIGN(DeviceMemory memory, DeviceMemory::allocate(2 * (data + scales) + 1024, name));
    std::byte* const whole = memory.data();
    std::byte* const whole_scales = whole + data;
    std::byte* const keys = whole_scales + scales;
    std::byte* const values = keys + aligned(key_rows * shape.query_key_dim * element);
    std::byte* const key_scales = values + aligned(value_rows * shape.latent * element);
    std::byte* const value_scales =
        key_scales + aligned(key_rows / 128 * (shape.query_key_dim / 128) * 4);
    if (ring_ && ring_->takes(stored)) {
        ring_->copy(stored, whole, whole_scales, name);
        PERCHERON_TRY(ring_->wait());
    } else {
        PERCHERON_TRY(copy(stored, whole, whole_scales, name));
    }
    PERCHERON_TRY(split_heads(whole, head, element, keys, values, stream_));
    if (fp8) PERCHERON_TRY(split_heads(whole_scales, blocks, 4, key_scales, value_scales, stream_));
    WeightMatrix part = stored;
    part.n = key_rows;
    part.k = shape.query_key_dim;
    part.data = keys;
    part.scales = key_scales;
    PERCHERON_TRY(pack_into(part, reinterpret_cast<std::uint8_t*>(packed), name));
    part.n = value_rows;
    part.k = shape.latent;
    part.data = values;
    part.scales = value_scales;
    PERCHERON_TRY(pack_into(part, reinterpret_cast<std::uint8_t*>(packed) + key_bytes, name));
    PERCHERON_TRY(check(cudaStreamSynchronize(stream_), "packing " + std::string(name)));
    WeightMatrix placed = stored;
    placed.data = packed;
    placed.scales = nullptr;
    return placed;
}

template <class T>
Result<const T*> WeightPlacement::upload(std::span<const T> values, std::string_view name) {
    PERCHERON_ASSIGN(std::byte* const memory, arena_.take(values.size_bytes(), name));
    PERCHERON_TRY(check(
        cudaMemcpyAsync(memory, values.data(), values.size_bytes(), cudaMemcpyDefault, stream_),
        "uploading " + std::string(name)));
    PERCHERON_TRY(check(cudaStreamSynchronize(stream_), "uploading " + std::string(name)));
    return reinterpret_cast<const T*>(memory);
}

Result<const float*> WeightPlacement::vector(std::span<const float> values, std::string_view name) {
    return upload(values, name);
}

Result<const ExpertTable*> WeightPlacement::experts(std::span<const FeedForwardWeights> experts,
                                                    std::string_view layer) {
    std::vector<const std::uint8_t*> pointers[3];
    std::vector<float> scales[3];
    for (const FeedForwardWeights& expert : experts) {
        const WeightMatrix* const parts[3] = {&expert.gate, &expert.up, &expert.down};
        if (expert.gate.format != experts[0].gate.format ||
            expert.up.format != experts[0].gate.format ||
            expert.down.format != experts[0].down.format) {
            return Error(ErrorCode::unsupported,
                         std::string(layer) +
                             "experts: gates and ups of a layer must share one "
                             "format, and downs one, to be computed together");
        }
        for (int part = 0; part < 3; ++part) {
            pointers[part].push_back(static_cast<const std::uint8_t*>(parts[part]->data));
            scales[part].push_back(parts[part]->global_scale);
        }
    }
    auto table = std::make_unique<ExpertTable>();
    table->gate_format = experts[0].gate.format;
    table->down_format = experts[0].down.format;
    using Pointers = std::span<const std::uint8_t* const>;
    PERCHERON_ASSIGN(table->gates, upload(Pointers(pointers[0]), layer));
    PERCHERON_ASSIGN(table->ups, upload(Pointers(pointers[1]), layer));
    PERCHERON_ASSIGN(table->downs, upload(Pointers(pointers[2]), layer));
    PERCHERON_ASSIGN(table->gate_scales, upload(std::span<const float>(scales[0]), layer));
    PERCHERON_ASSIGN(table->up_scales, upload(std::span<const float>(scales[1]), layer));
    PERCHERON_ASSIGN(table->down_scales, upload(std::span<const float>(scales[2]), layer));
    PERCHERON_ASSIGN(std::byte* const touched, arena_.take(sizeof(std::int32_t), layer));
    table->touched = reinterpret_cast<std::int32_t*>(touched);
    tables_.push_back(std::move(table));
    return static_cast<const ExpertTable*>(tables_.back().get());
}

}  // namespace percheron::ops::cuda
