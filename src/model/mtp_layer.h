// The MTP layer: from the trunk's hidden row of a position and the token behind it, the token after
// that.
//
//   x = W_eh [RMS(E[token_{t+1}]); RMS(h_t)]          E[.] = 0 at position 0
//   x = x + SparseAttention(RMS(x));  x = x + MoE(RMS(x))
//   h' = RMS(x; shared_head.norm);    logits = lm_head h'
//
// h_t is the trunk's row after the stream mean and the final norm; for a second draft step it is h'
// of the first.  The layer keeps its own latents, pooled keys and tails: position t's entry is that
// of row t.  Embedding and head are the trunk's.
//
// Rules of batches and numeric classes as for the trunk (ops/batch.h); tokens[r] is the token at
// position + 1 of row r.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/status.h"
#include "model/network.h"
#include "ops/mtp_stages.h"

namespace percheron::model {

// The layer's weights, placed in a backend; experts.experts views expert_list.
struct MtpLayerWeights {
    ops::MtpWeights stages;
    std::vector<ops::FeedForwardWeights> expert_list;
};

// Asks `source` for every tensor of the layer.  Errors: the source's, with the tensor named.
Status load_mtp_layer(const ModelConfig& config, WeightSource& source, ops::Backend& backend,
                      MtpLayerWeights& out);

class MtpLayer {
  public:
    // What load() asks for beside the weights.
    static NetworkMemory memory(const ModelConfig& config, const ops::Backend& backend,
                                const NetworkOptions& options);

    // The layer stored behind the trunk's last.  `trunk` has been loaded in the same backend, with
    // options at least as large, and outlives the layer.
    // Errors: the source's; unsupported (a backend without the stages); out_of_memory.
    static Result<std::unique_ptr<MtpLayer>> load(const Network& trunk, WeightSource& weights,
                                                  ops::Backend& backend,
                                                  const NetworkOptions& options);
    virtual ~MtpLayer() = default;

    // Row r of the batch goes on from row hidden_rows[r] of `hidden`, in backend memory; may be the
    // rows of hidden().
    // Returns fp32 logits [logit rows][vocabulary], valid until the next forward.
    // Errors: invalid_argument, as Network::forward.
    virtual Result<std::span<const float>> forward(const ops::RowBatch& batch,
                                                   ops::Activations hidden,
                                                   std::span<const std::uint32_t> hidden_rows,
                                                   const ops::LatentPages& pages) = 0;

    // Only what later rows read of these: their latents, pooled keys and tails, with the bits that
    // forward() gives them, for a small part of its work.  Wants no logits; hidden() is not
    // changed.
    virtual Status keep(const ops::RowBatch& batch, ops::Activations hidden,
                        std::span<const std::uint32_t> hidden_rows,
                        const ops::LatentPages& pages) = 0;

    // h' of the latest forward().
    virtual ops::Activations hidden() const = 0;

    // As the trunk's, which has been told what is left out; null: it has none.
    virtual ops::DigestedRows* digested() const { return nullptr; }
};

}  // namespace percheron::model
