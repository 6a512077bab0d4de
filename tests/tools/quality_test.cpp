#include "tools/quality.h"

#include <cmath>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/small_model.h"
#include "tools/nano_model.h"
#include "tools/quality_card.h"
#include "tools/quantize.h"
#include "tools/score.h"

namespace percheron::tools {
namespace {

using namespace checkpoint::test;
using testing::AllOf;
using testing::HasSubstr;

std::string utf8(char32_t letter) {
    std::string bytes;
    if (letter < 0x80) {
        bytes += static_cast<char>(letter);
    } else if (letter < 0x800) {
        bytes += static_cast<char>(0xc0 | letter >> 6);
        bytes += static_cast<char>(0x80 | (letter & 0x3f));
    } else if (letter < 0x10000) {
        bytes += static_cast<char>(0xe0 | letter >> 12);
        bytes += static_cast<char>(0x80 | (letter >> 6 & 0x3f));
        bytes += static_cast<char>(0x80 | (letter & 0x3f));
    } else {
        bytes += static_cast<char>(0xf0 | letter >> 18);
        bytes += static_cast<char>(0x80 | (letter >> 12 & 0x3f));
        bytes += static_cast<char>(0x80 | (letter >> 6 & 0x3f));
        bytes += static_cast<char>(0x80 | (letter & 0x3f));
    }
    return bytes;
}

TEST(Utf8, EveryCutOfEveryCharacterMayBecomeOne) {
    for (char32_t letter = 0; letter <= 0x10ffff;
         letter = letter < 0x900 ? letter + 1 : letter + 7) {
        if (letter >= 0xd800 && letter <= 0xdfff) continue;
        const std::string bytes = utf8(letter);
        for (std::size_t length = 0; length <= bytes.size(); ++length)
            ASSERT_TRUE(may_become_utf8("a" + bytes.substr(0, length))) << std::uint32_t{letter};
        if (bytes.size() > 1) {
            ASSERT_FALSE(may_become_utf8(bytes.substr(1)));
            ASSERT_FALSE(may_become_utf8(bytes.substr(0, bytes.size() - 1) + "a"));
        }
    }
    for (const char* bytes :
         {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80", "\xe0\x9f\xbf", "\xed\xa0", "\xf0\x80",
          "\xf0\x8f", "\xf4\x90", "\xf5", "\xff", "\xfe", "a\xe2\x82z"}) {
        EXPECT_FALSE(may_become_utf8(bytes)) << ::testing::PrintToString(std::string(bytes));
    }
}

std::vector<CalibrationText> random_texts(std::uint64_t seed, std::size_t vocabulary) {
    std::mt19937_64 random(seed);
    std::vector<CalibrationText> texts(7);
    for (std::size_t i = 0; i < texts.size(); ++i) {
        texts[i].kind = i % 3 == 0 ? "letters" : "numbers";
        texts[i].ids.resize(3 + random() % 150);
        for (TokenId& id : texts[i].ids)
            id = TokenId(static_cast<std::int32_t>(random() % vocabulary));
    }
    return texts;
}

class QualityOfNano : public NanoModel {};

// One text cannot show how much texts differ: there is no band, not one of nothing.
TEST_F(QualityOfNano, ASingleTextHasNoBandAnywhere) {
    auto texts = random_texts(4, 8000);
    texts.resize(3);
    texts[0].kind = texts[1].kind = "two";
    texts[2].kind = "one | \x1b[2J";
    const auto quality = compare_quality(texts, tokenizer(), {folder(), folder(), 1, "cpu", {}});
    ASSERT_TRUE(quality.ok()) << quality.error().message();
    for (const KindQuality& kind : *quality) {
        for (const Measured* figure :
             {&kind.kl, &kind.agreement, &kind.source_loss, &kind.loss, &kind.added_loss}) {
            EXPECT_EQ(figure->band.has_value(), kind.texts > 1) << kind.kind;
        }
    }
    QualityCard card;
    card.quality = *quality;
    const auto written = nlohmann::json::parse(card_json(card));
    EXPECT_TRUE(written["quality"][1]["kl"]["band"].is_null());
    EXPECT_TRUE(written["quality"][2]["kl"]["band"].is_number());
    EXPECT_THAT(card_markdown(card),
                AllOf(HasSubstr("| two | 2 |"), HasSubstr("| one \\| \\x1b[2J | 1 |"),
                      HasSubstr("| 0.00000, no band | 100.00 %, no band |"),
                      HasSubstr("| 0.00000 ± 0.00000 | 100.00 ± 0.00 % |")));
}

// Neither do copies of one text; beside others they count as one text of as many positions.
TEST_F(QualityOfNano, TheSameTextAgainIsNoOther) {
    auto texts = random_texts(14, 8000);
    texts.resize(3);
    for (CalibrationText& text : texts)
        text.kind = "some";
    const auto bands = [&](const std::vector<CalibrationText>& of) {
        const QualityOptions options{folder(), folder(), 1, "cpu", {}};
        return compare_quality(of, tokenizer(), options).value().front().source_loss;
    };
    EXPECT_FALSE(bands({texts[0], texts[0], texts[0]}).band.has_value());
    const Measured apart = bands(texts);
    const Measured twice = bands({texts[0], texts[1], texts[2], texts[0], texts[1], texts[2]});
    EXPECT_NEAR(twice.mean, apart.mean, 1e-12);
    EXPECT_NEAR(*twice.band, *apart.band, 1e-12);
}

// What was measured on texts and on tasks is replaced where it stands, in either order.
TEST_F(QualityOfNano, SectionsOfACardAreReplacedInPlace) {
    const auto quality =
        compare_quality(random_texts(5, 8000), tokenizer(), {folder(), folder(), 1, "cpu", {}});
    ASSERT_TRUE(quality.ok());
    const TemporaryFolder root;
    TaskCard tasks{"percheron eval", "source", "items", {}};
    tasks.tasks.push_back({"sums", 1, 1.0, 0.0, -1.0, {}});
    QualityCard texts;
    texts.source = "source";
    texts.texts = "held-out.jsonl";
    texts.quality = *quality;
    std::string first;
    for (const int order : {0, 1, 0, 1}) {
        texts.command = "percheron quality, run " + std::to_string(order);
        tasks.command = "percheron eval, run " + std::to_string(order);
        for (const int which : {order, 1 - order}) {
            const Status added = which == 0 ? add_quality_to_card(root.path(), texts)
                                            : add_tasks_to_card(root.path(), tasks);
            ASSERT_TRUE(added.ok()) << added.error().message();
        }
        const std::string page = *read_text_file(root.path() / "QUALITY.md", 1 << 20);
        EXPECT_EQ(page, "# Quality\n\n" + page.substr(page.find("## Texts\n")));
        EXPECT_LT(page.find("## Texts\n"), page.find("## Tasks\n"));
        EXPECT_EQ(page.find("## Texts\n"), page.rfind("## Texts\n"));
        EXPECT_EQ(page.find("## Tasks\n"), page.rfind("## Tasks\n"));
        EXPECT_THAT(page, AllOf(HasSubstr(texts.command), HasSubstr(tasks.command),
                                HasSubstr("\n\n## Tasks\n"), HasSubstr("-100.00, no band |")));
        if (order == 0 && !first.empty()) {
            EXPECT_EQ(page, first);
        }
        if (order == 0) first = page;
        const auto json =
            nlohmann::json::parse(*read_text_file(root.path() / "quality.json", 1 << 20));
        EXPECT_EQ(json["texts_command"], texts.command);
        EXPECT_EQ(json["quality"].size(), 3u);
        EXPECT_TRUE(json["tasks"]["tasks"][0]["band"].is_null());
    }
}

TEST(TextsInBoth, CountsThoseOfTheSameIdsWhateverWasCut) {
    std::mt19937_64 random(6);
    const auto some = [&](std::size_t length) {
        CalibrationText text;
        for (; length > 0; --length)
            text.ids.push_back(TokenId(static_cast<std::int32_t>(random() % 3)));
        return text;
    };
    for (int trial = 0; trial < 200; ++trial) {
        std::vector<CalibrationText> calibration, held_out;
        for (std::size_t i = 0; i < 12; ++i) {
            // Short ones are often equal by chance, and often the beginning of another.
            calibration.push_back(some(2 + random() % (random() % 2 == 0 ? 4 : 200)));
            held_out.push_back(some(2 + random() % (random() % 2 == 0 ? 4 : 200)));
            if (random() % 3 != 0) continue;
            held_out.back() = calibration[random() % calibration.size()];
            auto& ids = (random() % 2 == 0 ? held_out : calibration).back().ids;
            ids.resize(2 + random() % (ids.size() - 1));
        }
        std::size_t expected = 0;
        for (const CalibrationText& one : held_out) {
            expected += std::any_of(
                calibration.begin(), calibration.end(), [&](const CalibrationText& other) {
                    const std::size_t least = std::min(one.ids.size(), other.ids.size());
                    const bool alike = std::equal(one.ids.begin(), one.ids.begin() + long(least),
                                                  other.ids.begin());
                    return alike && (one.ids.size() == other.ids.size() || least >= 64);
                });
        }
        ASSERT_EQ(texts_in_both(calibration, held_out), expected);
    }
}

// A card remembers which texts were used: they are found again, whole or as limits cut them, and
// others are not.
TEST(TextMarks, OfACardFindTheTextsThatWereUsed) {
    std::mt19937_64 random(8);
    QuantizeReport report;
    std::vector<CalibrationText> used(40), others(40);
    for (auto* const texts : {&used, &others}) {
        for (CalibrationText& text : *texts) {
            for (std::size_t length = 2 + random() % 3000; length > 0; --length)
                text.ids.push_back(TokenId(static_cast<std::int32_t>(random() % 300)));
        }
    }
    // Others may begin as one that was used.
    std::copy_n(used[3].ids.begin(), std::min(used[3].ids.size(), others[5].ids.size()) / 2,
                others[5].ids.begin());
    report.calibration_marks = marks_of(used);
    report.calibration_texts = used.size();
    const TemporaryFolder root;
    EXPECT_TRUE(calibration_marks(root.path()).empty());
    QualityCard card;
    card.report = &report;
    ASSERT_TRUE(write_card(root.path(), card).ok());
    const TextMarks marks = calibration_marks(root.path());
    EXPECT_EQ(texts_among(marks, used), used.size());
    EXPECT_EQ(texts_among(marks, others), 0u);
    for (const std::size_t cut : {64u, 96u, 480u, 512u, 1024u, 2048u}) {
        std::vector<CalibrationText> shorter = used;
        std::size_t expected = 0;
        for (CalibrationText& text : shorter) {
            text.ids.resize(std::min<std::size_t>(text.ids.size(), cut));
            ++expected;
        }
        EXPECT_EQ(texts_among(marks, shorter), expected) << cut;
        // And whole ones among those that were cut when they were used.
        std::size_t long_enough = 0;
        for (const CalibrationText& text : shorter)
            long_enough += text.ids.size() >= 64 ? 1 : 0;
        EXPECT_GE(texts_among(marks_of(shorter), used), long_enough) << cut;
        EXPECT_LE(texts_among(marks_of(shorter), others), 1u) << cut;  // the one that begins alike
    }
    for (const char* broken :
         {"", "[]", "{\"calibration\": 7}", "{\"calibration\": {\"marks\": [1]}}",
          "{\"calibration\": {\"marks\": {\"texts\": [7, null]}}}"}) {
        ASSERT_TRUE(write_text_file(root.path() / "quality.json", broken).ok());
        EXPECT_EQ(texts_among(calibration_marks(root.path()), used), 0u) << broken;
    }
}

TEST_F(QualityOfNano, AModelEqualsItself) {
    const auto texts = random_texts(1, 8000);
    const auto quality = compare_quality(texts, tokenizer(), {folder(), folder(), 1, "cpu", {}});
    ASSERT_TRUE(quality.ok()) << quality.error().message();
    ASSERT_EQ(quality->size(), 3u);
    EXPECT_EQ((*quality)[0].kind, "letters");
    EXPECT_EQ((*quality)[0].texts, 3u);
    EXPECT_EQ((*quality)[1].kind, "numbers");
    EXPECT_EQ((*quality)[2].kind, "all");
    EXPECT_EQ((*quality)[2].positions, (*quality)[0].positions + (*quality)[1].positions);
    for (const KindQuality& kind : *quality) {
        EXPECT_EQ(kind.kl.mean, 0.0);
        EXPECT_EQ(*kind.kl.band, 0.0);
        EXPECT_EQ(kind.agreement.mean, 1.0);
        EXPECT_EQ(kind.added_loss.mean, 0.0);
        EXPECT_EQ(kind.broken, kind.broken_source);
        EXPECT_EQ(kind.control_found, kind.control_source);
    }
}

// What rounding inputs to FP4 does shows against the same weights without; it is refused where
// nothing says how.
TEST_F(QualityOfNano, InputsInFp4AreAnotherModel) {
    Json config = small_config(128);
    config["text_config"]["vocab_size"] = 256;
    const TemporaryFolder root;
    for (const char* const name : {"made", "bf16"}) {
        fs::create_directory(root.path() / name);
        SmallModel small = small_model(2, config, [&](const checkpoint::ExpectedTensor& tensor) {
            const bool expert = tensor.name.find("mlp.experts.") != std::string::npos;
            return name == std::string("made") && expert ? ops::WeightFormat::nvfp4
                                                         : ops::WeightFormat::bf16;
        });
        for (auto& [stored, tensor] : small.tensors) {
            if (!stored.ends_with(".input_scale")) continue;
            tensor = tensor_of(DType::f32, {}, std::vector<float>{0.002f});
        }
        small.write(root.path() / name);
    }
    const auto texts = random_texts(3, 256);
    QualityOptions options{root.path() / "made", root.path() / "made", 1, "cpu", {}};
    const auto same = compare_quality(texts, tokenizer(), options);
    ASSERT_TRUE(same.ok()) << same.error().message();
    EXPECT_EQ(same->back().kl.mean, 0.0);
    options.fp4_activations = true;
    const auto rounded = compare_quality(texts, tokenizer(), options);
    ASSERT_TRUE(rounded.ok()) << rounded.error().message();
    EXPECT_GT(rounded->back().kl.mean, 1e-8);

    options.other = root.path() / "bf16";
    EXPECT_THAT(compare_quality(texts, tokenizer(), options).error().message(),
                AllOf(HasSubstr("--fp4-activations"), HasSubstr("leave it out")));
}

TEST_F(QualityOfNano, AgreesWithTheScoresOfBothModels) {
    Json config = small_config(128);
    config["text_config"]["vocab_size"] = 256;
    const TemporaryFolder root;
    fs::create_directory(root.path() / "source");
    small_model(2, config).write(root.path() / "source");
    ASSERT_TRUE(quantize(root.path() / "source", root.path() / "made", {}).ok());
    const auto texts = random_texts(3, 256);
    const auto quality = compare_quality(
        texts, tokenizer(), {root.path() / "source", root.path() / "made", 1, "cpu", {}});
    ASSERT_TRUE(quality.ok()) << quality.error().message();

    std::vector<std::vector<TokenId>> sequences;
    for (const CalibrationText& text : texts)
        sequences.push_back(text.ids);
    ScoreOptions options;
    options.threads = 1;
    options.device = "cpu";
    options.top = 256;
    options.folder = root.path() / "source";
    const auto source = score(sequences, options);
    options.folder = root.path() / "made";
    const auto made = score(sequences, options);
    ASSERT_TRUE(source.ok() && made.ok());
    double kl = 0, agreement = 0, loss = 0, source_loss = 0;
    std::size_t positions = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        for (std::size_t t = 0; t + 1 < sequences[i].size(); ++t) {
            const auto& p = (*source)[i].top[t];
            std::map<TokenId, double> q((*made)[i].top[t].begin(), (*made)[i].top[t].end());
            for (const auto& [id, logprob] : p)
                kl += std::exp(logprob) * (logprob - q.at(id));
            agreement += p[0].first == (*made)[i].top[t][0].first ? 1 : 0;
            source_loss -= (*source)[i].logprobs[t];
            loss -= (*made)[i].logprobs[t];
            ++positions;
        }
    }
    const KindQuality& all = quality->back();
    const auto count = static_cast<double>(positions);
    EXPECT_EQ(all.positions, positions);
    EXPECT_NEAR(all.kl.mean, kl / count, 1e-9 + 1e-6 * kl / count);
    EXPECT_GT(all.kl.mean, 1e-6);
    EXPECT_GT(*all.kl.band, 0.0);
    EXPECT_NEAR(all.agreement.mean, agreement / count, 1e-9);
    EXPECT_NEAR(all.source_loss.mean, source_loss / count, 1e-6);
    EXPECT_NEAR(all.loss.mean, loss / count, 1e-6);
    EXPECT_NEAR(all.added_loss.mean, (loss - source_loss) / count, 1e-6);

    // The card says the same.
    QualityCard card;
    card.command = "percheron quality made --against source";
    card.source = "source";
    card.texts = "held-out.jsonl";
    card.quality = *quality;
    ASSERT_TRUE(write_card(root.path() / "made", card).ok());
    const auto written =
        nlohmann::json::parse(*read_text_file(root.path() / "made/quality.json", 1 << 20));
    EXPECT_EQ(written["quality"].size(), 3u);
    EXPECT_DOUBLE_EQ(written["quality"][2]["kl"]["mean"].get<double>(), all.kl.mean);
    EXPECT_EQ(written["quality"][2]["kl_of_text"].size(), texts.size());
    EXPECT_THAT(
        *read_text_file(root.path() / "made/QUALITY.md", 1 << 20),
        AllOf(HasSubstr(card.command), HasSubstr("| letters | 3 |"), HasSubstr("| all | 7 |")));

    // Task accuracies go behind what is there, those of a later run in place of the first one's.
    for (const double accuracy : {0.5, 0.75}) {
        TaskCard tasks{"percheron eval made --against source", "source", "items.jsonl.zst", {}};
        tasks.tasks.push_back({"sums", 8, 1.0, accuracy, accuracy - 1.0, 0.25});
        ASSERT_TRUE(add_tasks_to_card(root.path() / "made", tasks).ok());
    }
    const auto extended =
        nlohmann::json::parse(*read_text_file(root.path() / "made/quality.json", 1 << 20));
    EXPECT_EQ(extended["quality"], written["quality"]);
    ASSERT_EQ(extended["tasks"]["tasks"].size(), 1u);
    EXPECT_EQ(extended["tasks"]["tasks"][0]["model"], 0.75);
    EXPECT_EQ(extended["tasks"]["tasks"][0]["band"], 0.25);
    const std::string page = *read_text_file(root.path() / "made/QUALITY.md", 1 << 20);
    EXPECT_THAT(page, AllOf(HasSubstr(card.command), HasSubstr("| all | 7 |"),
                            HasSubstr("percheron eval made --against source"),
                            HasSubstr("| sums | 8 | 100.00 % | 75.00 % | -25.00 ± 25.00 |")));
    EXPECT_EQ(page.find("## Tasks"), page.rfind("## Tasks"));

    // A folder without a card begins one; a file that is none is not written over.
    std::filesystem::create_directory(root.path() / "bare");
    ASSERT_TRUE(add_tasks_to_card(root.path() / "bare", {"c", "source", "items", {}}).ok());
    EXPECT_THAT(*read_text_file(root.path() / "bare/QUALITY.md", 1 << 20),
                testing::StartsWith("# Quality\n\n## Tasks\n"));
    ASSERT_TRUE(write_text_file(root.path() / "bare/quality.json", "[]").ok());
    EXPECT_EQ(add_tasks_to_card(root.path() / "bare", {"c", "source", "items", {}}).error().code(),
              ErrorCode::corrupt);
}

TEST_F(QualityOfNano, CalibrationTextsAreReadInEveryForm) {
    const auto format = ChatFormat::load(folder());
    ASSERT_TRUE(format.ok());
    const std::string lines =
        R"({"kind": "prose", "text": "One two three <|user|>"})"
        "\n\n"
        R"({"prompt": "<|user|>Hello"})"
        "\n"
        R"({"kind": "chat", "messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]})"
        "\n"
        R"({"ids": [5, 6, 7, 8]})";
    const auto texts = parse_calibration(lines, *format, 8192, {});
    ASSERT_TRUE(texts.ok()) << texts.error().message();
    ASSERT_EQ(texts->size(), 4u);
    EXPECT_EQ((*texts)[0].kind, "prose");
    EXPECT_EQ((*texts)[1].kind, "text");
    const TokenId user = *tokenizer().added_token("<|user|>");
    EXPECT_EQ(std::count((*texts)[0].ids.begin(), (*texts)[0].ids.end(), user), 0)
        << "text stays text";
    EXPECT_EQ((*texts)[1].ids[0], user);
    EXPECT_THAT(tokenizer().decode((*texts)[2].ids), AllOf(HasSubstr("2+2?"), HasSubstr("4")));
    EXPECT_EQ((*texts)[3].ids.size(), 4u);

    // A picture takes as many placeholders as it has tokens, and may be cut with its text.
    const std::string picture =
        R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "See: "}, )"
        R"({"type": "image", "draw": {"size": [112, 168], "ground": [9, 9, 9], "shapes": []}}]}]})";
    const TokenId placeholder = *tokenizer().added_token("<|image|>");
    for (const std::size_t length : {2048u, 20u, 3u}) {
        CalibrationLimits short_texts;
        short_texts.length = length;
        const auto seen = parse_calibration(picture, *format, 8192, short_texts);
        ASSERT_TRUE(seen.ok()) << seen.error().message();
        const CalibrationText& text = seen->front();
        ASSERT_EQ(text.images.size(), length > 3 ? 1u : 0u);
        if (text.images.empty()) continue;
        const PromptImage& image = text.images.front();
        EXPECT_EQ(image.count, 4u * 6u);
        EXPECT_EQ(text.ids[image.first], placeholder);
        EXPECT_NE(text.ids[image.first - 1], placeholder);
        EXPECT_EQ(
            static_cast<std::size_t>(std::count(text.ids.begin(), text.ids.end(), placeholder)),
            std::min<std::size_t>(image.count, text.ids.size() - image.first));
    }

    CalibrationLimits limits;
    limits.length = 3;
    limits.tokens = 8;
    const auto cut = parse_calibration(lines, *format, 8192, limits);
    ASSERT_TRUE(cut.ok());
    ASSERT_EQ(cut->size(), 3u);
    EXPECT_EQ((*cut)[0].ids.size(), 3u);
    EXPECT_EQ((*cut)[0].ids.size() + (*cut)[1].ids.size() + (*cut)[2].ids.size(), 8u);

    const std::pair<const char*, const char*> wrong[] = {
        {"", "no text"},
        {"{\"text\": \"a\"}", "no text of at least two"},
        {"[1]", "line 1"},
        {"{\"text\": \"hello there\"}\nnonsense", "line 2"},
        {"{\"kind\": \"x\"}", "needs `messages`"},
        {"{\"text\": 7}", "not a string"},
        {R"({"ids": [1, 2], "kind": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})",
         "64 bytes"},
        {"{\"ids\": [1, 8192]}", "0 to 8191"},
        {"{\"ids\": [1, -1]}", "holds -1"},
        {"{\"messages\": 3}", "line 1"},
        {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]})",
         "line 1"},
        {R"({"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:,"}}]}]})",
         "video"}};
    for (const auto& [line, message] : wrong) {
        const auto refused = parse_calibration(line, *format, 8192, {});
        ASSERT_FALSE(refused.ok()) << line;
        EXPECT_THAT(refused.error().message(), HasSubstr(message));
    }
}

}  // namespace
}  // namespace percheron::tools
