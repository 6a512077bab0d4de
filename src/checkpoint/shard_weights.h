// Stored tensors in the form a network asks for, by canonical or stored name.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/expert_files.h"
#include "checkpoint/formats.h"
#include "checkpoint/shards.h"
#include "checkpoint/weight_reads.h"
#include "core/status.h"
#include "model/weight_source.h"

namespace percheron::checkpoint {

class ShardWeights : public model::WeightSource {
  public:
    const ShardSet& shards() const { return shards_; }
    // Bytes of all mapped files: what the page cache holds once everything was read.
    Bytes mapped_bytes() const;

    bool has(std::string_view stem) const override;
    // Also takes tensors of more extents whose first is n and whose others multiply to k
    // (convolutions, the patch embedding), if they are BF16, F16 or F32.  Reads FP8 codes and
    // scales once: NaN is corrupt.  Weights that are rewritten (formats.h) are so on the first call
    // and stay in memory.  Thread-safe.
    Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n, std::size_t k) override;
    Status vector(std::string_view name, std::span<float> out) override;

    // From now on the routed experts of the first `layers` layers are read from the files when they
    // are wanted; stream() hands them over.  Before the first matrix is asked for.
    ExpertFiles& keep_experts_in_files(std::size_t layers);
    // From now on weights of a format are looked at by whoever reads them through the result, and
    // matrix() of one that lies there as it is stored reads nothing.  Before the first matrix is
    // asked for.  Errors: io.
    Result<WeightReads*> read_past_the_cache(WeightReads::Progress progress);
    // From now on nvfp4 matrices say how their inputs are rounded (ops/fp4_inputs.h), and one whose
    // scale for that is not stored is an error.  Before the first matrix is asked for.
    void use_input_scales() { input_scales_ = true; }
    // Bytes of the experts that keep_experts_in_files() speaks of.
    Bytes expert_bytes(std::size_t layers) const;
    Result<ops::StreamedExperts> stream(std::string_view prefix,
                                        std::span<const ops::FeedForwardWeights> experts) override;

  protected:
    ShardSet shards_;

  private:
    bool stays_in_files(std::string_view canonical) const;
    // The bytes of a stored tensor at an address that suits its type.
    const void* aligned(const TensorPlace& place);

    // Values of a weight that is not computed from the file's bytes, made on the first call.
    Result<const float*> rewritten(const std::string& name, const WeightParts& parts,
                                   const Shape& shape);

    std::unique_ptr<ExpertFiles> expert_files_;
    std::unique_ptr<WeightReads> reads_;
    std::size_t layers_in_files_ = 0;  // the first ones
    bool input_scales_ = false;
    std::mutex copies_mutex_;
    // Copies of tensors that a writer left unaligned.
    std::map<const StoredTensor*, std::vector<std::byte>> copies_;
    std::map<std::string, std::vector<float>> rewritten_;
};

}  // namespace percheron::checkpoint
