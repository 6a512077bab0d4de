// The loop guard over texts as the embedded model's tokenizer cuts them: 200 long honest ones with
// much repetition in them, of shapes its rules were not chosen by, and 200 that fall into a loop.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "engine/loop_guard.h"
#include "text/tokenizer.h"

namespace percheron {
namespace {

using engine::LoopGuard;
using Text = std::vector<TokenId>;

constexpr std::size_t long_text = 4500;  // tokens

const Tokenizer& tokenizer() {
    static const Tokenizer nano =
        Tokenizer::load(std::filesystem::path(PERCHERON_SOURCE_DIR) / "models/nano/tokenizer.json")
            .value();
    return nano;
}

class Draw {
  public:
    explicit Draw(std::uint32_t seed) : engine_(seed) {}
    std::uint32_t below(std::uint32_t bound) { return engine_() % bound; }
    std::uint32_t between(std::uint32_t low, std::uint32_t high) {
        return low + below(high - low + 1);
    }
    template <class Value, std::size_t size>
    const Value& of(const std::array<Value, size>& values) {
        return values[below(size)];
    }
    std::string word() {
        static constexpr std::array<std::string_view, 24> words{
            "alpha",  "stock", "pending", "north", "valve", "total", "queue", "blue",
            "client", "index", "harbour", "ratio", "seven", "open",  "node",  "report",
            "closed", "cache", "signal",  "left",  "right", "frame", "city",  "light"};
        return std::string(of(words));
    }

  private:
    std::mt19937 engine_;
};

std::string padded(std::string text, std::size_t width, char fill = ' ') {
    if (text.size() < width) text.insert(0, width - text.size(), fill);
    return text;
}

std::string base64(const std::string& bytes) {
    static constexpr std::string_view letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t i = 0; i + 3 <= bytes.size(); i += 3) {
        const auto part = [&](std::size_t at) {
            return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i + at]));
        };
        const std::uint32_t bits = part(0) << 16 | part(1) << 8 | part(2);
        for (const int shift : {18, 12, 6, 0})
            text += letters[bits >> shift & 63];
        if (text.size() % 77 == 76) text += '\n';
    }
    return text;
}

// A family of honest texts writes one more line, row or block at a time.  `n` counts them.
using Family = std::string (*)(Draw& draw, std::uint32_t n, std::uint32_t style);

std::string table_row(Draw& draw, std::uint32_t n, std::uint32_t style) {
    std::string row;
    switch (style % 5) {
        case 0:  // a grid with borders, mostly the same mark
            for (std::uint32_t i = 0; i < 6; ++i)
                row += "| " + std::string(draw.below(8) == 0 ? "[ ]" : "[x]") + " ";
            return "+-----+-----+-----+-----+-----+-----+\n" + row + "| " + std::to_string(n) +
                   "\n";
        case 1:  // HTML
            row = "  <tr class=\"row\">\n    <td>" + std::to_string(n) + "</td>\n";
            for (std::uint32_t i = 0; i < 3; ++i)
                row += "    <td>" + std::string(draw.below(3) == 0 ? "&nbsp;" : "0") + "</td>\n";
            return row + "  </tr>\n";
        case 2:  // LaTeX
            return std::to_string(n) + " & 0.00 & 0.00 & " + std::to_string(draw.below(10)) +
                   ".00 & -- & -- \\\\ \\hline\n";
        case 3:  // multiplication
            for (std::uint32_t i = 1; i <= 10; ++i)
                row += padded(std::to_string(i * (n + 1)), 7);
            return row + "\n";
        default:  // hours of a week
            for (const char* day : {"Mon", "Tue", "Wed", "Thu", "Fri"})
                row += std::string(day) + " 09:00-17:00 " +
                       (draw.below(6) == 0 ? draw.word() : "office") + "; ";
            return "Week " + std::to_string(n) + ": " + row + "\n";
    }
}

std::string csv_row(Draw& draw, std::uint32_t n, std::uint32_t style) {
    std::string row;
    switch (style % 4) {
        case 0:  // a sparse matrix
            for (std::uint32_t i = 0; i < 20; ++i)
                row += draw.below(15) == 0 ? "1;" : "0;";
            return row + "\n";
        case 1:  // a log of one machine
            return "2026-11-" + padded(std::to_string(1 + n / 288 % 30), 2, '0') + "T" +
                   padded(std::to_string(n / 12 % 24), 2, '0') + ":" +
                   padded(std::to_string(n * 5 % 60), 2, '0') + ":00Z,ok,ok,ok,0,0,0,0\n";
        case 2:  // binary counters
            for (int bit = 11; bit >= 0; --bit)
                row += (n >> bit & 1) != 0 ? "1," : "0,";
            return row + (n % 2 != 0 ? "odd" : "even") + "\n";
        default:  // quoted, sorted by name
            return "\"" + draw.word() + "\",\"\",\"\",\"\",\"EUR\",\"0.00\",\"" +
                   std::to_string(draw.below(50)) + "\"\n";
    }
}

std::string art_line(Draw& draw, std::uint32_t n, std::uint32_t style) {
    std::string line;
    const auto width = static_cast<std::uint32_t>(48 + style % 17);
    switch (style % 5) {
        case 0: {  // a wave that is never quite in step with its lines
            const double at = 24 + 22 * std::sin(0.37 * n + style);
            return std::string(static_cast<std::size_t>(at), ' ') + "*\n";
        }
        case 1:  // Pascal's triangle, odd numbers marked
            for (std::uint32_t k = 0; k < width; ++k)
                line += k <= n % 256 && (k & ((n % 256) - k)) == 0 ? '#' : '.';
            return line + "\n";
        case 2:  // bars
            return padded(std::to_string(n), 4) + " |" + std::string(draw.between(1, 60), '=') +
                   ">\n";
        case 3:  // a maze
            for (std::uint32_t k = 0; k < width / 2; ++k)
                line += draw.below(2) == 0 ? "/" : "\\";
            return line + "\n";
        default:  // stars in the sky
            for (std::uint32_t k = 0; k < width; ++k)
                line += draw.below(40) == 0 ? (draw.below(2) == 0 ? '*' : '+') : ' ';
            return line + "|\n";
    }
}

std::string base64_piece(Draw& draw, std::uint32_t n, std::uint32_t style) {
    std::string bytes;
    for (std::uint32_t i = 0; i < 57; ++i) {
        switch (style % 4) {
            case 0:  // 32-bit counters
                bytes += static_cast<char>((n * 57 + i) % 4 == 0 ? (n * 57 + i) / 4 : 0);
                break;
            case 1:  // a picture with few colours
                bytes += draw.below(12) == 0 ? '\x7f' : '\0';
                break;
            case 2:  // English
                bytes += "the quick report is in the queue and the total is open "[(n * 57 + i +
                                                                                    draw.below(2)) %
                                                                                   55];
                break;
            default:  // compressed: nothing repeats
                bytes += static_cast<char>(draw.below(256));
        }
    }
    return base64(bytes);
}

std::string code_lines(Draw& draw, std::uint32_t n, std::uint32_t style) {
    const std::string number = std::to_string(n);
    switch (style % 5) {
        case 0:  // assembly
            return "  " + padded(std::to_string(4096 + 4 * n), 8, '0') +
                   ":\tmov    eax, DWORD PTR [rbp-" + std::to_string(4 * draw.below(6)) +
                   "]\n\t\tnop\n";
        case 1:  // objects of a list
            return "  {\n    \"id\": " + number +
                   ",\n    \"enabled\": false,\n    \"tags\": [],\n    \"parent\": null\n  },\n";
        case 2:  // SQL
            return "INSERT INTO items (id, name, price, note) VALUES (" + number +
                   ", 'item', 0.00, NULL);\n";
        case 3:  // a table of numbers in hex
            return "    0x0000000" + std::to_string(draw.below(10)) + "u, 0x00000000u, 0x0000" +
                   std::to_string(1000 + draw.below(9000)) + "u, 0xffffffffu,\n";
        default:  // tests of one function
            return "    assert_equal(add(" + std::to_string(draw.below(30)) + ", " +
                   std::to_string(draw.below(30)) + "), " + std::to_string(draw.below(60)) + ");\n";
    }
}

constexpr std::array<Family, 5> families{table_row, csv_row, art_line, base64_piece, code_lines};

Text honest_text(Draw& draw, Family family, std::uint32_t style, std::size_t tokens) {
    std::string text;
    Text ids;
    for (std::uint32_t n = 0; ids.size() < tokens;) {
        for (const std::uint32_t until = n + 200; n < until; ++n)
            text += family(draw, n, style);
        ids = tokenizer().encode(text);
    }
    return ids;
}

// Told after so many tokens, given in steps of `step`.
std::optional<std::size_t> told_after(const Text& text, std::size_t step) {
    LoopGuard guard;
    for (std::size_t i = 0; i < text.size(); i += step) {
        for (std::size_t j = i; j < std::min(i + step, text.size()); ++j) {
            if (guard.observe(text[j])) return j + 1;
        }
    }
    return std::nullopt;
}

TEST(LoopGuardTexts, TwoHundredHonestOnesRunToTheirEnd) {
    for (std::uint32_t seed = 0; seed < 200; ++seed) {
        const std::size_t family = seed % families.size();
        Draw draw(70'000 + seed);
        const Text text = honest_text(draw, families[family], seed / 5, long_text);
        ASSERT_GE(text.size(), long_text);
        EXPECT_EQ(told_after(text, 1), std::nullopt)
            << "family " << family << " style " << seed / 5;
        if (seed % 10 < 5) {
            EXPECT_EQ(told_after(text, 8), std::nullopt);
        }
    }
}

// What a reply that has lost its way says again and again.
std::string phrase(Draw& draw) {
    std::string text;
    switch (draw.below(8)) {
        case 0:
            return "Wait, let me check the " + draw.word() + " again. ";
        case 1:
            return "\n- " + draw.word() + ": " + draw.word() + "\n";
        case 2:
            return std::string(1, "\n .-!A0"[draw.below(7)]);
        case 3:
            return "\xe6\x88\x91\xe4\xbb\xac\xe5\x86\x8d\xe7\x9c\x8b\xe4\xb8\x80\xe6\xac\xa1\xe3"
                   "\x80\x82";
        case 4:
            return "    if (" + draw.word() + " == " + draw.word() + ") {\n        return " +
                   draw.word() + ";\n    }\n";
        case 5:
            return "\xf0\x9f\x99\x82 ";
        case 6:  // a whole paragraph
            for (std::uint32_t i = draw.between(30, 300); i > 0; --i)
                text += draw.word() + " ";
            return text + "\n\n";
        default:  // a page that counts and begins again
            for (std::uint32_t i = 0, most = draw.between(5, 60); i < most; ++i)
                text += std::to_string(i) + ". " + draw.word() + "\n";
            return text;
    }
}

// The shortest cycle of the last `count` tokens.
std::size_t cycle_of(const Text& text, std::size_t count) {
    for (std::size_t cycle = 1;; ++cycle) {
        if (std::equal(text.end() - static_cast<std::ptrdiff_t>(count - cycle), text.end(),
                       text.end() - static_cast<std::ptrdiff_t>(count))) {
            return cycle;
        }
    }
}

TEST(LoopGuardTexts, TwoHundredLoopsAreCaughtInTime) {
    std::size_t shortest = LoopGuard::longest_cycle, longest = 0;
    for (std::uint32_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE(seed);
        Draw draw(90'000 + seed);
        const std::string again = phrase(draw);
        std::string start;
        for (std::uint32_t n = 0, lines = draw.below(120); n < lines; ++n)
            start += families[seed % families.size()](draw, n, seed / 5);
        Text ids = tokenizer().encode(start);
        const std::size_t honest = ids.size();
        const Text once = tokenizer().encode(again);
        while (ids.size() < honest + std::max<std::size_t>(4096, 16 * once.size()) + 64)
            ids.insert(ids.end(), once.begin(), once.end());
        const std::size_t cycle = cycle_of(ids, 3000);
        ASSERT_LE(cycle, LoopGuard::longest_cycle);
        shortest = std::min(shortest, cycle);
        longest = std::max(longest, cycle);
        const auto told = told_after(ids, 1);
        ASSERT_TRUE(told.has_value()) << "a cycle of " << cycle;
        EXPECT_LE(*told, honest + std::max<std::size_t>(4096, 16 * cycle));
        EXPECT_EQ(told_after(ids, 8), told);
    }
    EXPECT_EQ(shortest, 1u);
    EXPECT_GT(longest, 300u);
}

}  // namespace
}  // namespace percheron
