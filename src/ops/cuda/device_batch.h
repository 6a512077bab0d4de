// A step's rows as the kernels see them: the fields of SequenceRows, in device memory.
#pragma once

#include <cstdint>

namespace percheron::ops::cuda {

struct DeviceSequence {
    std::uint32_t first_row = 0;
    std::uint32_t row_count = 0;
    std::uint32_t first_position = 0;
    std::uint32_t state_position = 0;
    std::uint32_t commit_rows = 0;
    std::uint32_t slot = 0;
    std::uint32_t first_page = 0;  // of its pages in the step's page table
};

// A step's rows, or a run of them; every pointer is device memory.
struct DeviceBatch {
    int rows = 0;
    const DeviceSequence* sequences = nullptr;
    int sequence_count = 0;
    const std::uint32_t* sequence_of_row = nullptr;  // [rows], of this run
    const std::uint32_t* pages = nullptr;  // the sequences' page tables, one after another
    std::uint32_t first_row = 0;           // of the step, when only some of its rows are meant
};

}  // namespace percheron::ops::cuda
