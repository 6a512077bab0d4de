// What a sparse-attention layer does with its rows' projections before it attends: the norms of the
// query rank and of the latents, the latents' place in the cache, the index keys' norm, pooled keys
// and tails.  The formulas are those of ops/rms_norm.h, layer_norm.h, latent_attention.h
// (store_latents) and index_pool.h; latents of 512, index dim 128, pools of 4, bf16 or fp8 caches.
//
// One thread block a row.  A pool that begins before the batch is computed, and the tail ring is
// written, by the block of its sequence's first row alone, in this order; every other pool by the
// block of its last row, from the batch's own rows.
#pragma once

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cache_views.h"
#include "ops/cuda/device_batch.h"
#include "ops/cuda/launch.h"

namespace percheron::ops::cuda {

struct SparseRows {
    // A row's projections, fp32: query rank, latent, index key and pooling gate at these columns.
    const float* projections = nullptr;
    int stride = 0;
    int query_at = 0, latent_at = 0, key_at = 0, gate_at = 0;
    int query_rank = 0;                  // 0: rows that do not attend; norm and output are not read
    const float* query_norm = nullptr;   // [query rank]
    const float* latent_norm = nullptr;  // [512]
    const float* key_norm = nullptr;     // [128]
    const float* key_bias = nullptr;     // [128]
    const float* ape = nullptr;          // [4][128]
    float eps = 1e-5f, key_eps = 1e-6f;
    LatentPages pages;
    DeviceBatch batch;
    __nv_bfloat16* query = nullptr;  // [rows][query rank], out
};

Status sparse_rows(const SparseRows& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
