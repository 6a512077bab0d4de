// Caches of a network in plain host memory, for tests: pages and slots are handed out by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/network.h"
#include "ops/batch.h"
#include "ops/cache_views.h"
#include "ops/stored_rows.h"

namespace percheron::tests {

struct HostCacheOptions {
    std::uint32_t pages = 64;
    std::uint32_t slots = 4;
    std::uint32_t ring = 4;       // of conv and kept rows
    std::uint32_t tail_ring = 0;  // 0: index_pool
    DType kv_dtype = DType::bf16;
};

class HostCaches {
  public:
    HostCaches(const model::ModelConfig& config, HostCacheOptions options) : options_(options) {
        const std::size_t width = config.kda_width();
        const std::uint32_t tail_ring = options.tail_ring != 0
                                            ? options.tail_ring
                                            : static_cast<std::uint32_t>(config.index_pool);
        std::vector<model::MixerKind> mixers = config.mixers;
        // The MTP layer's caches come last.
        mixers.insert(mixers.end(), config.mtp_layers, model::MixerKind::sparse_attention);
        for (const model::MixerKind mixer : mixers) {
            if (mixer == model::MixerKind::kda) {
                ops::KdaSlots slots;
                slots.ring = options.ring;
                slots.state_stride = width * config.kda_dim;
                slots.conv_stride = options.ring * 3 * width;
                slots.kept_stride =
                    options.ring * ops::kda_kept_row(config.kda_heads, config.kda_dim);
                slots.state = floats(options.slots * slots.state_stride);
                slots.conv = floats(options.slots * slots.conv_stride);
                slots.kept = floats(options.slots * slots.kept_stride);
                views_.kda.push_back(slots);
            } else {
                ops::LatentPages pages;
                pages.latent_dtype = options.kv_dtype;
                pages.latent_page_bytes =
                    ops::stored_rows_bytes(options.kv_dtype, ops::page_tokens, config.latent);
                pages.latents = bytes(options.pages * pages.latent_page_bytes);
                pages.pooled_dtype = options.kv_dtype;
                pages.pooled_page_bytes = ops::stored_rows_bytes(
                    options.kv_dtype, ops::page_tokens / config.index_pool, config.index_dim);
                pages.pooled = bytes(options.pages * pages.pooled_page_bytes);
                pages.tail_ring = tail_ring;
                pages.tail_stride = tail_ring * 2 * config.index_dim;
                pages.tails = floats(options.slots * pages.tail_stride);
                views_.latent.push_back(pages);
            }
        }
    }

    const model::CacheViews& views() const { return views_; }
    const HostCacheOptions& options() const { return options_; }

    // Every byte of every cache, for comparing two runs.
    const std::vector<std::vector<std::byte>>& memory() const { return memory_; }

  private:
    // What is never written must never matter: memory starts as NaNs.
    std::byte* bytes(std::size_t count) {
        memory_.emplace_back(count, std::byte{0xff});
        return memory_.back().data();
    }
    float* floats(std::size_t count) {
        return reinterpret_cast<float*>(bytes(count * sizeof(float)));
    }

    HostCacheOptions options_;
    model::CacheViews views_;
    std::vector<std::vector<std::byte>> memory_;
};

}  // namespace percheron::tests
