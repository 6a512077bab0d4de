// The weights of a made-up network, made in memory when they are asked for.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "checkpoint/synthetic_model.h"
#include "core/status.h"
#include "core/thread_pool.h"
#include "model/weight_source.h"

namespace percheron::checkpoint {

class SyntheticSource final : public model::WeightSource {
  public:
    // `threads` make values; 0: as many as the process may run on.
    SyntheticSource(SyntheticModel model, std::size_t threads);

    const SyntheticModel& model() const { return model_; }

    // Memory held once every weight was asked for.
    Bytes bytes() const;

    bool has(std::string_view stem) const override;
    // Makes the matrix when it is first asked for and keeps it.  As Checkpoint, also takes tensors
    // of more extents.  Errors: not_found, corrupt (shape), out_of_memory.  Thread-safe.
    Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n, std::size_t k) override;
    Status vector(std::string_view name, std::span<float> out) override;

  private:
    struct Release {
        void operator()(std::byte* memory) const;
    };
    using Memory = std::unique_ptr<std::byte[], Release>;

    Result<const SyntheticWeight*> find(std::string_view stem) const;
    // The bytes of a tensor, made now if they were not yet.  Under the mutex.
    Result<const std::byte*> made(const SyntheticTensor& tensor);

    SyntheticModel model_;
    std::map<std::string, const SyntheticWeight*, std::less<>> by_stem_;
    std::mutex mutex_;
    ThreadPool pool_;
    std::map<const SyntheticTensor*, Memory> memory_;
};

}  // namespace percheron::checkpoint
