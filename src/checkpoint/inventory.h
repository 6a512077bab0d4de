// An account of a model folder: what is stored in which format, what is missing or left over, and
// whether the network runs from it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/types.h"

#include "checkpoint/architecture.h"
#include "core/status.h"

namespace percheron::checkpoint {

// A weight with its scales counts as one tensor; `bytes` are those of all its parts.
struct FormatTally {
    std::size_t tensors = 0;
    Bytes bytes = 0;
};

// Weights that a config describes otherwise than they are stored, in one way.
struct Disagreement {
    std::string config;                // "quantization_config", or a file's name
    std::string what;                  // "stored as bf16 but not exempt"
    std::vector<std::string> weights;  // stems, in the network's order
};

// A few lines for any number of weights: names that differ in numbers only are one name in which
// the numbers are listed, "model.language_model.layers.{3,7-9}.mlp.experts.{0-287}.up_proj".  Where
// not every combination of these numbers is meant, how many are stands behind.
std::vector<std::string> folded_names(const std::vector<std::string>& names);

// "quantization_config: 12 weights stored as bf16 but not exempt: NAMES; the files decide"
std::string sentence(const Disagreement& disagreement);

struct Inventory {
    // By ops::name_of(format), "f16" or "exl3", over every tensor that was recognised.
    std::map<std::string, FormatTally> formats;
    // The same by part of the network.
    std::map<NetworkPart, std::map<std::string, FormatTally>> parts;
    // Weights that quantization_config exempts and that are in fact stored unquantised.
    std::vector<std::string> ignored;
    // Stored tensors that the network has no place for.
    std::vector<std::string> unclassified;
    bool mtp = false;
    bool vision = false;
    // Memory that weights take which are not computed from the files' bytes (formats.h).
    Bytes rewritten_bytes = 0;
    struct File {
        std::string name;
        Bytes bytes = 0;
        std::size_t tensors = 0;
    };
    std::vector<File> files;
    // What config files and stored tensors disagree about; the stored tensors decide.  A sentence a
    // subject, those of `disagreements` among them.
    std::vector<std::string> warnings;
    std::vector<Disagreement> disagreements;
    // Why it does not run; empty if it does.
    std::vector<Error> problems;

    bool runnable() const { return problems.empty(); }
};

// Whether weights of that form have the values they were trained with.
bool is_unquantised(std::string_view form);

// "775 tensors: 480 quantised (432 w4a16, 48 fp8_block), 295 not, 0 unclassified; ..."
std::string summary(const Inventory& inventory);

}  // namespace percheron::checkpoint
