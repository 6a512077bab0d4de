// What the operating system says about memory: of the machine, and of this process.
#pragma once

#include "percheron/types.h"

#include "core/status.h"

namespace percheron {

struct MachineMemory {
    Bytes total = 0;
    // What can be taken without swapping: MemAvailable, or less where a control group allows less.
    Bytes available = 0;
};

// Errors: io where /proc/meminfo cannot be read.
Result<MachineMemory> machine_memory();

// Memory of this process that no file backs: RssAnon + RssShmem.
Result<Bytes> anonymous_memory();

}  // namespace percheron
