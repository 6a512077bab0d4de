// Asking for weights before their kernel runs: pieces of packed matrices on their way to the
// second-level cache, while the memory would rest.  Kernels do so whose threads have nothing else
// to do: blocks of a product that are out of work, blocks of the KDA step that have no head.
#pragma once

#include "ops/cuda/packed_matrix.h"

namespace percheron::ops::cuda {

// Of up to three matrices, every `every`-th block: spread over the matrices, so that their product
// finds something there and has something to ask the memory for at any time.
struct WeightsAhead {
    static constexpr int most = 3;
    PackedMatrix matrices[most];
    int count = 0;
    int every = 1;

    int pieces(int matrix) const {
        return (matrices[matrix].tiles() * matrices[matrix].blocks() + every - 1) / every;
    }
};

}  // namespace percheron::ops::cuda
