// Rounds the calibrated matrices of one layer.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "tools/quantize.h"
#include "tools/quantize_hessian.h"
#include "tools/quantize_layers.h"
#include "tools/quantize_rounder.h"

namespace percheron::tools {

// What calibration did to one layer.
struct LayerAccount {
    std::size_t matrices = 0;
    // Squared errors of the matrices' outputs over the texts: as rounded, had they been rounded to
    // the nearest, and the outputs themselves.
    double error = 0, nearest_error = 0, outputs = 0;
    std::vector<std::uint64_t> expert_rows;
    std::vector<std::string> uncovered;
};

class LayerCalibration {
  public:
    // `weights`: all of the layer, in the plan's order.  What is rounded goes to `packed` and
    // replaces its source in `replaced` at once.
    LayerCalibration(const QuantizeOptions& options, const model::ModelConfig& config,
                     std::span<const PlannedWeight> weights, ReplacedWeights& replaced,
                     CalibrationMath& math, PackedWeights& packed)
        : options_(options),
          config_(config),
          weights_(weights),
          replaced_(replaced),
          math_(math),
          rounder_(math.pool()),
          packed_(packed) {}

    // Whether anything outside the routed experts is calibrated; then run the layer once under
    // watcher() and call round_watched().
    bool watches() const;
    ProductWatcher watcher();
    Status round_watched();

    // Expert by expert: gate and up from the rows routed to it, down from what the rounded two make
    // of them.  `done(weight)` follows every weight.
    Status round_experts(const ops::ExpertsWeights& experts, const RowFile& inputs,
                         std::size_t rows, const std::function<void(const PlannedWeight&)>& done);

    LayerAccount take_account() { return std::move(account_); }

  private:
    struct Expert {
        const PlannedWeight *gate = nullptr, *up = nullptr, *down = nullptr;
    };

    std::vector<Expert> experts_of_plan() const;
    Status route(const ops::ExpertsWeights& experts, const RowFile& inputs, std::size_t rows);
    // The rows of `chosen`, in batches as products read them: rounded to bfloat16.
    Status each_batch(const RowFile& inputs, std::span<const std::uint32_t> chosen,
                      const std::function<void(Rows<const float>)>& body);
    Status add_middle_rows(const Expert& expert, const RowFile& inputs,
                           std::span<const std::uint32_t> chosen, Hessian& hessian);
    std::optional<HessianFactor> factor_of(const Hessian& hessian) const;
    // Rounds one matrix; without a factor to the nearest, with its name in the account.
    // `rows`: of the texts that the matrix was used by.
    Status round(const PlannedWeight& weight, const Hessian& hessian,
                 const std::optional<HessianFactor>& factor, std::size_t rows);
    Result<ops::WeightMatrix> source_of(const PlannedWeight& weight) const;

    const QuantizeOptions& options_;
    const model::ModelConfig& config_;
    std::span<const PlannedWeight> weights_;
    ReplacedWeights& replaced_;
    CalibrationMath& math_;
    MatrixRounder rounder_;
    PackedWeights& packed_;
    LayerAccount account_;
    std::vector<std::vector<std::uint32_t>> expert_rows_;
    // Products of one input share its Hessian.
    std::map<const void*, std::shared_ptr<Hessian>> watched_;  // by the weight's data
    std::map<const void*, const PlannedWeight*> by_data_;
};

// The factor of an nvfp4 matrix of `plan`.  gate_proj and up_proj of one feed-forward share it:
// engines that fuse them keep one.
Result<float> planned_global_scale(const PlannedWeight& weight, std::span<const PlannedWeight> plan,
                                   model::WeightSource& source, ThreadPool& pool);

}  // namespace percheron::tools
