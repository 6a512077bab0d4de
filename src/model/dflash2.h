// DFlash2: a block drafter beside the trunk.  From the trunk's inner rows of all positions so far
// and the newest token it names the tokens behind it in one pass (ops/drafter_stages.h has the
// layers):
//
//   U_t = head hidden_t, scaled and capped where the config says so     places t = 1 .. K
//   B_t = the `selector_top` largest of U_t, ties to the lower id
//   S_t(b) = U_t(b) + sum_r P[a_(t-1), r] (W hidden_t)_r Q[b, r]        b in B_t, a_0 the newest
// Who draws a_t from S_t walks from the left: candidates(t - 1, a_(t-1)).  A plain DFlash drafter
// has no B and no S; its tokens are drawn from U.
//
// Tensors go by their published names: fc, hidden_norm, norm, layers.{i}.(input_layernorm,
// post_attention_layernorm, self_attn.{q,k,v,o}_proj, self_attn.{q,k}_norm,
// mlp.{gate,up,down}_proj, {attention,mlp}_conv.{base_kernel,kernel_projection}),
// candidate_selector.{predecessor_codebook, successor_codebook, hidden_projection}, and
// embed_tokens and lm_head where the drafter has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/status.h"
#include "model/dflash2_config.h"
#include "model/network.h"
#include "ops/block_drafting.h"

namespace percheron::model {

struct Dflash2Options {
    std::size_t context_rows = 512;  // of a pass at most: the trunk's rows of a step
    std::size_t block_rows = 64;     // over the blocks of a pass at most; the trunk's logit rows
};

class Dflash2 {
  public:
    struct Candidate {
        TokenId id{};
        float score = 0;
    };

    // What load() asks for beside the weights, the trunk's taps included.
    static NetworkMemory memory(const Dflash2Config& config, const ops::Backend& backend,
                                const NetworkOptions& trunk, const Dflash2Options& options);
    // Of the weights those that the host reads as they are stored: the selector's codebooks.
    static Bytes codebook_bytes(const Dflash2Config& config);

    // Taps `trunk`, which has been loaded in the same backend.  It and `weights` outlive the
    // drafter.
    // Errors: the source's, with the tensor named; invalid_argument (numbers that do not fit the
    // trunk's); unsupported (a backend without the stages); out_of_memory.
    static Result<std::unique_ptr<Dflash2>> load(const Dflash2Config& config, Network& trunk,
                                                 WeightSource& weights, ops::Backend& backend,
                                                 const Dflash2Options& options);
    virtual ~Dflash2() = default;

    virtual const Dflash2Config& config() const = 0;

    // Keys and values of rows of the trunk's latest step, row i of `rows` from its row tap_rows[i],
    // into `pages` (one a layer).
    virtual Status add_context(ops::NumericClass numeric_class,
                               std::span<const ops::DraftRows> rows,
                               std::span<const std::uint32_t> tap_rows,
                               std::span<const ops::ContextPages> pages) = 0;

    // One pass over blocks of one newest token each and row_count - 1 places.  Returns U of every
    // place, block after block [places][vocabulary], valid until the next pass.
    virtual Result<std::span<const float>> name(std::span<const ops::DraftRows> blocks,
                                                std::span<const TokenId> newest,
                                                std::span<const ops::ContextPages> pages) = 0;
    // Whether places have candidates: not those of a plain DFlash drafter.
    virtual bool selects() const = 0;
    // B and S of the latest pass's place, in descending order of U, behind the token `before`.
    virtual std::span<const Candidate> candidates(std::size_t place, TokenId before) = 0;
};

}  // namespace percheron::model
