// The MTP layer against golden numbers (scripts/mtp_oracle.py, or the model's own training code).
#pragma once

#include <cstddef>

#include "checkpoint/checkpoint.h"
#include "core/status.h"
#include "golden/golden_file.h"
#include "ops/backend.h"

namespace percheron::tests {

// Largest |difference| / RMS of a golden row; logits centred.
struct MtpFigures {
    std::size_t rows = 0;
    double hidden = 0;
    double logits = 0;          // of the last rows, every id
    double top_logits = 0;      // the eight largest of every row, against the last row's RMS
    std::size_t top_equal = 0;  // rows whose largest logit is the golden one

    void add(const MtpFigures& other);
};

enum class MtpInput {
    golden,  // X.mtp.input_hidden where the file has it
    trunk,   // what this project's trunk leaves
};

// Every X.mtp.hidden of the file, in prefill chunks of `chunk` rows.
Result<MtpFigures> check_mtp(checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
                             const GoldenFile& golden, MtpInput input, std::size_t chunk);

}  // namespace percheron::tests
