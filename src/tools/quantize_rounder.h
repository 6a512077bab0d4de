// One weight in its packed form, by rounding to the nearest or by calibration.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/thread_pool.h"
#include "ops/weight_matrix.h"
#include "tools/quantize_formats.h"
#include "tools/quantize_hessian.h"
#include "tools/quantize_plan.h"

namespace percheron::tools {

// The packed bytes of one weight, in the order of PlannedWeight::outputs.
struct PackedWeight {
    std::vector<std::vector<std::byte>> parts;
    RoundingError error;
    float global_scale = 1;  // nvfp4

    // Valid as long as the bytes are.
    ops::WeightMatrix view(const PlannedWeight& weight) const;
};

// By the weights' stems.
using PackedWeights = std::map<std::string, PackedWeight>;

// Every value, [n][k].
std::vector<float> dequantised(const ops::WeightMatrix& matrix, ThreadPool& pool);

// Largest magnitude.
float largest_magnitude(const ops::WeightMatrix& matrix, ThreadPool& pool);

class MatrixRounder {
  public:
    explicit MatrixRounder(ThreadPool& pool) : pool_(pool) {}

    // To the nearest values.  `global_scale`: of nvfp4, else unused.
    // Errors: corrupt (a value that is not finite; names the stored tensor).
    Result<PackedWeight> nearest(const PlannedWeight& weight, const ops::WeightMatrix& source,
                                 float global_scale);

    // By calibration.  `values`: of the source, finite.
    PackedWeight calibrated(const PlannedWeight& weight, Rows<const float> values,
                            const HessianFactor& factor, float global_scale);

  private:
    ThreadPool& pool_;
};

}  // namespace percheron::tools
