// What a launch of the prefill class's product hands to its kernel, and the launches of every
// format.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "core/status.h"
#include "ops/cuda/prefill_gemm.h"

namespace percheron::ops::cuda {

// One matrix, or gate and up, of a launch.
struct PrefillSegment {
    CUtensorMap x;  // boxes of 64 columns and a tile's rows, of experts fewer
    const std::uint8_t* weight[2];
    float scale[2];
    void* y;
    int y_stride;
    int n, tiles;  // tiles of 16 outputs
    int outputs_per_input, input_step;
    int first_unit_row;  // of the launch's rows of units, one a tile of outputs
    PrefillRows y_rows;
};

struct PrefillLaunch {
    PrefillSegment segments[largest_prefill_count];
    int segment_count;
    int rows;
    int blocks;     // of k
    int unit_rows;  // tiles of outputs of all segments
    int row_tiles;  // tiles of rows
    // Experts: a group stands for a tile of rows.
    const ExpertGroup* groups;  // nullptr: none
    const std::int32_t* group_count;
    const std::uint32_t* pair_order;
    const std::uint8_t* const* expert_weights[2];
    const float* expert_scales[2];
    float limit;
};

// Of x, [rows][x_stride] with `columns` used, in boxes of `box_rows`.
Status describe_rows(CUtensorMap& map, const __nv_bfloat16* x, int rows, int columns, int x_stride,
                     int box_rows);

// Rows of a box of an expert's rows: as many boxes are read as the expert's tile has.
inline constexpr int grouped_box_rows = 32;

// Rows of a tile, and the launch; a format's kernels are compiled in a file of their own
// (prefill_bf16.cu and so on).
template <WeightFormat format>
constexpr int prefill_tile_rows(bool swiglu, bool grouped) {
    return format == WeightFormat::bf16 && !swiglu && !grouped ? 256 : 128;
}
template <WeightFormat format>
Status launch_prefill(PrefillLaunch& launch, bool swiglu, const LaunchContext& context);

}  // namespace percheron::ops::cuda
