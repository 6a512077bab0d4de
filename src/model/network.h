// The text trunk of GLM-5.3-Flash in reading order: embed, layers of two hyper-connected sublayers,
// mean of the streams, norm, head.  Calls backend stages only; owns placed weights and the
// activations between stages; caches belong to the caller.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/status.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "ops/backend.h"

namespace percheron::model {

// One view a layer of its kind, in layer order; the MTP layer's pages come last.
struct CacheViews {
    std::vector<ops::KdaSlots> kda;
    std::vector<ops::LatentPages> latent;
};

struct NetworkOptions {
    std::size_t max_rows = 512;       // rows of a step
    std::size_t max_logit_rows = 64;  // rows of a step whose logits can be wanted
};

// What a network asks of its backend beside the weights.
struct NetworkMemory {
    Bytes activations = 0;  // between the stages
    Bytes stages = 0;       // working space inside them
    Bytes logits = 0;
    Bytes total() const { return activations + stages + logits; }
};

// Matrices of the trunk that others compute with too, as placed.
struct SharedMatrices {
    ops::WeightMatrix embedding;  // [vocabulary, hidden]
    ops::WeightMatrix head;       // [vocabulary, hidden]
};

class Network {
  public:
    // The same numbers load() will ask for, before anything is loaded.
    static NetworkMemory memory(const ModelConfig& config, const ops::Backend& backend,
                                const NetworkOptions& options);

    // Asks the source for every tensor by name and shape and places it in the backend.
    // Errors: the source's, with the tensor named; out_of_memory from the backend.
    static Result<std::unique_ptr<Network>> load(const ModelConfig& config, WeightSource& weights,
                                                 ops::Backend& backend,
                                                 const NetworkOptions& options);
    virtual ~Network() = default;

    virtual const ModelConfig& config() const = 0;
    virtual SharedMatrices shared() const { return {}; }

    // Computes the batch and updates the caches.  Row i of the result belongs to
    // batch.logit_rows[i]: fp32 logits [logit rows][vocabulary], valid until the next forward.
    // Errors: invalid_argument for a batch that breaks ops/batch.h, the options' limits or the
    // vocabulary; nothing has been computed then.
    virtual Result<std::span<const float>> forward(const ops::RowBatch& batch,
                                                   const CacheViews& caches) = 0;

    // Logits of further rows of the latest forward, whose batch must be as it was: [rows]
    // ascending, at most max_logit_rows; the same numbers as if they had been asked for then.  What
    // forward() returned is overwritten.
    virtual Result<std::span<const float>> logits_of(const ops::RowBatch& latest,
                                                     std::span<const std::uint32_t> rows) = 0;
    virtual std::size_t max_logit_rows() const = 0;

    // Where the backend has digests of logits: leaves `excluded` out of them, once, before the
    // first step.  A batch may ask for digests then, and its forward() returns rows of which only
    // those are there that digested()->fetch() has brought.
    // Errors: unsupported (this backend has none, or not of such a vocabulary), out_of_memory.
    virtual Status use_digests(std::span<const TokenId> /*excluded*/) {
        return Error(ErrorCode::unsupported, "this network's logits have no digests");
    }
    // Null: there are none.
    virtual ops::DigestedRows* digested() const { return nullptr; }

    // Observation of the latest forward, for tests and drafters: `layer`'s output averaged over the
    // streams (taps must be asked for before the step), and the final normed hidden rows.  Rows of
    // the latest batch, in backend memory.
    // Errors: out_of_memory; invalid_argument for a layer the network lacks.
    virtual Status set_taps(std::vector<std::size_t> layers) = 0;
    virtual ops::Activations tap(std::size_t index) const = 0;
    virtual ops::Activations hidden() const = 0;
};

}  // namespace percheron::model
