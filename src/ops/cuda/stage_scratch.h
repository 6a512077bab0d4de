// Working memory of the stages: one block of device memory, cut anew by every stage.  Run without
// memory, a lay-out only measures.
//
// A stage's kernels may still run when the host lays out the next one; that is safe because a
// kernel touches another kernel's memory only after that one has ended (device.cuh).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>

#include "ops/backend.h"
#include "ops/cuda/router.h"

namespace percheron::ops::cuda {

// Rows whose attention, and index scores, are computed at a time: their partial results are large.
inline constexpr std::size_t attention_rows = 64;

class DeviceScratch {
  public:
    void use(std::byte* memory) { memory_ = memory; }
    void restart() { used_ = 0; }
    std::size_t peak() const { return peak_; }

    template <class T>
    T* take(std::size_t count) {
        const std::size_t at = used_;
        used_ += (count * sizeof(T) + 255) / 256 * 256;
        peak_ = std::max(peak_, used_);
        return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
    }

  private:
    std::byte* memory_ = nullptr;
    std::size_t used_ = 0, peak_ = 0;
};

struct KdaScratch {
    int stride = 0;  // of projections: q | k | v | beta, a multiple of 4
    float* projections = nullptr;
    __nv_bfloat16* decay_rank = nullptr;  // f_a x [R, d]
    __nv_bfloat16* gate_rank = nullptr;   // g_a x [R, d]
    float* decay = nullptr;               // [R, H d]
    float* gate = nullptr;                // [R, H d]
    __nv_bfloat16* mixed = nullptr;       // [R, H d]; of prompts ordered
    std::byte* prepared = nullptr;        // of prompts, see prefill_kda.h
    int prepared_chunks = 0;
    static KdaScratch lay_out(DeviceScratch& scratch, const NetworkShape& shape, std::size_t rows);
};

struct SparseScratch {
    // Columns of projections: query rank | latent | index key | index gate | index head weights.
    int stride = 0, latent_at = 0, key_at = 0, gate_at = 0, head_weights_at = 0;
    float* projections = nullptr;
    __nv_bfloat16* query_rank = nullptr;   // [R, query rank]
    __nv_bfloat16* query = nullptr;        // [R, H query_key_dim]
    __nv_bfloat16* index_query = nullptr;  // [R, index heads * index dim]
    int positions_stride = 0;
    std::uint32_t* positions = nullptr;
    std::uint32_t* counts = nullptr;
    float* scores = nullptr;  // of attention_rows rows with the longest context
    std::size_t score_count = 0;
    __nv_bfloat16* absorbed = nullptr;  // [R, H latent]
    float* partial = nullptr;           // of attention_rows rows
    __nv_bfloat16* read = nullptr;      // [R, H latent]
    __nv_bfloat16* values = nullptr;    // [R, H value_dim]
    __nv_bfloat16* ordered = nullptr;   // [R, query rank], of prompts
    static SparseScratch lay_out(DeviceScratch& scratch, const NetworkShape& shape,
                                 std::size_t rows);
};

struct ExpertsScratch {
    float* logits = nullptr;  // [R, row_parts, E]
    ExpertChoice choice;
    __nv_bfloat16* inside = nullptr;  // [pairs, I]
    float* pair_output = nullptr;     // [pairs, D]
    __nv_bfloat16* shared_inside = nullptr;
    float* shared = nullptr;  // [R, D]
    // Of prompts: rows in ordered parts [R, row_parts, D], and the pairs' [pairs, D].
    __nv_bfloat16* ordered = nullptr;
    __nv_bfloat16* gathered = nullptr;
    static ExpertsScratch lay_out(DeviceScratch& scratch, const NetworkShape& shape,
                                  std::size_t rows);
};

// What begins a step of the MTP layer.
struct MtpScratch {
    float* embedded = nullptr;         // [R, D]
    __nv_bfloat16* joined = nullptr;   // [R, 2 D]
    __nv_bfloat16* ordered = nullptr;  // [R, 2 D], of prompts
    static MtpScratch lay_out(DeviceScratch& scratch, const NetworkShape& shape, std::size_t rows);
};

// The largest of all stages' needs.
std::size_t stage_scratch_bytes(const NetworkShape& shape, std::size_t rows);

}  // namespace percheron::ops::cuda
