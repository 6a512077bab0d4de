// What a config claims about the formats of its weights.  Never used to read them (formats.h), only
// to account for disagreements.
//
// Read from config.json's quantization_config, else from hf_quant_config.json's "quantization"; of
// EXL3 from quantization_config.json's "tensor_storage", where quantised modules have the
// "quant_format" exl3.
// Exempt weights are listed as "ignore", "modules_to_not_convert" or "exclude_modules"; quantised
// ones are every linear layer, or the "targets" of "config_groups".  An entry is
//   "re:EXPRESSION"   matched from the start of the module's name
//   "a.*.b"           a shell pattern for the whole name
//   "Linear"          every linear layer
//   any other         the module of that name and everything below it
// Names and expressions may use any of the prefixes of names.h.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/status.h"

namespace percheron::checkpoint {

// A list of modules as quantisation tools write them.
class ModuleList {
  public:
    // Errors: corrupt (an expression that does not compile, named).
    Status add(std::string_view entry);

    // `stem` is canonical.
    bool contains(std::string_view stem) const;
    // Whether "Linear" is listed.
    bool every_linear() const { return every_linear_; }
    bool empty() const;

  private:
    struct Expression;

    std::unordered_set<std::string> names_;  // canonical
    std::vector<std::string> patterns_;
    std::vector<std::shared_ptr<const Expression>> expressions_;
    bool every_linear_ = false;
};

struct QuantizationConfig {
    ModuleList exempt;
    ModuleList targets;
    // EXL3: the tensors of each module, canonical.  Where some are stored the others must be too:
    // what is left without a codebook's marker would be read as another codebook.
    std::vector<std::vector<std::string>> stored_together;
};

// Nothing if neither file says anything.  Errors: corrupt, naming the file; io.
Result<std::optional<QuantizationConfig>> read_quantization_config(
    const std::filesystem::path& folder);

}  // namespace percheron::checkpoint
