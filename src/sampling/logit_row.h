// Rows of logits that may still lie where they were computed.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "core/status.h"
#include "ops/logit_digest.h"

namespace percheron::sampling {

struct LogitRow {
    LogitRow() = default;
    template <std::convertible_to<std::span<const float>> Row>
    LogitRow(const Row& row) : values(row) {}

    // [vocabulary], as the network gave them; with a digest they are there once fetch() has been
    // called.
    std::span<const float> values;
    const ops::LogitDigest* digest = nullptr;
    ops::DigestedRows* source = nullptr;  // of the digest: its `number`-th
    std::size_t number = 0;

    Status fetch() const { return digest == nullptr ? Status() : source->fetch(number); }
};

// Those of a step.
class LogitRows {
  public:
    // `source`: null where the values are there.
    LogitRows(std::span<const float> values, std::size_t vocabulary,
              ops::DigestedRows* source = nullptr)
        : values_(values), vocabulary_(vocabulary), source_(source) {}

    LogitRow operator[](std::size_t number) const {
        LogitRow row(values_.subspan(number * vocabulary_, vocabulary_));
        if (source_ != nullptr) {
            row.digest = &source_->digests()[number];
            row.source = source_;
            row.number = number;
        }
        return row;
    }

    std::span<const float> values() const { return values_; }
    std::size_t vocabulary() const { return vocabulary_; }

  private:
    std::span<const float> values_;
    std::size_t vocabulary_;
    ops::DigestedRows* source_;
};

}  // namespace percheron::sampling
