// Bytes as what a server calls its metrics.
#include <algorithm>
#include <cmath>
#include <string>

#include "fuzz.h"
#include "tools/metrics_text.h"

namespace percheron::fuzz {
namespace {

using tools::HistogramSample;
using tools::MetricsText;

void expect_histogram(const HistogramSample& histogram) {
    promise(
        std::is_sorted(histogram.buckets.begin(), histogram.buckets.end(),
                       [](const auto& one, const auto& other) { return one.bound < other.bound; }),
        "buckets stand by their bounds");
    double below = 0;
    for (const HistogramSample::Bucket& bucket : histogram.buckets) {
        promise(bucket.count >= below, "counts of buckets never fall");
        below = bucket.count;
    }
    promise(histogram.count >= 0 && std::isfinite(histogram.count), "a count is a number");
    double last = -INFINITY;
    for (const double share : {0.1, 0.5, 0.9, 0.99}) {
        const auto value = histogram.quantile(share);
        if (!value) continue;
        promise(!std::isnan(*value), "a quantile is a number");
        promise(*value >= last, "quantiles rise with their share");
        last = *value;
    }
}

}  // namespace

void metrics_text(Input input) {
    const std::string_view text = Reader(input).rest();
    const auto metrics = MetricsText::parse(text);
    if (!metrics.ok()) {
        promise(metrics.error().message().starts_with("line "), "an error names its line");
        return;
    }
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    promise(metrics->lines() <= lines + 1, "a line has at most one value");
    for (const char* name : {"a", "h", "h_count"}) {
        const auto labelled = metrics->by_label(name, "le");
        promise(labelled.empty() || metrics->value(name).has_value(),
                "what has labels has a value");
    }
    for (const char* name : {"a", "h"})
        expect_histogram(metrics->histogram(name));

    // The same lines as another machine ends them.
    if (text.find('\r') != std::string_view::npos) return;
    std::string other;
    for (const char c : text) {
        if (c == '\n') other += '\r';
        other += c;
    }
    const auto again = MetricsText::parse(other);
    promise(again.ok() && again->lines() == metrics->lines(), "every line's end is one");
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(metrics_text)
