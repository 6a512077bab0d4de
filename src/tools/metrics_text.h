// Prometheus text (exposition format 0.0.4) as a client reads it.  The server may be anybody: text
// that is not in the format is an error that names its line, and sizes have limits.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace percheron::tools {

// Counts of a histogram: how many observations were at most `bound`.
struct HistogramSample {
    struct Bucket {
        double bound = 0;
        double count = 0;
    };
    std::vector<Bucket> buckets;  // by bound; counts never fall
    double count = 0;

    // The value below which a share of the observations lies, 0 < share < 1: linear inside its
    // bucket, from 0 in the first (whose bound it is where that is not above 0); the largest finite
    // bound where the bucket has no end, as histogram_quantile() of Prometheus.  Nothing when there
    // are no observations.
    std::optional<double> quantile(double share) const;
};

class MetricsText {
  public:
    static constexpr std::size_t most_lines = 200'000;
    static constexpr std::size_t most_labels = 64;  // of a line

    // Errors: corrupt.
    static Result<MetricsText> parse(std::string_view text);

    // Of the first line with this name, whatever its labels.
    std::optional<double> value(const std::string& name) const;
    // (value of `label`, value of the metric) of every line that has the label, in order.
    std::vector<std::pair<std::string, double>> by_label(const std::string& name,
                                                         std::string_view label) const;
    // Of NAME_bucket and NAME_count; without observations where they are missing.
    HistogramSample histogram(const std::string& name) const;

    std::size_t lines() const { return lines_; }

  private:
    using Label = std::pair<std::string, std::string>;
    struct Line {
        std::vector<Label> labels;
        double value = 0;
    };

    std::map<std::string, std::vector<Line>> metrics_;
    std::size_t lines_ = 0;  // with a value
};

}  // namespace percheron::tools
