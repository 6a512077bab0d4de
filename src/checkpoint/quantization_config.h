// What a config claims about the formats of its weights.  Never used to read them (formats.h), only
// to account for disagreements.
//
// Read from config.json's quantization_config and from hf_quant_config.json's "quantization", each
// by itself; of EXL3 from quantization_config.json's "tensor_storage", where quantised modules have
// the "quant_format" exl3. Exempt weights are listed as "ignore", "modules_to_not_convert" or
// "exclude_modules" (module_list.h); quantised ones are every linear layer, the "targets" of
// "config_groups" or the keys of "quantized_layers".  How they are stored is said by
// "quant_method", "quant_algo" and "format", of FP8 "weight_block_size", of groups the fields of
// "weights".
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/module_list.h"
#include "core/status.h"

namespace percheron::checkpoint {

// Weights of which a config says how they are stored.
struct ClaimedGroup {
    std::string name;  // for messages: "config_groups.group_0", or the file's own
    ModuleList targets;
    nlohmann::ordered_json says = nlohmann::ordered_json::object();  // field: value
    bool of_config_groups = false;
    bool names_a_method = true;  // as config.json must, and ModelOpt's own file does not
};

struct QuantizationConfig {
    std::string name;  // for messages: "quantization_config"
    // There is one, but it does not say which weights are stored how, or not in words that are
    // known.
    bool silent = false;
    ModuleList exempt;
    std::vector<ClaimedGroup> groups;  // of those that name a weight the first one is meant
    // What of the description cannot be meant: sentences without their end.
    std::vector<std::string> oddities;
    // EXL3: the tensors of each module, canonical.  Where some are stored the others must be too:
    // what is left without a codebook's marker would be read as another codebook.
    std::vector<std::vector<std::string>> stored_together;
};

// The form of a stored weight: WeightParts::stored_as, and of NVFP4 "nvfp4-pack-quantized" in the
// layout of compressed-tensors.
inline constexpr std::string_view compressed_nvfp4 = "nvfp4-pack-quantized";

// What of a group's fields is not so of a weight in this form: "num_bits 8, group_size 64"; empty
// if nothing.  Fields that say nothing about how a weight is stored are left alone.
std::string contradiction(const ClaimedGroup& group, std::string_view form);

// Fields that a group would have to have for others to know that its weights are in this form:
// "num_bits, group_size"; empty if it has what they need.
std::string silence(const ClaimedGroup& group, std::string_view form);

// One for each file that says something, the one that `ignored` is counted by first.  Errors:
// corrupt, naming the file; io.
Result<std::vector<QuantizationConfig>> read_quantization_configs(
    const std::filesystem::path& folder);

}  // namespace percheron::checkpoint
