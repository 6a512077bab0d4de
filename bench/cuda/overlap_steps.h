// Prompts beside decoding: what each keeps of its rate alone when both go on at the same time on
// streams of their own, beside what taking turns would leave them (the two shares add up to one).
#pragma once

#include <cstddef>

namespace percheron::bench {

// Prints.  `layers` full-size ones with experts in w4a16, twice: each side has weights of its own.
void bench_overlap(std::size_t layers);

}  // namespace percheron::bench
