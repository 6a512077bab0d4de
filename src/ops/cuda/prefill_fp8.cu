#include "ops/cuda/prefill_kernel.cuh"

namespace percheron::ops::cuda {

template Status launch_prefill<WeightFormat::fp8_block>(PrefillLaunch&, bool, const LaunchContext&);

}  // namespace percheron::ops::cuda
