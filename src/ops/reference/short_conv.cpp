#include <algorithm>

#include "ops/reference/reference_primitives.h"
#include "ops/reference/scalar_functions.h"

namespace percheron::ops::reference {
namespace {

// Row of the history ring for position p.
float* ring_row(const KdaSlots& slots, RequestSlot slot, Position p, std::size_t channels) {
    return slots.conv + to_int(slot) * slots.conv_stride + (p % slots.ring) * channels;
}

}  // namespace

void ReferencePrimitives::short_conv(const ShortConv& op) {
    const std::size_t channels = op.input.columns;
    for (const SequenceRows& sequence : op.batch->sequences) {
        const Position first = sequence.first_position;
        for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
            const Position position = first + i;
            float* const out = op.output.row(sequence.first_row + i);
            for (std::size_t c = 0; c < channels; ++c) {
                double sum = 0;
                for (std::size_t tap = 0; tap < op.taps; ++tap) {
                    const std::size_t back = op.taps - 1 - tap;
                    if (back > position) continue;  // before the sequence: zero
                    const Position source = position - static_cast<Position>(back);
                    const float raw = source >= first
                                          ? op.input.row(sequence.first_row + source - first)[c]
                                          : ring_row(op.slots, sequence.slot, source, channels)[c];
                    sum += static_cast<double>(op.weight[c * op.taps + tap]) * raw;
                }
                out[c] = static_cast<float>(sum * sigmoid(sum));
            }
        }
        const std::uint32_t stored = std::min(sequence.row_count, op.slots.ring);
        for (std::uint32_t i = sequence.row_count - stored; i < sequence.row_count; ++i) {
            std::copy_n(op.input.row(sequence.first_row + i), channels,
                        ring_row(op.slots, sequence.slot, first + i, channels));
        }
    }
}

}  // namespace percheron::ops::reference
