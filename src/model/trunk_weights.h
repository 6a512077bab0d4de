// The trunk's weights, loaded by name and placed in a backend.
#pragma once

#include <optional>
#include <vector>

#include "core/status.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "ops/backend.h"

namespace percheron::model {

// One layer.  `mixer` and `feed_forward` hold what the config says the layer is.
struct LayerWeights {
    ops::MhcWeights attention_turn;     // in front of the mixer
    ops::MhcWeights feed_forward_turn;  // in front of the feed-forward
    std::optional<ops::KdaWeights> kda;
    std::optional<ops::SparseAttentionWeights> sparse;
    std::optional<ops::FeedForwardWeights> dense;
    std::optional<ops::ExpertsWeights> experts;
    std::vector<ops::FeedForwardWeights> expert_list;  // what experts->experts views
};

struct TrunkWeights {
    ops::WeightMatrix embedding;  // [vocabulary, hidden]
    ops::WeightMatrix head;       // [vocabulary, hidden]
    const float* final_norm = nullptr;
    std::vector<LayerWeights> layers;
};

// The numbers of `config` that the stages share.
ops::NetworkShape shape_of(const ModelConfig& config);

// Asks `source` for the tensors of one layer, or of the trunk.  Errors: the source's, with the
// tensor named.
Status load_layer(const ModelConfig& config, WeightSource& source, ops::Backend& backend,
                  std::size_t index, LayerWeights& out);
Result<TrunkWeights> load_trunk(const ModelConfig& config, WeightSource& source,
                                ops::Backend& backend);

}  // namespace percheron::model
