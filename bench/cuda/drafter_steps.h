// A block drafter's passes at the published sizes with random weights: what naming a block reads
// over this run's read ceiling beside its median time, and what rows of context take.
#pragma once

namespace percheron::bench {

// Prints.  `ceiling`: GB/s.
void bench_drafters(double ceiling);

}  // namespace percheron::bench
