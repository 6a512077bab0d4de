#include "engine/decode_share.h"

#include <algorithm>
#include <cassert>

namespace percheron::engine {

namespace {

constexpr double weight_alone = 0.1;
constexpr double weight_beside_prompts = 0.02;

}  // namespace

void DecodeShare::add_prefill(double seconds) {
    owed_ += owed_for(seconds);
    most_ += 2 * owed_for(seconds);
    largest_ = std::max(largest_, owed_);
}

void DecodeShare::add_decode(std::uint32_t rows, double seconds) {
    assert(rows < undisturbed_.size());
    double& usual = undisturbed_[rows];
    if (usual == 0) usual = seconds;
    // The second half of the steps between two prefill steps finds its caches filled again.
    if (owed_ < largest_ / 2 || largest_ == 0) {
        usual += (largest_ == 0 ? weight_alone : weight_beside_prompts) * (seconds - usual);
    }
    owed_ -= (std::min(usual, seconds) - share_ * seconds) / (1 - share_);
    most_ -= seconds;
    if (owed_ <= 0 || most_ <= 0) forgive();
}

}  // namespace percheron::engine
