#include "ops/cuda/few_row_routes.cuh"

namespace percheron::ops::cuda {

template Status launch_product<WeightFormat::w4a16>(FewRowLaunch&, bool, const LaunchContext&);
template Status launch_experts<WeightFormat::w4a16>(FewRowLaunch&, bool, const LaunchContext&);

}  // namespace percheron::ops::cuda
