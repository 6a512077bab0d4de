#include "ops/cuda/prefill_kernel.cuh"

namespace percheron::ops::cuda {

template Status launch_prefill<WeightFormat::bf16>(PrefillLaunch&, bool, const LaunchContext&);

}  // namespace percheron::ops::cuda
