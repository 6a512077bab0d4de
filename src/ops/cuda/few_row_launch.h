// What a launch of the few-row product hands to its kernel, and the launches of every format.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "ops/cuda/few_row_gemm.h"

namespace percheron::ops::cuda {

// One matrix, or gate and up, of a launch.
struct FewRowSegment {
    const std::uint8_t* weight[2];  // gate and up, or the same matrix twice
    float scale[2];
    const __nv_bfloat16* x;
    void* y;
    int x_stride, y_stride;
    int tiles_per_input, input_step;
    int n, tiles;
    int first_unit;
    bool y_is_bf16;
};

struct FewRowLaunch {
    FewRowSegment segments[largest_product_count];
    int segment_count;
    int units;
    int tiles;                       // of all segments, where they are counted through
    std::uint32_t units_reciprocal;  // 2^32 / units, rounded up
    int rows;
    int blocks;       // of k
    int slices_log2;  // slices of k; the warps of a block are slices x groups of tiles
    int depth;        // slots of a warp's ring
    int sum_buffers;
    WeightsAhead ahead;
    // Experts: units are (group of pairs, unit of one segment) instead, see ExpertProduct.
    ExpertGroup const* groups;
    const std::int32_t* group_count;
    int most_groups;
    const std::uint32_t* pair_order;
    const std::uint8_t* const* expert_weights[2];
    const float* expert_scales[2];
    int pairs_per_row;
    bool choice_is_older;
    float limit;
    float y_factor;  // of gate and up's results
};

// The kernel for this many rows and these matrices.  A format's kernels are compiled in a file of
// their own (few_row_bf16.cu and so on).
template <WeightFormat format>
Status launch_product(FewRowLaunch& launch, bool swiglu, const LaunchContext& context);
template <WeightFormat format>
Status launch_experts(FewRowLaunch& launch, bool swiglu, const LaunchContext& context);

}  // namespace percheron::ops::cuda
