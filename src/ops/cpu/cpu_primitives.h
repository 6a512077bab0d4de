// The primitives on a CPU: the kernels of one SIMD level, split over the threads of one pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/product_set.h"
#include "ops/cpu/working_memory.h"
#include "ops/primitives.h"

namespace percheron::ops::cpu {

class CpuPrimitives : public Primitives {
  public:
    CpuPrimitives(const Kernels& kernels, ThreadPool& pool);

    Bytes working_bytes(const NetworkShape& shape, std::size_t rows,
                        std::size_t logit_rows) const override;
    Status prepare(const NetworkShape& shape, std::size_t rows, std::size_t logit_rows) override;

    void rms_norm(const RmsNorm& op) override;
    void layer_norm(const LayerNorm& op) override;

    void mhc_gates(const MhcGateComputation& op) override;
    void mhc_update(const MhcUpdate& op) override;
    void mhc_collapse(const MhcCollapse& op) override;

    void short_conv(const ShortConv& op) override;
    void kda_gates(const KdaGates& op) override;
    void kda_step(const KdaRecurrence& op) override;
    // The recurrence once more: with the state in the first cache it needs no more operations than
    // the chunked form (docs/PERFORMANCE_CPU.md), and any chunking gives its bits.
    void kda_chunk(const KdaRecurrence& op) override { kda_step(op); }
    void gated_norm(const GatedNorm& op) override;

    void index_pool(const IndexPool& op) override;
    void select_tokens(const SelectTokens& op) override;
    void store_latents(const StoreLatents& op) override;
    void absorb_queries(const AbsorbQueries& op) override;
    void latent_attention(const LatentAttention& op) override;
    void expand_values(const ExpandValues& op) override;

    void router(const Router& op) override;
    void swiglu(const Swiglu& op) override;
    void combine_experts(const CombineExperts& op) override;

    Bytes vision_working_bytes(const VisionShape& shape, std::size_t rows,
                               std::size_t patches) const override;
    Status prepare_vision(const VisionShape& shape, std::size_t rows, std::size_t patches) override;
    void add_rows(const AddRows& op) override;
    void gelu(const Gelu& op) override;
    void store_patch_heads(const StorePatchHeads& op) override;
    void patch_attention(const PatchAttention& op) override;

    Bytes drafter_working_bytes(const DrafterShape& shape) const override;
    Status prepare_drafter(const DrafterShape& shape) override;
    void rope_angles(const RopeAngles& op) override;
    void rotate_heads(const RotateHeads& op) override;
    void store_context(const StoreContext& op) override;
    void block_attention(const BlockAttention& op) override;
    void block_conv(const BlockConv& op) override;

    // A whole turn of the hyper-connections (MhcTurn), every block of rows by one thread from its
    // update to its norm: the rows stay in the first cache, and nothing waits in between.  Bits as
    // by the primitives above.  False, with nothing done, if the turn is better split otherwise:
    // few rows with a large fn, or an fn that reads its input packed.
    bool mhc_turn(const MhcTurn& turn, const NetworkShape& shape);

    // The products up to the next kda_step() fetch the slots that it and the convolution will read,
    // each thread its own share.  Changes no result.
    void fetch_slots(const KdaSlots& slots, const RowBatch& batch, const NetworkShape& shape);

  protected:
    void products(std::span<const Linear> ops) override;

  private:
    // Floats of each piece of scratch.  The ranking of select_tokens comes on top: eight bytes a
    // pool and thread, as contexts grow beyond what fits the selection.
    struct Sizes {
        std::size_t rows = 0, packed = 0, thread = 0, widest_input = 0;
    };
    static Sizes sizes(const NetworkShape& shape, std::size_t rows, std::size_t logit_rows);
    struct VisionSizes {
        std::size_t packed = 0, thread = 0, panel = 0, widest_input = 0;
    };
    static VisionSizes vision_sizes(const VisionShape& shape, std::size_t rows,
                                    std::size_t patches);

    struct DrafterSizes {
        std::size_t packed = 0, thread = 0, widest_input = 0;
    };
    static DrafterSizes drafter_sizes(const DrafterShape& shape);
    void attend_block(const BlockAttention& op, const DraftRows& block, std::size_t head,
                      std::size_t thread);

    // body(first, last, thread) over [0, count) in blocks that take a few microseconds, given the
    // vector operations of one item; on this thread alone if all of it is too little.
    template <class Body>
    void in_blocks(std::size_t count, std::size_t cost, Body&& body) {
        constexpr std::size_t worth_a_region = 3'000;
        constexpr std::size_t least_task = 2'000;
        if (count * cost < worth_a_region) {
            body(std::size_t{0}, count, std::size_t{0});
            return;
        }
        const std::size_t block =
            std::max<std::size_t>(1, least_task / std::max<std::size_t>(cost, 1));
        pool_.parallel_for((count + block - 1) / block, [&](std::size_t task, std::size_t thread) {
            body(task * block, std::min(count, (task + 1) * block), thread);
        });
    }

    void mhc_collapse_row(const MhcCollapse& op, std::size_t row) const;
    float* thread_scratch(std::size_t thread, std::size_t floats);
    void reserve_thread_scratch(std::size_t floats);
    void select_row(const SelectTokens& op, const SequenceRows& sequence, std::size_t row,
                    const float* query, bool split, std::size_t thread);

    const Kernels& kernels_;
    ThreadPool& pool_;
    ProductSet products_;
    WorkingMemory rows_;            // a few floats a row: gate products, router logits
    WorkingMemory thread_scratch_;  // one piece a thread
    std::size_t thread_stride_ = 0;
    std::vector<float> zeros_;  // what the convolution sees before position 0
    std::vector<std::vector<std::uint64_t>> ranking_;            // one a thread
    std::vector<std::vector<FetchAhead::Range>> fetched_slots_;  // one list a thread
    std::vector<float> scores_;  // of one row, when its pools are split over the threads
};

}  // namespace percheron::ops::cpu
