// Masks, states and the cache of compiled grammars.
#include <array>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "percheron/engine.h"

#include "grammar/allowed_text.h"
#include "grammar/output_rules.h"

namespace percheron::grammar::testing {
namespace {

std::string json_rules() {
    OutputRequest request;
    request.format = OutputRequest::Format::json_object;
    return write_rules(request, nano_tokenizer()).text;
}

TEST(Compiler, TextIsByteForByteWhateverItsTokens) {
    const auto grammar = nano_compiler().compile(json_rules()).value();
    const std::string text = R"({"né": [1, -2.5e3, {"a": null}], "emoji": "😀 中", "t": true})";
    EXPECT_TRUE(allows(*grammar, text));
    EXPECT_TRUE(allows(*grammar, text, true));
    for (const char* wrong : {"", "{", "[1]", "{\"a\":1,}", "{\"a\":01}", "{\"a\":\"\n\"}", "{}x"})
        EXPECT_FALSE(allows(*grammar, wrong)) << wrong;
}

// Control tokens and tags are no text, though their strings would be.
TEST(Compiler, AddedTokensComeOnlyWhereARuleNamesThem) {
    const Tokenizer& tokenizer = nano_tokenizer();
    const auto anything = nano_compiler().compile("root ::= [^]*\n").value();
    const auto constraint = anything->start();
    std::vector<std::uint32_t> mask((tokenizer.size() + 31) / 32);
    ASSERT_TRUE(constraint->fill(mask).ok());
    const std::vector<TokenId> stops = nano_stops();
    std::size_t texts = 0;
    for (std::uint32_t v = 0; v < tokenizer.size(); ++v) {
        const auto id = TokenId(static_cast<int>(v));
        const bool allowed = (mask[v / 32] >> v % 32 & 1u) != 0;
        if (tokenizer.is_added(id)) {
            const bool is_stop = std::find(stops.begin(), stops.end(), id) != stops.end();
            EXPECT_EQ(allowed, is_stop) << tokenizer.bytes_of(id);
        } else {
            texts += allowed ? 1 : 0;
        }
    }
    EXPECT_GT(texts, 7500u);
    const TokenId tag = tokenizer.added_token("<tool_call>").value();
    const auto tagged = nano_compiler()
                            .compile("root ::= Token(" + std::to_string(to_int(tag)) + ") [^]*\n")
                            .value();
    const auto state = tagged->start();
    ASSERT_TRUE(state->fill(mask).ok());
    for (std::uint32_t v = 0; v < tokenizer.size(); ++v)
        EXPECT_EQ((mask[v / 32] >> v % 32 & 1u) != 0, TokenId(static_cast<int>(v)) == tag);
    EXPECT_TRUE(state->accept(tag));
    EXPECT_FALSE(state->accept(tag));
}

// A state rolled back is the state before; one state knows nothing of another's.
TEST(Compiler, RollingBackIsNotHavingAccepted) {
    std::mt19937 random(8);
    const auto grammar = nano_compiler().compile(json_rules()).value();
    const std::size_t words = (nano_tokenizer().size() + 31) / 32;
    const auto walked = grammar->start();
    std::vector<TokenId> text;
    std::size_t rolled_back = 0;
    for (int step = 0; step < 300; ++step) {
        std::vector<std::uint32_t> mask(words);
        std::vector<std::uint32_t> fresh(words);
        const auto other = grammar->start();
        for (const TokenId token : text)
            ASSERT_TRUE(other->accept(token));
        ASSERT_TRUE(walked->fill(mask).ok());
        ASSERT_TRUE(other->fill(fresh).ok());
        ASSERT_EQ(mask, fresh);
        if (random() % 4 == 0 && !text.empty()) {
            const std::size_t back = 1 + random() % text.size();
            walked->roll_back(back);
            text.resize(text.size() - back);
            rolled_back += back;
            continue;
        }
        std::vector<TokenId> allowed;
        for (std::uint32_t v = 0; v < nano_tokenizer().size(); ++v) {
            if ((mask[v / 32] >> v % 32 & 1u) != 0) allowed.push_back(TokenId(static_cast<int>(v)));
        }
        const TokenId token = allowed[random() % allowed.size()];
        ASSERT_TRUE(walked->accept(token));
        const std::vector<TokenId> stops = nano_stops();
        if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
            walked->roll_back(1);
        } else {
            text.push_back(token);
        }
    }
    EXPECT_GT(rolled_back, 100u);
}

TEST(Compiler, KeepsWhatFitsItsBudgetLatestUsedFirst) {
    GrammarCompilerOptions options = nano_options();
    const auto rules = [](int i) {
        return "root ::= \"" + std::string(1000, 'a') + std::to_string(i) + "\"\n";
    };
    GrammarCompiler probe(nano_tokenizer(), options);
    ASSERT_TRUE(probe.compile(rules(0)).ok());
    options.cache_bytes = probe.cache_status().bytes * 7 / 2;  // three of them
    GrammarCompiler compiler(nano_tokenizer(), options);
    for (int i = 0; i < 3; ++i)
        ASSERT_TRUE(compiler.compile(rules(i)).ok());
    const auto first = compiler.compile(rules(0)).value();
    EXPECT_EQ(compiler.cache_status().hits, 1u);
    ASSERT_TRUE(compiler.compile(rules(3)).ok());  // 1 goes
    EXPECT_EQ(compiler.compile(rules(0)).value(), first);
    EXPECT_EQ(compiler.cache_status().entries, 3u);
    EXPECT_LE(compiler.cache_status().bytes, options.cache_bytes);
    const std::uint64_t misses = compiler.cache_status().misses;
    ASSERT_TRUE(compiler.compile(rules(1)).ok());
    EXPECT_GT(compiler.cache_status().misses, misses);
}

TEST(Compiler, ManyThreadsMayCompileAndUse) {
    GrammarCompiler compiler(nano_tokenizer(), nano_options());
    std::vector<std::thread> threads;
    std::array<int, 4> whole{};
    for (std::size_t t = 0; t < whole.size(); ++t) {
        threads.emplace_back([&, t] {
            std::mt19937 random(static_cast<unsigned>(t));
            for (int i = 0; i < 5; ++i) {
                const auto grammar =
                    compiler.compile("root ::= \"x\"{" + std::to_string(i + 1) + ",9}\n").value();
                whole[t] += random_text(*grammar, random).ended ? 1 : 0;
            }
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    for (const int count : whole)
        EXPECT_EQ(count, 5);
}

TEST(Compiler, WorkBeyondItsTimeIsAFaultByName) {
    GrammarCompilerOptions options = nano_options();
    options.token_seconds = 0;
    GrammarCompiler compiler(nano_tokenizer(), options);
    const auto constraint = compiler.compile("root ::= ([a-z]*)* \"x\"\n").value()->start();
    std::vector<std::uint32_t> mask((nano_tokenizer().size() + 31) / 32);
    const Status filled = constraint->fill(mask);
    ASSERT_FALSE(filled.ok());
    EXPECT_EQ(filled.error().reason(), reasons::constraint_too_costly);
}

}  // namespace
}  // namespace percheron::grammar::testing
