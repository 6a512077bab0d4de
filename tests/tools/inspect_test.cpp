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
using ::testing::Not;
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
    EXPECT_THAT(keys(json),
                ElementsAre("disagreements", "files", "formats", "ignored", "mtp", "reasons",
                            "runnable", "unclassified", "vision", "warnings"));
    EXPECT_EQ(json["runnable"], true);
    EXPECT_EQ(json["reasons"], Json::array());
    EXPECT_EQ(json["disagreements"], Json::array());
    EXPECT_EQ(json["warnings"], Json::array());
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

bool is_plain(const std::string& text) {
    return std::none_of(text.begin(), text.end(), [](char letter) {
        const auto byte = static_cast<unsigned char>(letter);
        return (byte < 0x20 && letter != '\n') || byte == 0x7f;
    });
}

// Whatever a folder's files call things, no command sends it to a terminal as it is.
TEST(Names, OfFilesReachNoTerminalAsTheyAre) {
    const std::string hostile = "\x1b]0;x\x07\x1b[2J\r\tq\x7f\nwarning: all is well";
    std::vector<std::pair<const char*, SmallModel>> models;
    const auto add = [&](const char* what) -> SmallModel& {
        return models.emplace_back(what, small_model(1, small_config(128))).second;
    };
    const std::string stem = "model.language_model.layers.0.self_attn.q_proj";
    {
        auto& tensors = add("an unclassified tensor").tensors;
        tensors[hostile] = tensors[stem + ".weight"];
    }
    {
        auto& tensors = add("an unclassified tensor of a layer").tensors;
        tensors[stem + hostile] = tensors[stem + ".weight"];
    }
    add("an activation").config["text_config"]["hidden_act"] = hostile;
    add("a kind of model").config["model_type"] = hostile;
    add("a mixer").config["text_config"]["layer_types"][0] = hostile;
    add("a field of its own").config["text_config"][hostile] = hostile;
    add("a method").config["quantization_config"] = {{"quant_method", hostile},
                                                     {"ignore", {hostile}}};
    add("a list").config["quantization_config"] = {{"ignore", {"re:(" + hostile}}};
    {
        Json& config = add("a group").config["quantization_config"];
        config = {{"quant_method", "compressed-tensors"}, {"ignore", Json::array()}};
        config["config_groups"][hostile] = {{"targets", {"Linear", hostile}},
                                            {"format", hostile},
                                            {"weights", {{"num_bits", 4}, {"type", hostile}}}};
    }
    for (const auto& [what, model] : models) {
        const TemporaryFolder root;
        const std::filesystem::path folder = root.path() / "model";
        std::filesystem::create_directory(folder);
        model.write(folder);
        const std::string name = "'" + folder.string() + "'";
        ASSERT_TRUE(write_text_file(root.path() / "ids.json", "[[1, 2, 3]]").ok());
        ASSERT_TRUE(write_text_file(folder / "tokenizer.json", "{\"a\": \"\\u001b[2J\"}").ok());
        ASSERT_TRUE(write_text_file(folder / "chat_template.jinja", "{% \x1b[2J %}").ok());
        for (const std::string& command :
             {"inspect " + name, "inspect --json " + name,
              "quantize " + name + " " + (root.path() / "out").string() + " --format w4a16",
              "score " + name + " --ids " + (root.path() / "ids.json").string(),
              "serve " + name + " --port 0"}) {
            const Outcome outcome = run_command(command);
            EXPECT_TRUE(is_plain(outcome.out)) << what << ": " << command << "\n" << outcome.out;
            EXPECT_TRUE(is_plain(outcome.err)) << what << ": " << command << "\n" << outcome.err;
            EXPECT_THAT(outcome.err, Not(HasSubstr("\nwarning: all is well"))) << what << command;
        }
    }
    // A name of a file, which an index may give.
    const TemporaryFolder folder;
    small_model(1).write(folder.path(), 2, [](const std::string&) { return 0; });
    const auto index = folder.path() / "model.safetensors.index.json";
    Json json = Json::parse(*read_text_file(index, 1u << 20));
    json["weight_map"][hostile] = hostile + ".safetensors";
    ASSERT_TRUE(write_text_file(index, json.dump()).ok());
    const Outcome outcome = run_command("inspect " + folder.path().string());
    EXPECT_TRUE(is_plain(outcome.out + outcome.err)) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("\\x1b[2J"));
}

// Ids need no tokenizer, and the same texts under another name are the same texts.
TEST(QuantizeCommand, ReadsIdsWithoutATokenizerAndKnowsTextsByWhatTheyHold) {
    const TemporaryFolder root;
    std::filesystem::create_directory(root.path() / "source");
    small_model(6, small_config(128)).write(root.path() / "source");
    const auto write_ids = [&](const char* name, int first) {
        std::string lines;
        for (int text = 0; text < 3; ++text) {
            Json ids = Json::array();
            for (int i = 0; i < 30; ++i)
                ids.push_back((first + text + i) % 28);
            lines += Json({{"kind", "ids"}, {"ids", ids}}).dump() + "\n";
        }
        ASSERT_TRUE(write_text_file(root.path() / name, lines).ok());
    };
    write_ids("calibration.jsonl", 0);
    write_ids("copy.jsonl", 0);
    write_ids("overlapping.jsonl", 2);
    const std::string source = (root.path() / "source").string() + " ";
    const auto texts = [&](const char* option, const char* name) {
        return std::string(" ") + option + " " + (root.path() / name).string();
    };
    const std::string calibrated =
        " --format w4a16 --least-rows 4 --threads 1" + texts("--calibration", "calibration.jsonl");
    const Outcome made =
        run_command("quantize " + source + (root.path() / "ids").string() + calibrated);
    EXPECT_EQ(made.code, 0) << made.err;
    EXPECT_THAT(made.out, HasSubstr("3 texts of 90 tokens"));

    // Where the tokenizer is needed, it is missed before the work.
    const std::string other = (root.path() / "other").string();
    ASSERT_TRUE(write_text_file(root.path() / "words.jsonl", "{\"text\": \"some words\"}\n").ok());
    for (const std::string& options : {" --format w4a16" + texts("--calibration", "words.jsonl"),
                                       " --format w4a16" + texts("--held-out", "copy.jsonl")}) {
        const Outcome refused = run_command("quantize " + source + other + options);
        EXPECT_EQ(refused.code, 1) << options;
        EXPECT_THAT(refused.err, HasSubstr("tokenizer.json"));
        EXPECT_FALSE(std::filesystem::exists(other));
    }
    const auto nano = std::filesystem::path(PERCHERON_SOURCE_DIR) / "models/nano/tokenizer.json";
    std::filesystem::copy_file(nano, root.path() / "source/tokenizer.json");
    for (const auto& [name, said] : std::vector<std::pair<const char*, const char*>>{
             {"calibration.jsonl", "3 of its 3 texts"},
             {"copy.jsonl", "3 of its 3 texts"},
             {"overlapping.jsonl", "1 of its 3 texts"}}) {
        const Outcome refused =
            run_command("quantize " + source + other + calibrated + texts("--held-out", name));
        EXPECT_EQ(refused.code, 1) << name;
        EXPECT_THAT(refused.err, HasSubstr(said));
        EXPECT_FALSE(std::filesystem::exists(other));
    }
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
