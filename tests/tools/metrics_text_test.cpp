// Prometheus text as a client reads it, from friends and from anybody.
#include "tools/metrics_text.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace percheron::tools {
namespace {

MetricsText parsed(std::string_view text) {
    auto metrics = MetricsText::parse(text);
    EXPECT_TRUE(metrics.ok()) << metrics.error().message();
    return metrics.ok() ? std::move(*metrics) : MetricsText();
}

TEST(MetricsTextTest, ReadsEveryShapeOfALine) {
    const MetricsText metrics = parsed(
        "# HELP a_total What it is.\n# TYPE a_total counter\n"
        "a_total 5\n"
        "b:c{} 1.5e3\n"
        "\n"
        "  spaced  {  x = \"1\" , y=\"2\" ,}   -7   1700000000000\r\n"
        "odd{path=\"C:\\\\a\\\"b\\nc\",empty=\"\",brace=\"}\"} +0.25\n"
        "nan NaN\nup +Inf\ndown -Inf\nhuge 1e999\ntiny 1e-999\n"
        "many{k=\"a\"} 1\nmany{k=\"b\"} 2\nmany{other=\"c\"} 3\n"
        "last 9");
    EXPECT_EQ(metrics.lines(), 13u);
    EXPECT_EQ(metrics.value("a_total"), 5);
    EXPECT_EQ(metrics.value("b:c"), 1500);
    EXPECT_EQ(metrics.value("spaced"), -7);
    EXPECT_EQ(metrics.value("odd"), 0.25);
    EXPECT_EQ(metrics.by_label("odd", "path").at(0).first, "C:\\a\"b\nc");
    EXPECT_EQ(metrics.by_label("odd", "empty").at(0).first, "");
    EXPECT_EQ(metrics.by_label("odd", "brace").at(0).first, "}");
    EXPECT_TRUE(std::isnan(metrics.value("nan").value()));
    EXPECT_TRUE(std::isinf(metrics.value("up").value()));
    EXPECT_LT(metrics.value("down").value(), 0);
    EXPECT_GT(metrics.value("huge").value(), 1e300);
    EXPECT_EQ(metrics.value("tiny"), 0);
    EXPECT_EQ(metrics.value("last"), 9);
    EXPECT_EQ(metrics.value("none"), std::nullopt);
    const std::vector<std::pair<std::string, double>> expected{{"a", 1}, {"b", 2}};
    EXPECT_EQ(metrics.by_label("many", "k"), expected);
}

TEST(MetricsTextTest, AnErrorNamesItsLine) {
    for (const char* line :
         {"5", "{a=\"b\"} 1", "name", "name{a=\"b\"}", "name{a=b} 1", "name{a=\"b} 1",
          "name{a=\"b\" c=\"d\"} 1", "name{=\"b\"} 1", "name{a} 1", "name{a=\"b\\", "name 1 2 3",
          "name one", "name 1x", "name 0x10", "name \x01", "<html>", "name{a=\"b\"} 1 soon"}) {
        const auto metrics = MetricsText::parse("good 1\n" + std::string(line) + "\ngood 2\n");
        ASSERT_FALSE(metrics.ok()) << line;
        EXPECT_EQ(metrics.error().code(), ErrorCode::corrupt);
        EXPECT_NE(metrics.error().message().find("line 2 "), std::string::npos)
            << metrics.error().message();
    }
}

TEST(MetricsTextTest, SizesHaveLimits) {
    std::string text;
    for (std::size_t i = 0; i < MetricsText::most_lines; ++i)
        text += "a 1\n";
    EXPECT_TRUE(MetricsText::parse(text).ok());
    EXPECT_FALSE(MetricsText::parse(text + "a 1\n").ok());
    std::string labels = "a{";
    for (std::size_t i = 0; i < MetricsText::most_labels; ++i)
        labels += "x=\"1\",";
    EXPECT_TRUE(MetricsText::parse(labels + "} 1").ok());
    EXPECT_FALSE(MetricsText::parse(labels + "x=\"1\"} 1").ok());
}

TEST(MetricsTextTest, DamagedTextIsReadOrRefusedAndNothingElse) {
    const std::string valid =
        "# TYPE t histogram\nt_bucket{m=\"n\",le=\"0.5\"} 3\nt_bucket{m=\"n\",le=\"+Inf\"} 7\n"
        "t_sum{m=\"n\"} 4.5\nt_count{m=\"n\"} 7\nplain 1e3 5\n";
    const std::string pieces[] = {"\"", "\\",    "{",   "}",    ",", "=",
                                  "\n", "le=\"", "NaN", "\xff", " "};
    std::mt19937 random(4);
    int read = 0;
    for (int round = 0; round < 20'000; ++round) {
        std::string text = valid;
        for (std::size_t change = 0; change <= random() % 3; ++change) {
            const std::size_t at = random() % text.size();
            if (random() % 2 == 0) {
                text.erase(at, random() % 10);
            } else {
                text.insert(at, pieces[random() % std::size(pieces)]);
            }
        }
        const auto metrics = MetricsText::parse(text);
        if (!metrics.ok()) continue;
        ++read;
        for (const double share : {0.0, 0.5, 1.0}) {
            const auto value = metrics->histogram("t").quantile(share);
            ASSERT_TRUE(!value || !std::isnan(*value)) << text;
        }
    }
    EXPECT_GT(read, 1000);
    EXPECT_LT(read, 19'000);
}

TEST(HistogramTest, QuantilesAreLinearInsideTheirBucket) {
    const HistogramSample histogram =
        parsed(
            "t_bucket{le=\"1\"} 2\nt_bucket{le=\"2\"} 6\nt_bucket{le=\"4\"} 8\n"
            "t_bucket{le=\"+Inf\"} 10\nt_count 10\n")
            .histogram("t");
    EXPECT_DOUBLE_EQ(histogram.quantile(0.1).value(), 0.5);
    EXPECT_DOUBLE_EQ(histogram.quantile(0.2).value(), 1);
    EXPECT_DOUBLE_EQ(histogram.quantile(0.5).value(), 1.75);
    EXPECT_DOUBLE_EQ(histogram.quantile(0.7).value(), 3);
    EXPECT_DOUBLE_EQ(histogram.quantile(0.99).value(), 4);  // the last bucket has no end
    // A first bucket below 0 begins nowhere; the widest bucket there is overflows nothing.
    const auto below =
        parsed("t_bucket{le=\"-2\"} 1\nt_bucket{le=\"2\"} 2\nt_count 2\n").histogram("t");
    EXPECT_DOUBLE_EQ(below.quantile(0.25).value(), -2);
    EXPECT_DOUBLE_EQ(below.quantile(0.75).value(), 0);
    const auto wide =
        parsed("t_bucket{le=\"-1e308\"} 1\nt_bucket{le=\"1e308\"} 2\nt_count 2\n").histogram("t");
    EXPECT_DOUBLE_EQ(wide.quantile(0.5).value(), -1e308);
    EXPECT_DOUBLE_EQ(wide.quantile(0.75).value(), 0);
    EXPECT_EQ(parsed("t_count 0\nt_bucket{le=\"1\"} 0\n").histogram("t").quantile(0.5),
              std::nullopt);
    EXPECT_EQ(parsed("x 1\n").histogram("t").quantile(0.5), std::nullopt);
}

// Against the definition: observations spread evenly over their bucket.
TEST(HistogramTest, QuantilesOfRandomHistogramsRise) {
    std::mt19937 random(5);
    for (int round = 0; round < 500; ++round) {
        HistogramSample histogram;
        double bound = 0;
        for (std::size_t i = 0; i < 1 + random() % 12; ++i) {
            bound += 0.01 * static_cast<double>(1 + random() % 100);
            histogram.count += static_cast<double>(random() % 5);
            histogram.buckets.push_back({bound, histogram.count});
        }
        if (histogram.count == 0) continue;
        double before = 0;
        for (int percent = 1; percent <= 100; ++percent) {
            const double value = histogram.quantile(percent / 100.0).value();
            ASSERT_GE(value, before);
            ASSERT_LE(value, bound);
            // So many lie at or below it.
            double below = 0;
            double previous_bound = 0;
            double previous_count = 0;
            for (const auto& bucket : histogram.buckets) {
                const double inside = bucket.count - previous_count;
                const double part = (value - previous_bound) / (bucket.bound - previous_bound);
                below += inside * std::min(1.0, std::max(0.0, part));
                previous_bound = bucket.bound;
                previous_count = bucket.count;
            }
            ASSERT_NEAR(below, histogram.count * percent / 100.0, 1e-9);
            before = value;
        }
    }
}

}  // namespace
}  // namespace percheron::tools
