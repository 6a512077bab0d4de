// Fetches a network's tensors from the source by name and places them in the backend: what trunk,
// MTP layer and vision tower have in common.  Errors: the source's, with the tensor named.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "ops/backend.h"

namespace percheron::model {

class WeightLoader {
  public:
    WeightLoader(const ModelConfig& config, WeightSource& source, ops::Backend& backend)
        : config_(config), source_(source), backend_(backend) {}

    Status matrix(const std::string& stem, std::size_t n, std::size_t k, ops::WeightMatrix& out,
                  ops::WeightUse use = ops::WeightUse::product);
    // Several tensors of `count` values each, one after the other in the placed vector.
    Status vectors(const std::vector<std::string>& names, std::size_t count, const float*& out);
    Status vector(const std::string& name, std::size_t count, const float*& out) {
        return vectors({name}, count, out);
    }

    // `at` is the prefix of the layer's part, with its dot.
    Status turn(const std::string& layer, const std::string& site, const std::string& norm,
                ops::MhcWeights& out);
    Status kda(const std::string& at, ops::KdaWeights& out);
    Status sparse(const std::string& at, ops::SparseAttentionWeights& out);
    Status feed_forward(const std::string& at, std::size_t intermediate,
                        ops::FeedForwardWeights& out);
    // `list` is what out.experts views.
    Status experts(const std::string& at, std::vector<ops::FeedForwardWeights>& list,
                   ops::ExpertsWeights& out);

  private:
    const ModelConfig& config_;
    WeightSource& source_;
    ops::Backend& backend_;
};

}  // namespace percheron::model
