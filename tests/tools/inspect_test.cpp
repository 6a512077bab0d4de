// percheron inspect and quantize as commands: output, exit codes, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/small_model.h"
#include "core/files.h"
#include "tools/run_command.h"

namespace percheron::tools {
namespace {

using checkpoint::test::Json;
using checkpoint::test::small_config;
using checkpoint::test::small_model;
using checkpoint::test::SmallModel;
using checkpoint::test::TemporaryFolder;
using Outcome = testing::CommandOutcome;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_command;

std::vector<std::string> keys(const Json& object) {
    std::vector<std::string> names;
    for (const auto& entry : object.items())
        names.push_back(entry.key());
    return names;
}

TEST(Inspect, JsonHasExactlyTheFieldsPromised) {
    const SmallModel small = small_model(1);
    const TemporaryFolder folder;
    small.write(folder.path(), 2,
                [](const std::string& name) { return std::hash<std::string>()(name) % 2; });
    const Outcome outcome = run_command("inspect --json " + folder.path().string());
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err, "");
    const Json json = Json::parse(outcome.out);
    EXPECT_THAT(keys(json), ElementsAre("files", "formats", "ignored", "mtp", "reasons", "runnable",
                                        "unclassified", "vision"));
    EXPECT_EQ(json["runnable"], true);
    EXPECT_EQ(json["reasons"], Json::array());
    EXPECT_EQ(json["ignored"], 0);
    EXPECT_EQ(json["unclassified"], 0);
    EXPECT_EQ(json["mtp"], true);
    EXPECT_EQ(json["vision"], true);
    EXPECT_EQ(json["files"],
              Json({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}));
    std::size_t tensors = 0;
    std::size_t bytes = 0;
    for (const auto& format : json["formats"]) {
        EXPECT_THAT(keys(format), ElementsAre("bytes", "tensors"));
        tensors += format["tensors"].get<std::size_t>();
        bytes += format["bytes"].get<std::size_t>();
    }
    std::size_t expected = 0;
    for (const auto& [name, tensor] : small.tensors)
        expected += tensor.bytes.size();
    EXPECT_EQ(tensors, small.tensors.size());
    EXPECT_EQ(bytes, expected);
}

TEST(Inspect, SaysWhyItWillNotRun) {
    const TemporaryFolder folder;
    small_model(2).write(folder.path());
    std::filesystem::resize_file(folder.path() / "model.safetensors", 5000);
    const Outcome outcome = run_command("inspect --json " + folder.path().string());
    EXPECT_EQ(outcome.code, 0);
    const Json json = Json::parse(outcome.out);
    EXPECT_EQ(json["runnable"], false);
    ASSERT_EQ(json["reasons"].size(), 1u);
    EXPECT_THAT(json["reasons"][0].get<std::string>(), HasSubstr("model.safetensors"));
    const Outcome table = run_command("inspect " + folder.path().string());
    EXPECT_EQ(table.code, 0);
    EXPECT_THAT(table.out, AllOf(HasSubstr("will not run"), HasSubstr("model.safetensors")));
}

TEST(Inspect, FindsTheEmbeddedModelAndModelsByName) {
    const Outcome embedded = run_command("inspect --json", "cd / &&");
    EXPECT_EQ(embedded.code, 0);
    EXPECT_EQ(Json::parse(embedded.out)["runnable"], true);
    const TemporaryFolder home;
    std::filesystem::create_directory(home.path() / "tiny");
    small_model(3).write(home.path() / "tiny");
    const std::string variable = "PERCHERON_MODELS=" + home.path().string();
    const Outcome named = run_command("inspect tiny", variable);
    EXPECT_EQ(named.code, 0);
    EXPECT_THAT(named.out, HasSubstr((home.path() / "tiny").string()));
    const Outcome absent = run_command("inspect huge", variable);
    EXPECT_EQ(absent.code, 1);
    EXPECT_THAT(absent.err, AllOf(HasSubstr("'huge'"), HasSubstr(home.path().string())));
    EXPECT_EQ(run_command("inspect /no/such/folder").code, 1);
    EXPECT_EQ(run_command("inspect --nonsense").code, 2);
}

TEST(QuantizeCommand, MakesAFolderThatRunsAndSaysWhatItDid) {
    const TemporaryFolder source;
    const TemporaryFolder out;
    small_model(4, small_config(128)).write(source.path());
    const std::string folders = source.path().string() + " " + (out.path() / "small").string();
    const Outcome made =
        run_command("quantize " + folders + " --format w4a16 --rest fp8 --threads 1");
    EXPECT_EQ(made.code, 0) << made.err;
    EXPECT_THAT(made.out, AllOf(HasSubstr("w4a16"), HasSubstr("fp8_block"), HasSubstr("1 file")));
    const Json json =
        Json::parse(run_command("inspect --json " + (out.path() / "small").string()).out);
    EXPECT_EQ(json["runnable"], true);
    EXPECT_EQ(json["formats"]["w4a16"]["tensors"], 27);
    EXPECT_GT(json["ignored"].get<int>(), 0);
    const auto card = read_text_file(out.path() / "small" / "QUALITY.md", 1 << 20);
    ASSERT_TRUE(card.ok());
    EXPECT_THAT(*card, AllOf(HasSubstr("quantize " + folders + " --format w4a16 --rest fp8"),
                             HasSubstr("| w4a16 | 27 |")));
    // The same again would overwrite a checkpoint.
    const Outcome again = run_command("quantize " + folders + " --format w4a16");
    EXPECT_EQ(again.code, 1);
    EXPECT_THAT(again.err, HasSubstr("there is a checkpoint already"));
}

TEST(QuantizeCommand, RefusesWhatDoesNotFitByName) {
    const TemporaryFolder source;
    small_model(5, small_config(128)).write(source.path());
    const std::string folders = source.path().string() + " " + (source.path() / "out").string();
    for (const auto& [options, said] : std::vector<std::pair<std::string, std::string>>{
             {"--format w4a16 --method gptq", "--method gptq needs texts"},
             {"--format w4a16 --method rtn --calibration x", "--method rtn reads no texts"},
             {"--format fp8 --calibration x", "reads no texts"},
             {"--format nvfp4 --method awq", "awq"},
             {"--format w4a16 --shard-size 0", "--shard-size"},
             {"--format int3", "int3"},
             {"", "--format"}}) {
        const Outcome outcome = run_command("quantize " + folders + " " + options);
        EXPECT_EQ(outcome.code, 2) << options;
        EXPECT_THAT(outcome.err, HasSubstr(said));
        EXPECT_FALSE(std::filesystem::exists(source.path() / "out"));
    }
}

}  // namespace
}  // namespace percheron::tools
