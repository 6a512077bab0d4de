// Bounds of numbers: what is written lies within, and what lies within can be written.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "grammar/allowed_text.h"
#include "grammar/json_rules.h"

namespace percheron::grammar::testing {
namespace {

struct Bounds {
    std::string low, high;  // as decimals of at most three places; empty: none
    bool low_out = false, high_out = false;

    Json schema(bool whole) const {
        Json json = {{"type", whole ? "integer" : "number"}};
        if (!low.empty()) json[low_out ? "exclusiveMinimum" : "minimum"] = Json::parse(low);
        if (!high.empty()) json[high_out ? "exclusiveMaximum" : "maximum"] = Json::parse(high);
        return json;
    }
    bool holds(double value) const {
        if (!low.empty()) {
            const double bound = std::stod(low);
            if (value < bound || (low_out && value == bound)) return false;
        }
        if (!high.empty()) {
            const double bound = std::stod(high);
            if (value > bound || (high_out && value == bound)) return false;
        }
        return true;
    }
};

std::string decimal(std::mt19937& random, bool whole) {
    static constexpr int scales[] = {3, 30, 1200, 100000};
    const int scale = scales[random() % 4];
    std::string text = std::to_string(static_cast<int>(random() % static_cast<unsigned>(scale)));
    if (random() % 2 == 0 && text != "0") text = "-" + text;
    if (!whole && random() % 3 != 0) {
        text += '.';
        for (std::size_t i = random() % 3 + 1; i > 0; --i)
            text += static_cast<char>('0' + random() % 10);
    }
    return text;
}

TEST(Numbers, AreWithinTheirBoundsAndReachAllOfThem) {
    std::mt19937 random(5);
    int written = 0;
    int judged_in = 0;
    int judged_out = 0;
    int empty = 0;
    for (int round = 0; round < 150; ++round) {
        const bool whole = round % 2 == 0;
        Bounds bounds;
        if (random() % 4 != 0) bounds.low = decimal(random, whole);
        if (random() % 4 != 0) bounds.high = decimal(random, whole);
        if (!bounds.low.empty() && !bounds.high.empty() &&
            std::stod(bounds.low) > std::stod(bounds.high))
            std::swap(bounds.low, bounds.high);
        bounds.low_out = random() % 2 == 0;
        bounds.high_out = random() % 2 == 0;
        const Json schema = bounds.schema(whole);
        SCOPED_TRACE(schema.dump());
        RuleWriter writer;
        JsonRules rules(writer, schema);
        const auto root = rules.value({&schema, ""});
        // Whatever numbers lie near the bounds: none may be accepted that is out, all that are in.
        std::vector<std::string> candidates = {bounds.low, bounds.high, "0", "1", "-1"};
        for (int i = 0; i < 12; ++i) {
            candidates.push_back(decimal(random, whole));
            for (const std::string& bound : {bounds.low, bounds.high}) {
                if (bound.empty()) continue;
                const double step =
                    whole ? 1.0 : std::pow(10.0, -static_cast<double>(random() % 4));
                char text[64];
                std::snprintf(text, sizeof text, "%.*f", whole ? 0 : 4,
                              std::stod(bound) + step * (static_cast<double>(random() % 5) - 2));
                if (std::string_view(text) != "-0" && std::string_view(text) != "-0.0000")
                    candidates.push_back(text);
            }
        }
        if (!root.ok()) {
            ++empty;
            for (const std::string& text : candidates) {
                if (text.empty()) continue;
                EXPECT_FALSE(bounds.holds(std::stod(text))) << text;
            }
            continue;
        }
        const auto grammar = nano_compiler().compile(writer.text(*root)).value();
        for (const std::string& text : candidates) {
            if (text.empty()) continue;
            const bool expected = bounds.holds(std::stod(text));
            ASSERT_EQ(allows(*grammar, text), expected) << text;
            (expected ? judged_in : judged_out) += 1;
        }
        for (int i = 0; i < 5; ++i) {
            const RandomText text = random_text(*grammar, random);
            ASSERT_EQ(text.fault, "");
            if (!text.ended) continue;
            ++written;
            const Json value = Json::parse(text.text);
            ASSERT_TRUE(bounds.holds(value.get<double>())) << text.text;
            ASSERT_TRUE(!whole || value.is_number_integer()) << text.text;
        }
    }
    EXPECT_GT(written, 500);
    EXPECT_GT(judged_in, 800);
    EXPECT_GT(judged_out, 800);
    EXPECT_GT(empty, 0);
}

}  // namespace
}  // namespace percheron::grammar::testing
