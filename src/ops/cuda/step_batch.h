// A step's batch in device memory: one buffer at a fixed place, so that recorded steps find it.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "core/status.h"
#include "ops/batch.h"
#include "ops/cuda/device_batch.h"
#include "ops/cuda/device_memory.h"

namespace percheron::ops::cuda {

class StepBatch {
  public:
    // Room for `rows` rows with page tables of `pages` entries together; longer tables make it
    // grow.  Errors: out_of_memory.
    Status reserve(std::size_t rows, std::size_t pages);
    static Bytes bytes(std::size_t rows, std::size_t pages);

    // Copies the batch, asynchronously; the batch may go, this object's memory must rest until the
    // stream has passed.  True: the memory moved, and what was recorded for the old place is void.
    Result<bool> upload(const RowBatch& batch, cudaStream_t stream);

    const DeviceBatch& view() const { return view_; }
    // Rows [first, first + count) of the step.
    DeviceBatch rows(std::size_t first, std::size_t count) const;
    const std::uint32_t* tokens() const { return tokens_; }
    const std::uint32_t* logit_rows() const { return logit_rows_; }
    const DigestRequest* digests() const { return digests_; }

    // Pools that are complete for the step's furthest row.
    std::size_t most_pools(std::size_t pool) const { return furthest_ / pool; }
    std::size_t furthest() const { return furthest_; }  // positions up to the furthest row's
    // Every row is wanted, in order.
    bool all_logits() const { return all_logits_; }

  private:
    Status allocate(std::size_t rows, std::size_t pages);

    DeviceMemory device_;
    PinnedMemory host_;
    std::size_t row_capacity_ = 0, page_capacity_ = 0;
    DeviceBatch view_;
    const std::uint32_t* tokens_ = nullptr;
    const std::uint32_t* logit_rows_ = nullptr;
    const DigestRequest* digests_ = nullptr;
    std::size_t furthest_ = 0;
    bool all_logits_ = false;
};

}  // namespace percheron::ops::cuda
