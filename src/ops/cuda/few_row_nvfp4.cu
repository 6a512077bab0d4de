#include "ops/cuda/few_row_routes.cuh"

namespace percheron::ops::cuda {

template Status launch_product<WeightFormat::nvfp4>(FewRowLaunch&, bool, const LaunchContext&);
template Status launch_experts<WeightFormat::nvfp4>(FewRowLaunch&, bool, const LaunchContext&);

}  // namespace percheron::ops::cuda
