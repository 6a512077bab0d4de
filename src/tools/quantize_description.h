// What the config files of a quantised folder say about its weights, in the words of the convention
// that can say it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/status.h"
#include "tools/quantize_plan.h"

namespace percheron::tools {

// config.json of `folder` with its quantization_config replaced by one that describes the plan:
// what is rounded and what is carried over, each as it is stored.
Result<std::string> quantized_config(const std::filesystem::path& folder,
                                     const std::vector<PlannedWeight>& plan);

// hf_quant_config.json of a plan that ModelOpt's convention describes, else empty.
std::string modelopt_config(const std::vector<PlannedWeight>& plan);

}  // namespace percheron::tools
