#include "tools/metrics_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace percheron::tools {
namespace {

constexpr std::string_view blanks = " \t";

bool begins_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
}

// Reads one line from front to back.
class LineReader {
  public:
    explicit LineReader(std::string_view rest) : rest_(rest) { skip_blanks(); }

    bool at_end() const { return rest_.empty(); }
    bool take(char c) {
        if (!rest_.starts_with(c)) return false;
        rest_.remove_prefix(1);
        return true;
    }
    void skip_blanks() {
        rest_.remove_prefix(std::min(rest_.find_first_not_of(blanks), rest_.size()));
    }
    // Empty: there is no name here.
    std::string name() {
        std::size_t size = 0;
        while (size < rest_.size() &&
               (begins_name(rest_[size]) || (size > 0 && rest_[size] >= '0' && rest_[size] <= '9')))
            ++size;
        std::string name(rest_.substr(0, size));
        rest_.remove_prefix(size);
        return name;
    }
    // What stands between quotes, with \\, \" and \n as what they mean.
    std::optional<std::string> quoted() {
        if (!take('"')) return std::nullopt;
        std::string text;
        while (!rest_.empty() && rest_[0] != '"') {
            const bool escaped = take('\\');
            if (rest_.empty()) return std::nullopt;
            text += escaped && rest_[0] == 'n' ? '\n' : rest_[0];
            rest_.remove_prefix(1);
        }
        if (!take('"')) return std::nullopt;
        return text;
    }
    // The next word as a number; the names of what is none are NaN, +Inf and -Inf.
    std::optional<double> number() {
        std::string_view word = rest_.substr(0, rest_.find_first_of(blanks));
        rest_.remove_prefix(word.size());
        if (word.starts_with('+')) word.remove_prefix(1);
        double number = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        const bool whole = end == word.data() + word.size() && !word.empty();
        if (whole && error == std::errc::result_out_of_range) {
            return std::strtod(std::string(word).c_str(), nullptr);
        }
        if (!whole || error != std::errc{}) return std::nullopt;
        return number;
    }

  private:
    std::string_view rest_;
};

// Labels up to their closing brace; what is wrong with them, if anything.
std::string_view read_labels(LineReader& reader,
                             std::vector<std::pair<std::string, std::string>>& labels) {
    while (true) {
        reader.skip_blanks();
        if (reader.take('}')) return {};
        std::string name = reader.name();
        if (name.empty()) return "a label has no name";
        reader.skip_blanks();
        if (!reader.take('=')) return "a label has no value";
        reader.skip_blanks();
        auto value = reader.quoted();
        if (!value) return "a label's value has no end";
        if (labels.size() == MetricsText::most_labels) return "a metric has too many labels";
        labels.emplace_back(std::move(name), std::move(*value));
        reader.skip_blanks();
        if (!reader.take(',')) {
            if (!reader.take('}')) return "labels have no end";
            return {};
        }
    }
}

}  // namespace

std::optional<double> HistogramSample::quantile(double share) const {
    if (!(count > 0) || buckets.empty()) return std::nullopt;
    const double rank = share * count;
    double below = 0;
    // A first bucket that ends at or below 0 has no beginning to measure from: its bound.
    const double first = buckets.front().bound;
    double bound_below = std::isinf(first) ? 0 : std::min(first, 0.0);
    for (const Bucket& bucket : buckets) {
        if (std::isinf(bucket.bound)) break;
        if (bucket.count >= rank && bucket.count > below) {
            const double part = (rank - below) / (bucket.count - below);
            return std::lerp(bound_below, bucket.bound, std::clamp(part, 0.0, 1.0));
        }
        below = bucket.count;
        bound_below = bucket.bound;
    }
    return bound_below;
}

Result<MetricsText> MetricsText::parse(std::string_view text) {
    MetricsText metrics;
    std::size_t number = 0;
    const auto wrong = [&](std::string_view what) {
        return Error(ErrorCode::corrupt, "line " + std::to_string(number) +
                                             " is not Prometheus text: " + std::string(what));
    };
    while (!text.empty()) {
        ++number;
        if (number > most_lines) return wrong("there are too many lines");
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view content = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (content.ends_with('\r')) content.remove_suffix(1);
        LineReader reader(content);
        if (reader.at_end() || reader.take('#')) continue;
        const std::string name = reader.name();
        if (name.empty()) return wrong("a metric has no name");
        Line line;
        reader.skip_blanks();
        if (reader.take('{')) {
            const std::string_view problem = read_labels(reader, line.labels);
            if (!problem.empty()) return wrong(problem);
        }
        reader.skip_blanks();
        const auto value = reader.number();
        reader.skip_blanks();
        const bool timed = !reader.at_end();
        if (!value || (timed && !reader.number())) return wrong("a value is not a number");
        reader.skip_blanks();
        if (!reader.at_end()) return wrong("something follows the value");
        line.value = *value;
        metrics.metrics_[name].push_back(std::move(line));
        ++metrics.lines_;
    }
    return metrics;
}

std::optional<double> MetricsText::value(const std::string& name) const {
    const auto found = metrics_.find(name);
    if (found == metrics_.end()) return std::nullopt;
    return found->second.front().value;
}

std::vector<std::pair<std::string, double>> MetricsText::by_label(const std::string& name,
                                                                  std::string_view label) const {
    std::vector<std::pair<std::string, double>> values;
    const auto found = metrics_.find(name);
    if (found == metrics_.end()) return values;
    for (const Line& line : found->second) {
        for (const auto& [key, value] : line.labels) {
            if (key == label) values.emplace_back(value, line.value);
        }
    }
    return values;
}

HistogramSample MetricsText::histogram(const std::string& name) const {
    HistogramSample histogram;
    for (const auto& [bound, count] : by_label(name + "_bucket", "le")) {
        LineReader reader(bound);
        const auto number = reader.number();
        if (!number || std::isnan(*number) || !reader.at_end()) continue;
        histogram.buckets.push_back({*number, std::isnan(count) ? 0 : std::max(count, 0.0)});
    }
    std::stable_sort(histogram.buckets.begin(), histogram.buckets.end(),
                     [](const auto& one, const auto& other) { return one.bound < other.bound; });
    double most = 0;
    for (HistogramSample::Bucket& bucket : histogram.buckets)
        bucket.count = most = std::max(most, bucket.count);
    const double count = value(name + "_count").value_or(0);
    histogram.count = std::isfinite(count) ? std::max(count, 0.0) : 0;
    return histogram;
}

}  // namespace percheron::tools
