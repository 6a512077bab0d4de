// What every command refuses on its command line, and what it says then.
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/read_whole.h"
#include "tools/run_command.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::test::TemporaryFolder;
using testing::CommandOutcome;
using testing::run_command;

// The programs beside the tests read their counts by it: a slip must not pass for a run.
TEST(CommandLine, ProgramsOfTestsTakeWholeNumbersOnly) {
    for (const char* text : {"", "abc", "-1", "+1", "1x", "0x10", "1e4", " 1", "1 ", "1.0",
                             "18446744073709551616", "99999999999999999999999"}) {
        std::uint64_t number = 0;
        EXPECT_FALSE(tests::read_whole(text, std::uint64_t{0}, number)) << text;
    }
    std::uint64_t number = 0;
    EXPECT_FALSE(tests::read_whole("0", std::uint64_t{1}, number));
    EXPECT_TRUE(tests::read_whole("0", std::uint64_t{0}, number));
    EXPECT_TRUE(tests::read_whole("18446744073709551615", std::uint64_t{1}, number));
    EXPECT_EQ(number, 18446744073709551615u);
}

TEST(CommandLine, WhatMeansNothingIsRefusedInWords) {
    const TemporaryFolder folder;
    const std::string out = (folder.path() / "out").string();
    const std::pair<std::string, const char*> wrong[] = {
        {"bogus", "no command bogus"},
        {"score --top -1", "--top: -1 is no count"},
        {"score --threads 100000000000000000000", "--threads: 100000000000000000000 is no count"},
        {"bench streams --streams 1,-2", "-2 is no count"},
        {"bench step --decode 0", "--decode: 0 is too small; name a number above 0"},
        {"bench step --prefill 64,0", "--prefill: 0 is too small"},
        {"quantize nano " + out + " --format w4a16 --damping nan", "--damping: nan is no number"},
        {"quantize nano " + out + " --format w4a16 --damping 0", "--damping"},
        {"top --interval -nan", "--interval: -nan is no number"},
        {"draft measure --temperature nan", "--temperature: nan is no number"},
        {"synth " + out + " --inflate nano", "--inflate requires --size"},
        {"synth " + out + " --inflate nano --size 1GiB --split-pairs", "excludes"},
        {"synth " + out + " --inflate nano --size 1GiB --layers 5", "excludes"},
        {"synth " + out + " --drafter full --format w4a16", "excludes"},
    };
    for (const auto& [arguments, words] : wrong) {
        const CommandOutcome outcome = run_command(arguments);
        EXPECT_EQ(outcome.code, 2) << arguments << ": " << outcome.err;
        EXPECT_NE(outcome.err.find(words), std::string::npos) << arguments << ": " << outcome.err;
    }
    EXPECT_FALSE(fs::exists(out));
}

// Before the first byte, not when the disk is full.
TEST(CommandLine, WhatNoDiskHoldsIsNotBegun) {
    const TemporaryFolder folder;
    const fs::path out = folder.path() / "out";
    const CommandOutcome outcome = run_command(
        "synth " + out.string() + " --layers 1024 --hidden 16384 --expert-intermediate 16384");
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find("GiB would be written and the disk has"), std::string::npos)
        << outcome.err;
    EXPECT_FALSE(fs::exists(out));
}

// The embedded model's folder with another tokenizer.json.
template <class Change>
void write_with_tokenizer(const fs::path& folder, Change change) {
    const fs::path nano = fs::path(PERCHERON_SOURCE_DIR) / "models" / "nano";
    for (const auto& entry : fs::directory_iterator(nano)) {
        if (entry.path().filename() != "tokenizer.json")
            fs::create_symlink(entry.path(), folder / entry.path().filename());
    }
    auto json = nlohmann::json::parse(std::ifstream(nano / "tokenizer.json"));
    change(json);
    std::ofstream(folder / "tokenizer.json") << json;
}

TEST(CommandLine, ATokenizerOfAnotherModelIsRefused) {
    const auto said = [](auto change) {
        const TemporaryFolder folder;
        write_with_tokenizer(folder.path(), change);
        const CommandOutcome outcome =
            run_command("chat " + folder.path().string() + " --max-tokens 1 </dev/null");
        EXPECT_EQ(outcome.code, 1);
        return outcome.err;
    };
    const auto first_beyond = [](nlohmann::json& json) {
        json["added_tokens"].push_back(json["added_tokens"][0]);
        json["added_tokens"].back()["id"] = 9000;
        json["added_tokens"].back()["content"] = "<|beyond|>";
    };
    EXPECT_NE(said(first_beyond).find("ids up to 9000"), std::string::npos);
    EXPECT_NE(said([](nlohmann::json& json) {
                  json["added_tokens"].clear();
              }).find("no added token <|system|>"),
              std::string::npos);
    for (const char* name : {"<|user|>", "<|assistant|>", "<|observation|>", "</think>"}) {
        const std::string error = said([&](nlohmann::json& json) {
            for (auto& token : json["added_tokens"]) {
                if (token["content"] == name) token["content"] = "<|other|>";
            }
        });
        EXPECT_NE(error.find(name), std::string::npos) << error;
    }
}

// A folder, and what it would hold without being written, wherever a MODEL is read.
TEST(CommandLine, MadeUpModelsAreTakenWhereverModelsAre) {
    const std::string model =
        "synth:layers=4,dense-layers=1,vocabulary=8192,hidden=128,intermediate=128,experts=4,"
        "experts-per-token=2,expert-intermediate=128,heads=2,query-rank=128,latent=128,head-dim=32,"
        "value-dim=32,index-heads=1,index-dim=32,index-topk=64,kda-heads=2,kda-dim=32,vision=0,"
        "context=4096";
    const TemporaryFolder folder;
    const std::string path = folder.path().string();
    std::string flags;
    for (std::size_t at = 6; at < model.size();) {
        const std::size_t end = std::min(model.find(',', at), model.size());
        std::string flag = model.substr(at, end - at);
        flag[flag.find('=')] = ' ';
        flags += " --" + flag;
        at = end + 1;
    }
    ASSERT_EQ(run_command("synth " + path + "/model" + flags).code, 0);
    std::ofstream(path + "/texts.jsonl") << R"({"text": "the river walks and seven hills wait"})";

    const auto bytes = [&](const std::string& out) {
        return *read_text_file(path + "/" + out + "/model.safetensors", Bytes{1} << 30);
    };
    for (const auto& [from, name] : {std::pair(model, "made"), {path + "/model", "stored"}}) {
        const std::string to = path + "/" + name;
        EXPECT_EQ(run_command("quantize " + from + " " + to + "-w4a16 --format w4a16").code, 0);
        EXPECT_EQ(run_command("synth " + to + "-wide --inflate " + from + " --size 64MiB").code, 0);
    }
    EXPECT_EQ(bytes("made-w4a16"), bytes("stored-w4a16"));
    EXPECT_EQ(bytes("made-wide"), bytes("stored-wide"));
    // What was made for the while is gone.
    std::size_t folders = 0;
    for (const auto& entry : fs::directory_iterator(folder.path()))
        folders += entry.is_directory() ? 1 : 0;
    EXPECT_EQ(folders, 5u);

    const std::string compared = " --texts " + path + "/texts.jsonl --json";
    const CommandOutcome made =
        run_command("quality " + path + "/made-w4a16 --against " + model + compared);
    const CommandOutcome stored =
        run_command("quality " + path + "/made-w4a16 --against " + path + "/model" + compared);
    ASSERT_EQ(made.code, 0) << made.err;
    ASSERT_EQ(stored.code, 0) << stored.err;
    const auto kinds = [](const CommandOutcome& outcome) {
        const auto json = nlohmann::json::parse(outcome.out);
        return json.at("quality");
    };
    EXPECT_EQ(kinds(made), kinds(stored));
}

}  // namespace
}  // namespace percheron::tools
