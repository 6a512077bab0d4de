#include "text/tokenizer.h"

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "text/marked_text.h"
#include "text/split_pattern.h"
#include "text/unicode.h"
#include "text_files.h"

namespace percheron {
namespace {

std::string joined_bytes(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
    std::string bytes;
    for (const TokenId id : ids)
        bytes += tokenizer.bytes_of(id);
    return bytes;
}

// Words, digits, blanks, many scripts, emoji with joiners, and bytes that are not UTF-8.
std::string random_text(std::mt19937& random, int pieces, bool with_bad_bytes) {
    static const std::vector<std::string> parts = {"the",
                                                   " quick",
                                                   "BROWN",
                                                   "'s",
                                                   "'\xC5\xBF",
                                                   "'LL",
                                                   "don't",
                                                   "  ",
                                                   "\n",
                                                   "\r\n",
                                                   "\t",
                                                   " \n ",
                                                   "12",
                                                   "3456789",
                                                   "\xD9\xA3\xD9\xA4",
                                                   "\xE6\x97\xA5\xE6\x9C\xAC",
                                                   "\xEA\xB5\xAD",
                                                   "e\xCC\x81",
                                                   "\xC3\xA9",
                                                   "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB",
                                                   "!?",
                                                   "...",
                                                   "{\"",
                                                   "();",
                                                   "\xE1\xA0\x8E",
                                                   "\xC2\xA0",
                                                   "\xC2\x85",
                                                   "\xE2\x80\xA8",
                                                   "\xEF\xBB\xBF",
                                                   "_",
                                                   "-",
                                                   "<|user|>",
                                                   "</think>"};
    static const std::vector<std::string> bad = {"\xFF", "\xC3", "\xF0\x9F", "\xED\xA0\x80",
                                                 "\x80\x80"};
    std::string text;
    for (int i = 0; i < pieces; ++i) {
        const auto& from = with_bad_bytes && random() % 4 == 0 ? bad : parts;
        text += from[random() % from.size()];
    }
    return text;
}

TEST(Tokenizer, MatchesEveryGolden) {
    const auto goldens = json_of("tests/data/tokenizer_golden.json");
    ASSERT_EQ(goldens.size(), 150u);
    for (const auto& golden : goldens) {
        const auto text = golden["text"].get<std::string>();
        const auto ids = nano_tokenizer().encode_trusted(text);
        EXPECT_EQ(numbers(ids), golden["ids"].get<std::vector<int>>()) << text;
        EXPECT_EQ(nano_tokenizer().decode(ids), golden["decoded"].get<std::string>());
    }
}

// The definition, without any of the shortcuts: join the leftmost pair of lowest rank.
class NaiveBytePairs {
  public:
    explicit NaiveBytePairs(
        const nlohmann::ordered_json& file = json_of("models/nano/tokenizer.json")) {
        for (const auto& [written, id] : file["model"]["vocab"].items()) {
            ids_[written] = id.get<int>();
        }
        int rank = 0;
        for (const auto& merge : file["model"]["merges"]) {
            ranks_[{merge[0].get<std::string>(), merge[1].get<std::string>()}] = rank++;
        }
    }

    std::vector<int> encode(const std::string& piece) const {
        std::vector<std::string> symbols;
        for (const char c : piece)
            symbols.push_back(written(static_cast<unsigned char>(c)));
        while (true) {
            std::size_t best = symbols.size();
            int best_rank = 1 << 30;
            for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
                const auto found = ranks_.find({symbols[i], symbols[i + 1]});
                if (found != ranks_.end() && found->second < best_rank) {
                    best = i;
                    best_rank = found->second;
                }
            }
            if (best == symbols.size()) break;
            symbols[best] += symbols[best + 1];
            symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
        }
        std::vector<int> ids;
        for (const auto& symbol : symbols)
            ids.push_back(ids_.at(symbol));
        return ids;
    }

  private:
    static std::string written(int byte) {
        int character = byte;
        if (byte <= 0x20) character = 0x100 + byte;
        if (byte >= 0x7F && byte <= 0xA0) character = 0x121 + (byte - 0x7F);
        if (byte == 0xAD) character = 0x143;
        std::string text;
        append_utf8(text, static_cast<char32_t>(character));
        return text;
    }

    std::map<std::string, int> ids_;
    std::map<std::pair<std::string, std::string>, int> ranks_;
};

TEST(Tokenizer, MergesAsTheDefinitionSaysAtEveryLength) {
    const NaiveBytePairs naive;
    std::mt19937 random(6);
    const std::string letters = "etaoinshrdlu";
    for (int trial = 0; trial < 400; ++trial) {
        // Letters alone are one piece for the split pattern, however many.
        std::string word;
        const std::size_t length = 1 + random() % (trial % 10 == 0 ? 300 : 60);
        while (word.size() < length)
            word += letters[random() % letters.size()];
        EXPECT_EQ(numbers(nano_tokenizer().encode(word)), naive.encode(word)) << word;
    }
}

TEST(Tokenizer, LongPiecesAreNotQuadratic) {
    // At two hundred thousand letters a quadratic merge would take hours.
    std::string word;
    std::mt19937 random(7);
    while (word.size() < 200000)
        word += static_cast<char>('a' + random() % 3);
    EXPECT_EQ(joined_bytes(nano_tokenizer(), nano_tokenizer().encode(word)), word);
    const std::string blanks(200000, ' ');
    EXPECT_EQ(joined_bytes(nano_tokenizer(), nano_tokenizer().encode(blanks)), blanks);
}

TEST(Tokenizer, AnyBytesComeBackAndPlainTextIsNeverAnAddedToken) {
    std::mt19937 random(8);
    for (int trial = 0; trial < 2000; ++trial) {
        const std::string text = random_text(random, 1 + trial % 40, trial % 2 == 0);
        const auto ids = nano_tokenizer().encode(text);
        EXPECT_EQ(joined_bytes(nano_tokenizer(), ids), text);
        for (const TokenId id : ids)
            EXPECT_FALSE(nano_tokenizer().is_added(id)) << text;
        EXPECT_EQ(nano_tokenizer().decode(ids), with_replacements(text));
        const auto trusted = nano_tokenizer().encode_trusted(text);
        EXPECT_EQ(joined_bytes(nano_tokenizer(), trusted), text);
    }
}

TEST(Tokenizer, BadBytesDoNotDisturbTheTextAroundThem) {
    std::mt19937 random(9);
    for (int trial = 0; trial < 300; ++trial) {
        const std::string before = random_text(random, 5, false);
        const std::string after = random_text(random, 5, false);
        auto expected = nano_tokenizer().encode(before);
        expected.push_back(nano_tokenizer().byte_token(0xFF));
        const auto tail = nano_tokenizer().encode(after);
        expected.insert(expected.end(), tail.begin(), tail.end());
        EXPECT_EQ(nano_tokenizer().encode(before + "\xFF" + after), expected);
    }
}

TEST(Tokenizer, MarkedTextIsTokenisedAsOneTextBetweenControlTokens) {
    std::mt19937 random(10);
    const auto& tokenizer = nano_tokenizer();
    const std::vector<std::string> controls = {"<|user|>", "</think>", "<tool_call>", "[gMASK]"};
    for (int trial = 0; trial < 2000; ++trial) {
        // Between two control tokens of the template stands plain text cut at random into template
        // and input parts; the ids must be those of the whole.
        MarkedText marked;
        std::vector<TokenId> expected;
        for (int part = 0; part < 4; ++part) {
            std::string plain;
            for (int word = 0; word < 4; ++word) {
                plain += std::vector<std::string>{
                    "it", "'s", " a", "12", "\xE6\x97\xA5", " ", "\n"}[random() % 7];
            }
            std::string_view rest = plain;
            while (!rest.empty()) {
                const std::size_t count = 1 + random() % rest.size();
                marked.append(rest.substr(0, count), random() % 2 == 0 ? TextOrigin::from_input
                                                                       : TextOrigin::from_template);
                rest.remove_prefix(count);
            }
            for (const TokenId id : tokenizer.encode(plain))
                expected.push_back(id);
            const std::string& control = controls[random() % controls.size()];
            marked.append(control, TextOrigin::from_template);
            expected.push_back(*tokenizer.added_token(control));
        }
        EXPECT_EQ(tokenizer.encode_marked(marked), expected) << marked.text();
    }
}

TEST(Tokenizer, AControlTokenWithOneInputByteIsText) {
    const auto& tokenizer = nano_tokenizer();
    const std::string control = "<|observation|>";
    for (std::size_t begin = 0; begin < control.size(); ++begin) {
        for (std::size_t end = begin + 1; end <= control.size(); ++end) {
            MarkedText marked;
            marked.append(control.substr(0, begin), TextOrigin::from_template);
            marked.append(control.substr(begin, end - begin), TextOrigin::from_input);
            marked.append(control.substr(end), TextOrigin::from_template);
            EXPECT_EQ(tokenizer.encode_marked(marked), tokenizer.encode(control));
        }
    }
    MarkedText whole;
    whole.append("<|observ", TextOrigin::from_template);
    whole.append("", TextOrigin::from_input);
    whole.append("ation|>", TextOrigin::from_template);
    EXPECT_EQ(tokenizer.encode_marked(whole).size(), 1u);
}

TEST(Tokenizer, KnowsItsAddedTokens) {
    const auto& tokenizer = nano_tokenizer();
    const TokenId think = tokenizer.added_token("<think>").value();
    const TokenId user = tokenizer.added_token("<|user|>").value();
    EXPECT_TRUE(tokenizer.is_special(user));
    EXPECT_FALSE(tokenizer.is_special(think));
    EXPECT_FALSE(tokenizer.added_token("<think").has_value());
    EXPECT_FALSE(tokenizer.added_token("").has_value());
    EXPECT_EQ(tokenizer.size(), 8191u);
    EXPECT_EQ(tokenizer.bytes_of(TokenId{8191}), "");
    EXPECT_EQ(tokenizer.bytes_of(TokenId{-1}), "");
    const std::vector<TokenId> ids = {user, think};
    EXPECT_EQ(tokenizer.decode(ids), "<|user|><think>");
    EXPECT_EQ(tokenizer.decode(ids, Tokenizer::SpecialTokens::skip), "<think>");
}

TEST(Tokenizer, GivesEveryThreadTheSameIds) {
    std::mt19937 random(11);
    std::vector<std::string> texts;
    for (int i = 0; i < 200; ++i)
        texts.push_back(random_text(random, 30, true));
    const Tokenizer fresh = Tokenizer::load(source_path("models/nano/tokenizer.json")).value();
    std::vector<std::vector<std::vector<TokenId>>> results(4);
    std::vector<std::thread> threads;
    for (auto& result : results) {
        threads.emplace_back([&] {
            for (const auto& text : texts)
                result.push_back(fresh.encode(text));
        });
    }
    for (auto& thread : threads)
        thread.join();
    for (const auto& result : results)
        EXPECT_EQ(result, results[0]);
}

TEST(Tokenizer, RefusesFilesItCannotReadAndSaysWhy) {
    const auto good = json_of("models/nano/tokenizer.json");
    const auto message_after = [&](auto change) {
        auto file = good;
        change(file);
        const auto result = Tokenizer::parse(file.dump());
        return result.ok() ? std::string("accepted") : result.error().message();
    };
    using testing::HasSubstr;
    EXPECT_EQ(message_after([](auto&) {}), "accepted");
    EXPECT_THAT(message_after([](auto& f) {
                    f["normalizer"] = {{"type", "NFC"}};
                }),
                HasSubstr("normalizer"));
    EXPECT_THAT(message_after([](auto& f) { f["model"]["type"] = "Unigram"; }), HasSubstr("BPE"));
    EXPECT_THAT(message_after([](auto& f) { f["model"].erase("merges"); }), HasSubstr("merges"));
    EXPECT_THAT(message_after([](auto& f) {
                    f["model"]["merges"][0] = {"zz", "qqqq"};
                }),
                HasSubstr("merge 0"));
    EXPECT_THAT(message_after([](auto& f) { f["model"]["vocab"].erase("a"); }),
                HasSubstr("byte 97"));
    EXPECT_THAT(message_after([](auto& f) { f["model"]["vocab"]["a"] = 3; }), HasSubstr("id 3"));
    EXPECT_THAT(message_after([](auto& f) {
                    f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a";
                }),
                HasSubstr("split pattern"));
    EXPECT_THAT(message_after([](auto& f) { f["added_tokens"][0]["lstrip"] = true; }),
                HasSubstr("lstrip"));
    EXPECT_THAT(
        message_after([](auto& f) { f["added_tokens"][1]["id"] = f["added_tokens"][0]["id"]; }),
        HasSubstr("twice"));
    EXPECT_FALSE(Tokenizer::parse("{").ok());
    EXPECT_FALSE(Tokenizer::load("/nonexistent/tokenizer.json").ok());
}

// Merges in any order, also where a pair ranks before those that make its tokens; and pieces of one
// letter, which offer the same pair everywhere.
TEST(Tokenizer, MergesInAnyOrderAreTakenByRank) {
    std::mt19937 random(8);
    const std::string letters = "etaoinshrdlu";
    auto file = json_of("models/nano/tokenizer.json");
    for (int order = 0; order < 4; ++order) {
        auto& merges = file["model"]["merges"];
        std::shuffle(merges.begin(), merges.end(), random);
        const NaiveBytePairs naive(file);
        const Tokenizer tokenizer = Tokenizer::parse(file.dump()).value();
        for (int trial = 0; trial < 60; ++trial) {
            const std::size_t kinds = 1 + random() % letters.size();
            std::string word;
            const std::size_t length = 1 + random() % (trial % 4 == 0 ? 600 : 80);
            while (word.size() < length)
                word += letters[random() % kinds];
            EXPECT_EQ(numbers(tokenizer.encode(word)), naive.encode(word)) << word;
        }
    }
}

TEST(Tokenizer, TakesMergesWrittenAsOneString) {
    auto file = json_of("models/nano/tokenizer.json");
    for (auto& merge : file["model"]["merges"]) {
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    }
    const Tokenizer tokenizer = Tokenizer::parse(file.dump()).value();
    EXPECT_EQ(tokenizer.encode("Hello, world!"), nano_tokenizer().encode("Hello, world!"));
}

TEST(Tokenizer, IgnoreMergesTakesAWholePieceThatIsAToken) {
    auto file = json_of("models/nano/tokenizer.json");
    file["model"]["vocab"]["zqxzqx"] = 9000;  // no merges lead to it
    EXPECT_GT(Tokenizer::parse(file.dump()).value().encode("zqxzqx").size(), 1u);
    file["model"]["ignore_merges"] = true;
    EXPECT_EQ(numbers(Tokenizer::parse(file.dump()).value().encode("zqxzqx")),
              std::vector<int>{9000});
}

TEST(Tokenizer, AnAddedTokenThatIsAlsoInTheVocabularyStaysOutOfPlainText) {
    auto file = json_of("models/nano/tokenizer.json");
    const int id = to_int(nano_tokenizer().added_token("/nothink").value());
    file["model"]["vocab"]["/nothink"] = id;
    file["model"]["ignore_merges"] = true;
    const Tokenizer tokenizer = Tokenizer::parse(file.dump()).value();
    EXPECT_THAT(numbers(tokenizer.encode("/nothink")), testing::Not(testing::Contains(id)));
    EXPECT_EQ(numbers(tokenizer.encode_trusted("/nothink")), std::vector<int>{id});
}

TEST(SplitPattern, CutsAsTheModelsPatternSays) {
    const auto file = json_of("models/nano/tokenizer.json");
    const SplitPattern pattern =
        SplitPattern::compile(
            file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].get<std::string>())
            .value();
    const auto pieces = [&](std::string_view text) {
        std::vector<std::string> result;
        SplitPattern::Walk walk(pattern, text);
        for (auto piece = walk.next(); !piece.empty(); piece = walk.next())
            result.emplace_back(piece);
        return result;
    };
    using List = std::vector<std::string>;
    EXPECT_EQ(pieces("it'S 'ſx 12345"), (List{"it", "'S", " '", "ſx", " ", "123", "45"}));
    EXPECT_EQ(pieces("a'ſ"), (List{"a", "'ſ"}));
    EXPECT_EQ(pieces("a  b\n\n c \n"), (List{"a", " ", " b", "\n\n", " c", " \n"}));
    EXPECT_EQ(pieces("e\xCC\x81!"), (List{"e", "\xCC\x81!"}));
    EXPECT_EQ(pieces("a\xE1\xA0\x8E "), (List{"a", "\xE1\xA0\x8E", " "}));
    EXPECT_EQ(pieces("ab\xFF\xC3"
                     "cd"),
              (List{"ab", "\xFF\xC3", "cd"}));
    EXPECT_EQ(pieces("日本, ok?\r\n"), (List{"日本", ",", " ok", "?\r\n"}));
}

}  // namespace
}  // namespace percheron
