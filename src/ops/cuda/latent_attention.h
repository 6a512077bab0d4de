// Attention over selected latents in the absorbed form (ops/latent_attention.h): 64 query heads and
// one shared key-value vector of 512 values a token, gathered from pages.
//
// One thread block computes 16 or 32 heads of a row over one split of 256 selected tokens, 64 at a
// time: scores and reads on the tensor cores, running maximum and sum in fp32, weights rounded to
// bf16 before both the read and the sum.  A second kernel joins a row's splits in order; of many
// rows a block has all splits of its own and joins them itself, in the same order.  Latents are
// bf16, or fp8 widened to the bf16 numbers they stand for; nothing depends on other rows.
#pragma once

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cache_views.h"
#include "ops/cuda/device_batch.h"
#include "ops/cuda/launch.h"

namespace percheron::ops::cuda {

inline constexpr int attention_latent = 512;

struct SelectedAttention {
    int heads = 0;
    float scale = 0;                          // query_key_dim^-1/2
    const __nv_bfloat16* absorbed = nullptr;  // [rows][heads][512]
    LatentPages pages;
    DeviceBatch batch;
    const std::uint32_t* positions = nullptr;  // [rows][positions_stride]
    int positions_stride = 0;
    const std::uint32_t* counts = nullptr;  // [rows]
    int most_tokens = 0;                    // an upper bound of the counts
    float* partial = nullptr;               // attention_partial_floats(), scratch
    __nv_bfloat16* read = nullptr;          // [rows][heads][512], out
};

// Floats of scratch for `rows` rows.
std::size_t attention_partial_floats(int heads, int most_tokens, int rows);

Status selected_attention(const SelectedAttention& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
