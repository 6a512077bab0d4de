// What is told of a row of logits so that its token can be chosen without the row: a vocabulary of
// logits is half a megabyte, and the way from a device to the host is long.
//
// A digest never decides by itself.  It holds exact logits of few tokens among which the choice
// must be, and bounds of sums; whoever reads it (sampling/sampler.h) computes with them as it would
// with the row, and asks for the row where they leave any doubt.  So the token is the one that the
// row gives, bit for bit, whatever functions and orders of sums the device has.
//
// With l the logits, T the temperature, or 1 where it is 0, and E the excluded ids:
//   largest, smallest, finite   of all l
//   best            the first of the largest l outside E, with its logit
//   top             the largest l outside E, descending, ties to the lower id; a prefix of the
//   whole
//                   order, as long as the device finds handy
//   total           sum over v outside E of exp(l_v / T - l_best / T), within total_error
//   plain_total     sum over all v of exp(l_v - largest), within 1e-9 of it
//   noisy           every v outside E with l_v / T + g_v >= the largest such sum - 1e-9, where g is
//                   the noise of sampling/coupled_noise.h; more than there is room for are counted
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron::ops {

// What is wanted beside largest, smallest, finite and best.
struct DigestRequest {
    enum Want : std::uint32_t { top = 1, total = 2, plain_total = 4, noisy = 8 };

    std::uint64_t seed = 0;  // of the noise, with choice and position
    std::uint32_t choice = 0;
    Position position = 0;
    float temperature = 0;
    std::uint32_t wants = 0;
};

struct LogitDigest {
    static constexpr std::uint32_t top_room = 256;
    static constexpr std::uint32_t noisy_room = 8;
    static constexpr std::uint32_t nobody = ~std::uint32_t{0};
    static constexpr double noisy_margin = 1e-9;

    struct Entry {
        float logit = 0;
        std::uint32_t id = 0;
    };

    float largest = 0, smallest = 0;
    std::uint32_t finite = 1;
    std::uint32_t best = nobody;  // nobody: E is the whole vocabulary, or the row is not finite
    float best_logit = 0;
    double total = 0, total_error = 0;  // 0: nobody asked
    double plain_total = 0;
    std::uint32_t top_count = 0;
    std::uint32_t noisy_count =
        0;  // may be more than noisy_room: then none of them can be relied on
    std::array<Entry, noisy_room> noisy{};
    std::array<Entry, top_room> top{};
};

// A backend's digests, of the rows of its latest head() whose batch asked for them.
class LogitDigests {
  public:
    virtual ~LogitDigests() = default;

    // E, once, before the first step.  Errors: unsupported (such a vocabulary), out_of_memory.
    virtual Status exclude(std::span<const TokenId> ids, std::size_t vocabulary) = 0;
    // One a logit row; after run() has returned, until the next step that asks.
    virtual std::span<const LogitDigest> digests() const = 0;
    // The row itself, of the latest head(), to `values` [vocabulary] in host-readable memory.
    virtual Status fetch(std::size_t row, float* values) = 0;
};

// The same as somebody in front of a network sees it: of its latest forward, if that was asked.
class DigestedRows {
  public:
    virtual ~DigestedRows() = default;
    virtual std::span<const LogitDigest> digests() const = 0;
    // Brings a row to where forward() said that the logits would be.
    virtual Status fetch(std::size_t row) = 0;
};

}  // namespace percheron::ops
