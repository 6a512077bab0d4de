#include "text/marked_text.h"

#include <random>

#include <gtest/gtest.h>

namespace percheron {
namespace {

// The mark of every byte, spelled out.
std::string marks_of(const MarkedText& text) {
    std::string marks;
    for (const MarkedText::Run& run : text.runs()) {
        marks.resize(run.end, run.origin == TextOrigin::from_input ? 'i' : 't');
    }
    return marks;
}

TEST(MarkedText, EveryByteKeepsItsMarkThroughJoiningAndCutting) {
    std::mt19937 random(5);
    for (int trial = 0; trial < 500; ++trial) {
        MarkedText text;
        std::string bytes;
        std::string marks;
        for (int piece = 0; piece < 8; ++piece) {
            const bool input = random() % 2 == 0;
            const std::string part(random() % 4, static_cast<char>('a' + piece));
            const auto origin = input ? TextOrigin::from_input : TextOrigin::from_template;
            if (random() % 2 == 0) {
                text.append(part, origin);
            } else {
                text.append(MarkedText(part, origin));
            }
            bytes += part;
            marks += std::string(part.size(), input ? 'i' : 't');
        }
        EXPECT_EQ(text.text(), bytes);
        EXPECT_EQ(marks_of(text), marks);
        EXPECT_EQ(text.has_input(), marks.find('i') != std::string::npos);
        const std::size_t begin = random() % (bytes.size() + 2);
        const std::size_t count = random() % (bytes.size() + 2);
        const MarkedText part = text.slice(begin, count);
        if (begin < bytes.size()) {
            EXPECT_EQ(part.text(), bytes.substr(begin, count));
            EXPECT_EQ(marks_of(part), marks.substr(begin, count));
        } else {
            EXPECT_TRUE(part.empty());
        }
        for (std::size_t i = 1; i < part.runs().size(); ++i) {
            EXPECT_NE(part.runs()[i].origin, part.runs()[i - 1].origin);
            EXPECT_GT(part.runs()[i].end, part.runs()[i - 1].end);
        }
    }
}

}  // namespace
}  // namespace percheron
