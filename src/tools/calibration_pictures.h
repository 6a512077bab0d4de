// The rows that pictures in calibration texts put in the place of their placeholders' embeddings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/status.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "ops/batch.h"
#include "tools/quantize_calibration.h"

namespace percheron::tools {

class CalibrationPictures {
  public:
    // Encodes every picture once, in standard arithmetic, with the tower as `weights` has it.
    // `texts` outlive the object.  Errors: unsupported (pictures, and a model without a tower); the
    // tower's.
    static Result<CalibrationPictures> encode(const std::vector<CalibrationText>& texts,
                                              const model::ModelConfig& config,
                                              model::WeightSource& weights, std::size_t threads);

    // Of positions [first, first + count) of a text; rows count from `first`.
    std::vector<ops::EmbeddingOverride> rows(const CalibrationText& text, std::size_t first,
                                             std::size_t count) const;

  private:
    std::size_t hidden_ = 0;
    std::map<std::array<std::uint8_t, 32>, std::vector<float>> features_;  // by content_hash
};

}  // namespace percheron::tools
