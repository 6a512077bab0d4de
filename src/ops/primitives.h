// The primitives as one table: what the default composition of the stages (composed_backend.h)
// calls.  Each call's contract is in its own header.  All views are host memory.
//
// src/ops/reference implements every primitive as a plain oracle; a CPU backend derives from this
// class (or from the reference) and replaces what it does better.  A call may use threads inside;
// it has finished when it returns.  Scratch belongs to the implementation, which reserves it in
// prepare() and allocates nothing later.
#pragma once

#include <span>
#include <vector>

#include "core/status.h"
#include "ops/add_rows.h"
#include "ops/backend.h"
#include "ops/block_drafting.h"
#include "ops/combine_experts.h"
#include "ops/fp4_inputs.h"
#include "ops/gated_norm.h"
#include "ops/gelu.h"
#include "ops/index_pool.h"
#include "ops/kda_gates.h"
#include "ops/kda_step.h"
#include "ops/latent_attention.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/mhc.h"
#include "ops/patch_attention.h"
#include "ops/rms_norm.h"
#include "ops/router.h"
#include "ops/select_tokens.h"
#include "ops/short_conv.h"
#include "ops/swiglu.h"

namespace percheron::ops {

struct VisionShape;
struct DrafterShape;

class Primitives {
  public:
    virtual ~Primitives() = default;

    // What prepare() will reserve.
    virtual Bytes working_bytes(const NetworkShape&, std::size_t /*rows*/,
                                std::size_t /*logit_rows*/) const {
        return 0;
    }
    // Called once before the first step with the largest row counts a step may have.
    virtual Status prepare(const NetworkShape& shape, std::size_t rows, std::size_t logit_rows) = 0;

    virtual void rms_norm(const RmsNorm& op) = 0;
    virtual void layer_norm(const LayerNorm& op) = 0;
    // Inputs of weights that say so are rounded before (fp4_inputs.h).
    void linear(std::span<const Linear> ops);

    virtual void mhc_gates(const MhcGateComputation& op) = 0;
    virtual void mhc_update(const MhcUpdate& op) = 0;
    virtual void mhc_collapse(const MhcCollapse& op) = 0;

    virtual void short_conv(const ShortConv& op) = 0;
    virtual void kda_gates(const KdaGates& op) = 0;
    virtual void kda_step(const KdaRecurrence& op) = 0;   // decode class
    virtual void kda_chunk(const KdaRecurrence& op) = 0;  // prefill class
    virtual void gated_norm(const GatedNorm& op) = 0;

    virtual void index_pool(const IndexPool& op) = 0;
    virtual void select_tokens(const SelectTokens& op) = 0;
    virtual void store_latents(const StoreLatents& op) = 0;
    virtual void absorb_queries(const AbsorbQueries& op) = 0;
    virtual void latent_attention(const LatentAttention& op) = 0;
    virtual void expand_values(const ExpandValues& op) = 0;

    virtual void router(const Router& op) = 0;
    virtual void swiglu(const Swiglu& op) = 0;
    virtual void combine_experts(const CombineExperts& op) = 0;

    // ---- the vision tower's.  Prepared apart: a model without pictures reserves nothing for them.
    virtual Bytes vision_working_bytes(const VisionShape&, std::size_t /*rows*/,
                                       std::size_t /*patches*/) const {
        return 0;
    }
    virtual Status prepare_vision(const VisionShape& shape, std::size_t rows,
                                  std::size_t patches) = 0;
    virtual void add_rows(const AddRows& op) = 0;
    virtual void gelu(const Gelu& op) = 0;
    virtual void store_patch_heads(const StorePatchHeads& op) = 0;
    virtual void patch_attention(const PatchAttention& op) = 0;

    // ---- a block drafter's, prepared apart too.
    virtual Bytes drafter_working_bytes(const DrafterShape&) const { return 0; }
    virtual Status prepare_drafter(const DrafterShape& shape) = 0;
    virtual void rope_angles(const RopeAngles& op) = 0;
    virtual void rotate_heads(const RotateHeads& op) = 0;
    virtual void store_context(const StoreContext& op) = 0;
    virtual void block_attention(const BlockAttention& op) = 0;
    virtual void block_conv(const BlockConv& op) = 0;

  protected:
    // Products of inputs as they are, or rounded to bf16.
    virtual void products(std::span<const Linear> ops) = 0;

  private:
    Fp4Inputs fp4_inputs_;
    std::vector<Linear> plain_;
};

}  // namespace percheron::ops
