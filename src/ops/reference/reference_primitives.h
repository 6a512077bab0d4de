// The oracle: every primitive as its header's formula, in plain loops, sums in double, one row
// after the other.  Slow on purpose; what every other implementation is compared with.
#pragma once

#include "ops/primitives.h"

namespace percheron::ops::reference {

class ReferencePrimitives : public Primitives {
  public:
    Status prepare(const NetworkShape&, std::size_t, std::size_t) override { return {}; }

    void rms_norm(const RmsNorm& op) override;
    void layer_norm(const LayerNorm& op) override;

    void mhc_gates(const MhcGateComputation& op) override;
    void mhc_update(const MhcUpdate& op) override;
    void mhc_collapse(const MhcCollapse& op) override;

    void short_conv(const ShortConv& op) override;
    void kda_gates(const KdaGates& op) override;
    void kda_step(const KdaRecurrence& op) override;
    void kda_chunk(const KdaRecurrence& op) override;
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

    Status prepare_vision(const VisionShape&, std::size_t, std::size_t) override { return {}; }
    void add_rows(const AddRows& op) override;
    void gelu(const Gelu& op) override;
    void store_patch_heads(const StorePatchHeads& op) override;
    void patch_attention(const PatchAttention& op) override;

    Status prepare_drafter(const DrafterShape&) override { return {}; }
    void rope_angles(const RopeAngles& op) override;
    void rotate_heads(const RotateHeads& op) override;
    void store_context(const StoreContext& op) override;
    void block_attention(const BlockAttention& op) override;
    void block_conv(const BlockConv& op) override;

  protected:
    void products(std::span<const Linear> ops) override;
};

}  // namespace percheron::ops::reference
