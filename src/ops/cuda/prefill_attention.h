// Attention of a prompt's rows over their selected latents in the absorbed form
// (ops/latent_attention.h), on sm_90a: up to 64 heads of a row share one key-value vector of 512
// values a token, gathered from pages.
//
// A block computes a row's heads, 64 at a time, and then the next row's.  One group of warps
// gathers 48 tokens at a time into a ring in shared memory, one multiplies the queries by them and
// makes weights of the scores, two multiply the weights by half of the latents' columns each.
//
// Numerics.  Scores and reads on the tensor core, products of bf16, sums in fp32; running maximum
// and sum of the softmax in fp32, its exponentials by the quick instruction, weights rounded to
// bf16 before both the read and the sum.  fp8 latents are widened to the bf16 numbers they stand
// for.  A row depends on its own query and tokens alone.
#pragma once

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cache_views.h"
#include "ops/cuda/device_batch.h"
#include "ops/cuda/launch.h"

namespace percheron::ops::cuda {

struct PromptAttention {
    int heads = 0;
    float scale = 0;                          // query_key_dim^-1/2
    const __nv_bfloat16* absorbed = nullptr;  // [rows][heads][512], 16-byte aligned
    LatentPages pages;
    DeviceBatch batch;
    const std::uint32_t* positions = nullptr;  // [rows][positions_stride]
    int positions_stride = 0;
    const std::uint32_t* counts = nullptr;  // [rows], at least 1
    __nv_bfloat16* read = nullptr;          // [rows][heads][512], ordered (prefill_rows.h), out
};

// Errors: unsupported (no such kernel here, or another type of latents), internal (launch).
Status prompt_attention(const PromptAttention& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
