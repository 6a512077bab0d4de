// --weights-memory: a model whose routed experts are not all in memory.  What every token needs
// stays; of the experts as many as fit beside it, the others are read when they are wanted.
#pragma once

#include <cstddef>
#include <string>

#include "percheron/types.h"

#include "checkpoint/expert_files.h"
#include "core/status.h"
#include "ops/backend.h"
#include "tools/model_source.h"

namespace percheron::tools {

// What a decode step of one row costs, if the router wants all experts alike: the least that any
// choice of those to keep can reach.  Texts prefer some experts, so less is read for them.
struct ExpertExpectation {
    std::size_t experts = 0;  // of all layers
    std::size_t in_memory = 0;
    double bytes_from_disk = 0;    // a token
    double bytes_from_memory = 0;  // the same
    double disk_rate = 0;          // bytes a second
    double memory_rate = 0;

    double tokens_per_second() const;
    std::string text() const;
};

class ExpertMemory {
  public:
    // Before the network is loaded: asks the model's files to keep their experts.
    // Errors: invalid_argument (less than what every token needs; a made-up model); unsupported (a
    // backend with memory of its own).
    static Result<ExpertMemory> plan(ModelSource& source, const ops::Backend& backend, Bytes wish);

    // The network is loaded: reserves the places and reads a first part.
    // Errors: of ExpertFiles::start(), of measure_machine().
    Result<ExpertExpectation> start(std::size_t threads);

  private:
    Bytes for_experts_ = 0;
    Bytes others_ = 0;   // weights that every token needs, embeddings left out
    double wanted_ = 0;  // experts a token
    checkpoint::ExpertFiles* files_ = nullptr;
};

}  // namespace percheron::tools
