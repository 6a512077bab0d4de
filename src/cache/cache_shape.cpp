#include "cache/cache_shape.h"

#include <algorithm>
#include <string>

#include "ops/cache_views.h"
#include "ops/stored_rows.h"

namespace percheron::cache {

namespace {

constexpr std::size_t cache_line_floats = 16;

std::size_t whole_lines(std::size_t floats) {
    return (floats + cache_line_floats - 1) / cache_line_floats * cache_line_floats;
}

}  // namespace

CacheShape CacheShape::of(const model::ModelConfig& config, DType kv_dtype,
                          std::uint32_t uncommitted_rows, bool mtp) {
    CacheShape shape;
    shape.sparse_layers = mtp ? 1 : 0;
    for (const model::MixerKind mixer : config.mixers) {
        ++(mixer == model::MixerKind::kda ? shape.kda_layers : shape.sparse_layers);
    }
    shape.latent = config.latent;
    shape.index_dim = config.index_dim;
    shape.index_pool = config.index_pool;
    shape.kv_dtype = kv_dtype;
    shape.kda_heads = config.kda_heads;
    shape.kda_dim = config.kda_dim;
    const auto taps = static_cast<std::uint32_t>(config.kda_conv);
    shape.ring = std::max(taps, taps - 1 + uncommitted_rows);
    shape.tail_ring = static_cast<std::uint32_t>(config.index_pool) + uncommitted_rows;
    shape.conv_history = taps - 1;
    return shape;
}

Bytes CacheShape::latent_page_bytes() const {
    return ops::stored_rows_bytes(kv_dtype, ops::page_tokens, latent);
}

Bytes CacheShape::pooled_page_bytes() const {
    return ops::stored_rows_bytes(kv_dtype, ops::page_tokens / index_pool, index_dim);
}

std::size_t CacheShape::state_floats() const {
    return whole_lines(kda_heads * kda_dim * kda_dim);
}

std::size_t CacheShape::conv_floats() const {
    return whole_lines(ring * conv_row_floats());
}

std::size_t CacheShape::kept_floats() const {
    return whole_lines(ring * ops::kda_kept_row(kda_heads, kda_dim));
}

std::size_t CacheShape::tail_floats() const {
    return whole_lines(tail_ring * 2 * index_dim);
}

Bytes CacheShape::page_bytes() const {
    return sparse_layers * (latent_page_bytes() + pooled_page_bytes());
}

Bytes CacheShape::slot_bytes() const {
    return sizeof(float) * (kda_layers * (state_floats() + conv_floats() + kept_floats()) +
                            sparse_layers * tail_floats());
}

std::size_t CacheShape::checkpoint_conv_floats() const {
    return whole_lines(kda_layers * conv_history * conv_row_floats());
}

Bytes CacheShape::checkpoint_bytes() const {
    return sizeof(float) * (checkpoint_state_floats() + checkpoint_conv_floats());
}

Result<DType> kv_dtype_of(std::string_view name, ops::Arithmetic arithmetic) {
    const bool fp32 = arithmetic == ops::Arithmetic::fp32;
    if (name == "auto") {
        return fp32 ? DType::f32 : DType::bf16;
    }
    if (name != "bf16" && name != "fp8" && name != "f32") {
        return Error(ErrorCode::invalid_argument,
                     "--kv-dtype " + std::string(name) + " is unknown; use auto, bf16 or fp8");
    }
    if ((name == "f32") != fp32) {
        return Error(ErrorCode::unsupported,
                     fp32 ? "fp32 arithmetic caches f32; leave out --kv-dtype " + std::string(name)
                          : "f32 latents belong to fp32 arithmetic; leave out --kv-dtype f32");
    }
    return fp32 ? DType::f32 : name == "fp8" ? DType::f8_e4m3 : DType::bf16;
}

std::string_view name_of_kv_dtype(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return "f32";
        case DType::f8_e4m3:
            return "fp8";
        default:
            return "bf16";
    }
}

}  // namespace percheron::cache
