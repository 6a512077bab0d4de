// The vision tower's stages on CUDA: its products are those of the decode class, so that no result
// depends on how a picture is sliced.
//
// Stages are launched one by one outside of a step; embed_patches() and merge(), which read and
// write host memory, wait for the device.  Errors are noted for the next step to return.
#pragma once

#include <functional>

#include "ops/cuda/device_memory.h"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/stage_scratch.h"
#include "ops/vision_stages.h"

namespace percheron::ops::cuda {

class CudaVision final : public VisionStages {
  public:
    // `note` takes every launch's status, and `ready` makes the device current: false where an
    // error has been noted.
    CudaVision(const LaunchContext& context, std::function<bool()> ready,
               std::function<void(const Status&)> note);

    Bytes working_bytes(const VisionShape& shape, std::size_t rows,
                        std::size_t patches) const override;
    // Errors: unsupported (a shape that the kernels are not made for), out_of_memory.
    Status prepare(const VisionShape& shape, std::size_t rows, std::size_t patches) override;
    DType heads_dtype() const override { return DType::bf16; }

    void embed_patches(const BiasedMatrix& weights, Rows<const float> patches,
                       Activations z) override;
    void project_heads(const VisionBlockWeights& weights, std::span<const PatchPlace> places,
                       std::size_t first, Activations z, const PatchHeads& heads) override;
    void finish_block(const VisionBlockWeights& weights, const PatchHeads& heads, std::size_t first,
                      Activations z) override;
    void merge(const VisionMergerWeights& weights, Activations z, Rows<float> features) override;

  private:
    void multiply(std::span<const FewRowProduct> products, int rows);
    void multiply(const BiasedMatrix& weight, const __nv_bfloat16* x, int rows, float* y);
    void wait(std::string_view what);

    LaunchContext context_;
    std::function<bool()> ready_;
    std::function<void(const Status&)> note_;
    VisionShape shape_;
    DeviceMemory memory_;
    DeviceScratch scratch_;
};

}  // namespace percheron::ops::cuda
