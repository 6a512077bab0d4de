// The short causal convolution in front of KDA, with its history ring, followed by SiLU.
//
// Per channel c, at position p of a sequence, with K taps (the last one meets the current token):
//
//   z      = sum_{j=0..K-1} weight[c][j] * raw(p - (K-1) + j)[c]
//   out[c] = z * sigmoid(z)
//
// raw(q) is the step's input row when q >= first_position, zero when q < 0, and the ring's row
// q % ring otherwise.
//
// Shapes:   input, output [rows of the batch, C]; weight [C][K]; slots.conv rows hold C floats.
// Numerics: fp32 in both arithmetics; the sum runs over j ascending.  A row's bits depend on its
// own
//           sequence alone.
// Effects:  writes output, then stores the raw input of each sequence's last min(rows, ring) rows
//           at position % ring of its slot (all history is read before any of it is overwritten).
//           No overlap of output with input.
#pragma once

#include "core/views.h"
#include "ops/batch.h"
#include "ops/cache_views.h"

namespace percheron::ops {

struct ShortConv {
    Rows<const float> input;
    const float* weight = nullptr;
    std::size_t taps = 4;
    KdaSlots slots;
    const RowBatch* batch = nullptr;
    Rows<float> output;
};

}  // namespace percheron::ops
