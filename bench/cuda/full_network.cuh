// Full-size layers with random weights and their caches, for benchmarks of whole steps.
#pragma once

#include <cstdlib>
#include <string>

#include "cache/cache_store.h"
#include "cuda/measure.h"
#include "model/network.h"

namespace percheron::bench {

using ops::WeightFormat;

template <class T>
T must(Result<T> result) {
    if (!result.ok()) {
        std::printf("%s\n", result.error().message().c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

__device__ inline std::uint32_t mixed(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// bf16 in (-scale, scale), uniform.
static __global__ void fill_bf16(__nv_bfloat16* out, std::size_t count, float scale,
                                 std::uint32_t seed) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += stride)
        out[i] = __float2bfloat16_rn(
            scale *
            (static_cast<float>(mixed(static_cast<std::uint32_t>(i) ^ seed) >> 8) * 0x1p-23f -
             1.0f));
}

// Bytes, all but the NaN codes of e4m3.
static __global__ void fill_bytes(std::uint8_t* out, std::size_t count) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += stride) {
        const auto byte = static_cast<std::uint8_t>(mixed(static_cast<std::uint32_t>(i)) >> 11);
        out[i] = (byte & 0x7f) == 0x7f ? 0x38 : byte;
    }
}

// Pages of fp8 rows: any codes but NaN's, and scales of 2^-7 behind each share's `values` of them.
static __global__ void fill_rows(std::uint8_t* out, std::size_t count, std::size_t share,
                                 std::size_t values) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += stride) {
        const auto byte = static_cast<std::uint8_t>(mixed(static_cast<std::uint32_t>(i)) >> 11);
        out[i] = i % share >= values ? 120 : (byte & 0x7f) == 0x7f ? 0x38 : byte;
    }
}

inline void fill(void* data, std::size_t count, float scale, std::uint32_t seed) {
    fill_bf16<<<1024, 256>>>(static_cast<__nv_bfloat16*>(data), count, scale, seed);
    require(cudaDeviceSynchronize(), "filling");
}

// Tensors cut from random device memory, at another place each; remembers what a step reads.
class DeviceWeights final : public model::WeightSource {
  public:
    explicit DeviceWeights(WeightFormat experts)
        : experts_(experts),
          values_(pool_values),
          bytes_(pool_values),
          scales_(pool_scales),
          wide_scales_(pool_scales),
          fp8_scales_(pool_scales) {
        fill_bytes<<<1024, 256>>>(bytes_.data(), bytes_.size());
        fill(values_.data(), values_.size(), 0.03f, 1);
        fill(scales_.data(), scales_.size(), 0.005f, 2);
        std::vector<float> wide(pool_scales, 2e-4f);
        wide_scales_.upload(wide);
        std::vector<std::uint8_t> fp8(pool_scales, 0x38);  // one
        fp8_scales_.upload(fp8);
    }

    bool has(std::string_view) const override { return true; }

    Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n, std::size_t k) override {
        ops::WeightMatrix m;
        m.n = n;
        m.k = k;
        const bool expert = stem.find(".experts.") != std::string_view::npos;
        m.format = expert ? experts_ : WeightFormat::bf16;
        std::size_t start = (next_++ * 7919 * 256) % (pool_values / 8);
        if (m.format == WeightFormat::bf16) {
            if (start + n * k > pool_values) start = 0;
            m.data = values_.data() + start;
        } else {
            m.data = bytes_.data() + start;
            m.scales =
                m.format == WeightFormat::fp8_block ? static_cast<const void*>(wide_scales_.data())
                : m.format == WeightFormat::nvfp4   ? static_cast<const void*>(fp8_scales_.data())
                                                    : static_cast<const void*>(scales_.data());
            m.global_scale = 0.01f;
        }
        if (expert)
            expert_bytes = static_cast<double>(ops::stored_bytes(m)) * 3;
        else if (!stem.ends_with("embed_tokens"))
            trunk_bytes += static_cast<double>(ops::stored_bytes(m));
        return m;
    }

    Status vector(std::string_view name, std::span<float> out) override {
        const bool norm = name.ends_with("norm.weight") || name.ends_with("_scale");
        check::Random random(name.size());
        for (float& value : out)
            value = norm ? 1.0f : 0.01f * random.normal();
        trunk_bytes += static_cast<double>(out.size_bytes());
        return {};
    }

    double trunk_bytes = 0, expert_bytes = 0;

  private:
    static constexpr std::size_t pool_values = std::size_t{1} << 30, pool_scales = 1 << 20;
    WeightFormat experts_;
    check::OnDevice<__nv_bfloat16> values_;
    check::OnDevice<std::uint8_t> bytes_;
    check::OnDevice<__nv_bfloat16> scales_;
    check::OnDevice<float> wide_scales_;
    check::OnDevice<std::uint8_t> fp8_scales_;
    std::size_t next_ = 0;
};

// The released network's layers, the first `layers` of them; shards: what one of so many ranks
// holds of heads, widths and vocabulary.
inline model::ModelConfig full_config(std::size_t layers, std::size_t shards) {
    model::ModelConfig config;
    config.vocabulary = 154880 / shards;
    config.hidden = 4096;
    config.dense_intermediate = 12288 / shards;
    config.expert_intermediate = 2048 / shards;
    config.attention_heads = 64 / shards;
    config.query_rank = 1536;
    config.latent = 512;
    config.query_key_dim = config.value_dim = 256;
    config.index_heads = 32;
    config.index_dim = 128;
    config.index_topk = 2048;
    config.kda_heads = 64 / shards;
    config.kda_dim = 128;
    config.experts = 288;
    config.experts_per_token = 8;
    config.shared_experts = 1;
    config.router_scale = 2.5f;
    config.context_limit = 1 << 20;
    for (std::size_t i = 0; i < layers; ++i) {
        config.mixers.push_back(i % 4 == 3 ? model::MixerKind::sparse_attention
                                           : model::MixerKind::kda);
        config.feed_forward.push_back(i < 3 ? model::FeedForwardKind::dense
                                            : model::FeedForwardKind::experts);
    }
    return config;
}

inline void fill_caches(const cache::CacheStore& caches, std::size_t pages) {
    const cache::CacheShape& shape = caches.shape();
    if (shape.sparse_layers == 0) return;
    // The first layer's arenas hold every layer's pages.
    const ops::LatentPages& first = caches.views().latent[0];
    const std::size_t latents = pages * first.latent_page_bytes;
    const std::size_t keys = pages * first.pooled_page_bytes;
    if (shape.kv_dtype == DType::bf16) {
        fill(first.latents, latents / 2, 1.0f, 3);
        fill(first.pooled, keys / 2, 1.0f, 4);
        return;
    }
    fill_rows<<<1024, 256>>>(static_cast<std::uint8_t*>(first.latents), latents,
                             shape.latent_page_bytes(), ops::page_tokens * shape.latent);
    fill_rows<<<1024, 256>>>(static_cast<std::uint8_t*>(first.pooled), keys,
                             shape.pooled_page_bytes(),
                             ops::page_tokens / shape.index_pool * shape.index_dim);
    require(cudaDeviceSynchronize(), "filling");
}

}  // namespace percheron::bench
