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
    // What config files and stored tensors disagree about; the stored tensors decide.  One sentence
    // a subject here, one a weight in `disagreements`.
    std::vector<std::string> warnings;
    std::vector<std::string> disagreements;
    // Why it does not run; empty if it does.
    std::vector<Error> problems;

    bool runnable() const { return problems.empty(); }
};

// Whether weights of that form have the values they were trained with.
bool is_unquantised(std::string_view form);

// "775 tensors: 480 quantised (432 w4a16, 48 fp8_block), 295 not, 0 unclassified; ..."
std::string summary(const Inventory& inventory);

}  // namespace percheron::checkpoint
