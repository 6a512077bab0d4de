// A model that computes prompts one after the other, each by itself and in prefill class, and gives
// the logits behind every position: what scores and comparisons of models are made of.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "percheron/types.h"

#include "cache/cache_store.h"
#include "core/status.h"
#include "model/network.h"
#include "tools/devices.h"
#include "tools/model_source.h"

namespace percheron::tools {

class PromptReader {
  public:
    // `longest`: tokens of the longest prompt to come.
    // Errors: of the model's files (named) and the device; out_of_memory.
    static Result<PromptReader> load(ModelSource source, const DeviceOptions& device,
                                     std::size_t longest);

    const model::ModelConfig& config() const { return source_.config; }
    // Positions a step: on the prefill grid, as many as keep its logits within 64 MiB.
    static std::size_t step_rows(std::size_t vocabulary);

    // Logits [count, vocabulary] behind positions [first, first + count) of a prompt, which follow
    // those of the step before or begin another; valid until the next step.
    // `count` is at most step_rows().
    Result<std::span<const float>> step(std::span<const TokenId> ids, std::size_t first,
                                        std::size_t count);

  private:
    PromptReader() = default;

    ModelSource source_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> network_;
    std::unique_ptr<cache::CacheStore> caches_;
    std::vector<PageId> pages_;
    std::vector<std::uint32_t> logit_rows_;
};

// log of the sum of exponentials of one position's logits.
double log_normaliser(std::span<const float> logits);

}  // namespace percheron::tools
