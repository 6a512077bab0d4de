// What a step of a network costs, stage by stage: bytes it must read, operations it must do, the
// time it took, and how many different experts its rows chose.
//
// Bytes: every weight the rows need once, in the format it is stored in; KDA states read and
// written; the latents that are attended to.  Operations: two for every weight and row, and those
// of recurrence and attention.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "ops/batch.h"

namespace percheron::tools {

struct StageCost {
    std::size_t calls = 0;
    double bytes = 0;
    double operations = 0;
    double seconds = 0;
};

struct StepCosts {
    bool decode = false;
    std::size_t rows = 0;                     // a stream each in decode, of one prompt in prefill
    std::map<std::string, StageCost> stages;  // of one step, the mean over its repetitions
    double seconds = 0;                       // of one step, all stages
    double experts = 0;                       // different ones a layer of experts, on average
    double experts_expected = 0;              // E (1 - (1 - chosen / E)^rows), as if chosen evenly
};

struct StepBenchOptions {
    std::string model;          // of resolve_model()
    std::size_t threads = 0;    // 0: all
    std::size_t context = 256;  // positions in front of the measured decode steps
    std::size_t repeat = 5;
    std::vector<std::size_t> decode_rows = {1, 2, 4, 8, 16};
    std::vector<std::size_t> prefill_rows = {128, 2048};
};

// On the CPU backend, standard arithmetic, random text.
// Errors: of the model's files; out_of_memory.
Result<std::vector<StepCosts>> measure_steps(const StepBenchOptions& options);

}  // namespace percheron::tools
