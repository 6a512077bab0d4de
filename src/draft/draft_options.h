// What speculation an engine is started with.
#pragma once

#include <cstdint>

namespace percheron::draft {

struct DraftOptions {
    bool mtp = false;         // the model's own layer, which must have been loaded
    bool dflash2 = false;     // a drafter of its own folder, handed to the engine
    bool copy = false;        // from the sequence's own text; asked before the MTP layer
    std::uint32_t depth = 0;  // drafts of a round at most; 0: no speculation
    bool adaptive = false;    // how many, down to none, is decided while running
};

}  // namespace percheron::draft
