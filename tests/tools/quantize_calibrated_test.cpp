#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/cache_store.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/small_model.h"
#include "core/files.h"
#include "model/network.h"
#include "ops/cpu/cpu_backend.h"
#include "support/quiet_log.h"
#include "tools/calibration_pictures.h"
#include "tools/quality_card.h"
#include "tools/quantize.h"
#include "tools/quantize_layers.h"

namespace percheron::tools {
namespace {

using namespace checkpoint::test;
using checkpoint::Checkpoint;
using testing::AllOf;
using testing::HasSubstr;

// Every matrix of an expert has rows that divide into groups, and three experts of eight can be
// kept from ever being chosen.
Json config_of(std::size_t experts) {
    Json config = small_config(128);
    config["text_config"]["vocab_size"] = 256;
    config["text_config"]["n_routed_experts"] = experts;
    return config;
}

SmallModel model_of(std::uint64_t seed, std::size_t experts = 4, std::size_t unreachable = 0) {
    SmallModel small = small_model(seed, config_of(experts));
    for (auto& [name, tensor] : small.tensors) {
        if (!name.ends_with("e_score_correction_bias")) continue;
        std::vector<float> bias(experts, 0.0f);
        for (std::size_t i = 0; i < unreachable; ++i)
            bias[experts - 1 - i] = -100.0f;
        tensor = tensor_of(DType::f32, {experts}, bias);
    }
    return small;
}

std::vector<CalibrationText> random_texts(std::uint64_t seed, std::size_t count,
                                          std::size_t longest) {
    std::mt19937_64 random(seed);
    std::vector<CalibrationText> texts(count);
    for (CalibrationText& text : texts) {
        text.kind = random() % 2 == 0 ? "one" : "other";
        text.ids.resize(2 + random() % (longest - 1));
        for (TokenId& id : text.ids)
            id = TokenId(static_cast<std::int32_t>(random() % 256));
    }
    return texts;
}

// Four by four patches of two pixels.
PromptImage random_picture(std::uint32_t first) {
    std::mt19937_64 random(first);
    auto canvas = std::make_shared<ImageCanvas>();
    canvas->width = canvas->height = 8;
    canvas->pixels.resize(8 * 8 * 3);
    for (auto& value : canvas->pixels)
        value = static_cast<std::uint8_t>(random());
    PromptImage image;
    image.first = first;
    image.count = 4;
    image.grid_height = image.grid_width = 4;
    image.content_hash[0] = static_cast<std::uint8_t>(first);
    image.canvas = std::move(canvas);
    return image;
}

QuantizeOptions options_of(std::vector<CalibrationText> texts) {
    QuantizeOptions options;
    options.calibration.emplace();
    options.calibration->texts = std::move(texts);
    options.threads = 1;
    return options;
}

std::map<std::string, std::string> content(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
        if (!entry.is_regular_file()) continue;
        files[fs::relative(entry.path(), folder).string()] =
            *read_text_file(entry.path(), Bytes{1} << 30);
    }
    return files;
}

class CalibratedQuantize : public testing::Test {
  protected:
    void write(const SmallModel& small) {
        fs::create_directory(source());
        small.write(source());
    }
    fs::path source() const { return folder_.path() / "source"; }
    fs::path out(const std::string& name) const { return folder_.path() / name; }

    QuantizeReport run(const QuantizeOptions& options, const std::string& name) {
        auto report = quantize(source(), out(name), options);
        EXPECT_TRUE(report.ok()) << report.error().message();
        return report.ok() ? *report : QuantizeReport{};
    }
    std::string refusal(const QuantizeOptions& options, const std::string& name) {
        const auto report = quantize(source(), out(name), options);
        return report.ok() ? std::string() : report.error().message();
    }

  private:
    TemporaryFolder folder_;
};

// Every scale of every packed weight.
void expect_finite_scales(const Checkpoint& checkpoint) {
    std::size_t scales = 0;
    for (const auto& [name, place] : checkpoint.shards().tensors()) {
        if (!name.ends_with("weight_scale") || place.tensor->dtype != DType::bf16) continue;
        const auto bytes = place.tensor->bytes;
        for (std::size_t i = 0; i < bytes.size(); i += 2) {
            BFloat16 scale;
            std::memcpy(&scale, bytes.data() + i, 2);
            ASSERT_TRUE(std::isnormal(static_cast<float>(scale)) && (scale.bits & 0x8000u) == 0)
                << name;
            ++scales;
        }
    }
    EXPECT_GT(scales, 0u);
}

TEST_F(CalibratedQuantize, OutputsOnTheTextsChangeLessThanByRounding) {
    write(model_of(1));
    const auto texts = random_texts(2, 8, 120);
    std::size_t tokens = 0;
    for (const CalibrationText& text : texts)
        tokens += text.ids.size();
    const QuantizeReport report = run(options_of(texts), "out");
    EXPECT_EQ(report.calibration_texts, texts.size());
    EXPECT_EQ(report.calibration_tokens, tokens);
    EXPECT_TRUE(report.uncovered.empty());
    // Layers 1 and 2 of the trunk, and the MTP layer.
    ASSERT_EQ(report.layers.size(), 3u);
    for (const QuantizeReport::Layer& layer : report.layers) {
        EXPECT_EQ(layer.matrices, 4u * 3u);
        EXPECT_LT(layer.error, layer.nearest_error) << layer.index;
        EXPECT_GT(layer.error.value(), 0.0);
        // Two experts a row; the MTP layer has no row for a text's last token.
        const std::size_t rows = layer.index == 3 ? tokens - texts.size() : tokens;
        EXPECT_EQ(std::accumulate(layer.expert_rows.begin(), layer.expert_rows.end(), 0u),
                  2 * rows);
    }
    const auto made = Checkpoint::open(out("out"));
    ASSERT_TRUE(made.ok()) << made.error().message();
    EXPECT_EQ((*made)->inventory().formats.at("w4a16").tensors, 3u * 4u * 3u);
    EXPECT_TRUE((*made)->inventory().disagreements.empty());
    expect_finite_scales(**made);
    EXPECT_FALSE(fs::exists(out("out") / ".quantize"));
    EXPECT_FALSE(fs::exists(out("out") / ".quantize-finished"));
}

TEST_F(CalibratedQuantize, TheBytesDependOnInputAndOptionsOnly) {
    write(model_of(3));
    QuantizeOptions options = options_of(random_texts(4, 3, 300));
    options.rest = WeightFormat::fp8_block;
    run(options, "one");
    options.threads = 3;
    run(options, "three");
    EXPECT_EQ(content(out("one")), content(out("three")));
    options.calibration->texts = random_texts(5, 3, 300);
    run(options, "others");
    EXPECT_NE(content(out("one")), content(out("others")));
}

TEST_F(CalibratedQuantize, ExpertsThatNoTextReachesAreNamed) {
    write(model_of(6, 8, 3));
    const QuantizeReport report = run(options_of(random_texts(7, 6, 100)), "out");
    std::vector<std::string> expected;
    for (const std::size_t layer : {1u, 2u, 3u}) {
        for (const std::size_t expert : {5u, 6u, 7u}) {
            for (const char* matrix : {"gate", "up", "down"}) {
                expected.push_back("model.language_model.layers." + std::to_string(layer) +
                                   ".mlp.experts." + std::to_string(expert) + "." + matrix +
                                   "_proj: 0 rows");
            }
        }
    }
    EXPECT_EQ(report.uncovered, expected);
    for (const QuantizeReport::Layer& layer : report.layers) {
        ASSERT_EQ(layer.expert_rows.size(), 8u);
        EXPECT_EQ(std::count(layer.expert_rows.begin(), layer.expert_rows.end(), 0u), 3);
        EXPECT_EQ(layer.matrices, 5u * 3u);
    }
    auto made = Checkpoint::open(out("out"));
    ASSERT_TRUE(made.ok());
    expect_finite_scales(**made);

    // What was not reached is rounded to the nearest, to the bit.
    QuantizeOptions nearest;
    run(nearest, "nearest");
    auto rounded = Checkpoint::open(out("nearest"));
    ASSERT_TRUE(rounded.ok());
    const std::string name = "model.language_model.layers.2.mlp.experts.6.down_proj.weight_packed";
    EXPECT_TRUE(std::ranges::equal((*made)->shards().find(name).tensor->bytes,
                                   (*rounded)->shards().find(name).tensor->bytes));

    QuantizeOptions all = options_of(random_texts(7, 6, 100));
    all.calibration->all_experts = true;
    const QuantizeReport covered = run(all, "all");
    EXPECT_TRUE(covered.uncovered.empty());
    for (const QuantizeReport::Layer& layer : covered.layers) {
        EXPECT_EQ(layer.matrices, 8u * 3u);
        EXPECT_LT(layer.error, layer.nearest_error);
    }
}

TEST_F(CalibratedQuantize, TooFewRowsAreNotTrusted) {
    write(model_of(8));
    QuantizeOptions options = options_of(random_texts(9, 2, 20));
    options.calibration->least_rows = 1000;
    const QuantizeReport report = run(options, "out");
    EXPECT_EQ(report.uncovered.size(), 3u * 4u * 3u);
    // Each with the rows that the layer's account has of its expert.
    for (const QuantizeReport::Layer& layer : report.layers) {
        for (std::size_t expert = 0; expert < layer.expert_rows.size(); ++expert) {
            const std::string start = "model.language_model.layers." + std::to_string(layer.index) +
                                      ".mlp.experts." + std::to_string(expert) + ".";
            const std::uint64_t rows = layer.expert_rows[expert];
            const std::string end = ": " + std::to_string(rows) + (rows == 1 ? " row" : " rows");
            EXPECT_EQ(std::count_if(report.uncovered.begin(), report.uncovered.end(),
                                    [&](const std::string& name) {
                                        return name.starts_with(start) && name.ends_with(end);
                                    }),
                      3)
                << start << end;
        }
    }
    // Nothing was calibrated, and no error was measured: the card does not say that there is none.
    QualityCard card;
    card.report = &report;
    const Json written = Json::parse(card_json(card));
    ASSERT_EQ(report.layers.size(), 3u);
    for (std::size_t i = 0; i < report.layers.size(); ++i) {
        EXPECT_FALSE(report.layers[i].error || report.layers[i].nearest_error);
        EXPECT_TRUE(written["layers"][i]["error"].is_null());
    }
    EXPECT_THAT(card_markdown(card), HasSubstr("| 3 | 0 | not measured | not measured | "));
    run({}, "nearest");
    EXPECT_EQ(content(out("out")).at("model.safetensors"),
              content(out("nearest")).at("model.safetensors"));
}

TEST_F(CalibratedQuantize, PatternsChooseAndOnesThatNameNothingAreRefused) {
    write(model_of(10));
    QuantizeOptions options = options_of(random_texts(11, 5, 150));
    options.include = {"*.mlp.experts.*", "re:.*layers\\.0\\.self_attn\\.[qk]_proj$",
                       "*.shared_experts.down_proj", "model.language_model.layers.0.mlp"};
    options.keep = {"model.language_model.layers.3", "*.layers.1.mlp.experts.2.*"};
    const QuantizeReport report = run(options, "out");
    const auto made = Checkpoint::open(out("out"));
    ASSERT_TRUE(made.ok()) << made.error().message();
    const auto packed = [&](const std::string& stem) {
        return static_cast<bool>(
            (*made)->shards().find("model.language_model.layers." + stem + ".weight_packed"));
    };
    EXPECT_TRUE(packed("0.self_attn.q_proj"));
    EXPECT_TRUE(packed("0.self_attn.k_proj"));
    EXPECT_FALSE(packed("0.self_attn.v_proj"));
    EXPECT_TRUE(packed("0.mlp.gate_proj"));
    EXPECT_TRUE(packed("0.mlp.down_proj"));
    EXPECT_TRUE(packed("1.mlp.shared_experts.down_proj"));
    EXPECT_FALSE(packed("1.mlp.shared_experts.up_proj"));
    EXPECT_TRUE(packed("1.mlp.experts.1.up_proj"));
    EXPECT_FALSE(packed("1.mlp.experts.2.up_proj"));
    EXPECT_FALSE(packed("3.mlp.experts.0.up_proj"));
    EXPECT_TRUE((*made)->inventory().disagreements.empty());
    EXPECT_TRUE(report.uncovered.empty());
    ASSERT_EQ(report.layers.size(), 4u);
    EXPECT_EQ(report.layers[0].matrices, 5u);
    EXPECT_EQ(report.layers[1].matrices, 3u * 3u + 1u);
    for (const QuantizeReport::Layer& layer : report.layers) {
        EXPECT_TRUE(layer.matrices == 0 || layer.error < layer.nearest_error) << layer.index;
    }

    for (const char* pattern : {"*.no_such_proj", "re:.*experts\\.9\\..*", "lm_heads",
                                "model.language_model.embed_tokens", "*.mlp.gate"}) {
        options.include = {"*.mlp.experts.*", pattern};
        EXPECT_THAT(refusal(options, "none"), AllOf(HasSubstr(pattern), HasSubstr("names no")));
        EXPECT_FALSE(fs::exists(out("none")));
    }
    options.include = {};
    options.keep = {"*.layers.77.*"};
    EXPECT_THAT(refusal(options, "none"), HasSubstr("--keep *.layers.77.*"));
    options.keep = {"re:(("};
    EXPECT_THAT(refusal(options, "none"), HasSubstr("--keep"));
    EXPECT_FALSE(fs::exists(out("none")));
}

TEST_F(CalibratedQuantize, Nvfp4IsModelOpts) {
    write(model_of(12));
    for (const bool calibrated : {false, true}) {
        QuantizeOptions options;
        if (calibrated) options = options_of(random_texts(13, 5, 150));
        options.format = WeightFormat::nvfp4;
        const std::string name = calibrated ? "calibrated" : "nearest";
        const QuantizeReport report = run(options, name);
        const auto made = Checkpoint::open(out(name));
        ASSERT_TRUE(made.ok()) << made.error().message();
        EXPECT_EQ((*made)->inventory().formats.at("nvfp4").tensors, 3u * 4u * 3u);
        EXPECT_TRUE((*made)->inventory().disagreements.empty());
        // Calibration takes larger errors where the inputs are small.
        EXPECT_LT(report.formats.at("nvfp4").relative_error, calibrated ? 0.25 : 0.12);
        for (const QuantizeReport::Layer& layer : report.layers)
            EXPECT_LT(layer.error, layer.nearest_error);
        // Engines that fuse gate and up keep one factor for both.
        for (std::size_t expert = 0; expert < 4; ++expert) {
            const std::string stem =
                "model.language_model.layers.2.mlp.experts." + std::to_string(expert) + ".";
            const auto gate = (*made)->matrix(stem + "gate_proj", 128, 128);
            const auto up = (*made)->matrix(stem + "up_proj", 128, 128);
            ASSERT_TRUE(gate.ok() && up.ok());
            EXPECT_EQ(gate->global_scale, up->global_scale);
        }
        const Json config = Json::parse(content(out(name)).at("config.json"));
        EXPECT_EQ(config["quantization_config"]["quant_method"], "modelopt");
        EXPECT_EQ(config["quantization_config"]["quant_algo"], "NVFP4");
        const Json other = Json::parse(content(out(name)).at("hf_quant_config.json"));
        EXPECT_EQ(other["quantization"]["exclude_modules"],
                  config["quantization_config"]["ignore"]);
    }
}

// Stopped without warning at a random weight, as often as it takes, with any number of threads.
TEST_F(CalibratedQuantize, AStoppedRunGoesOnToTheSameBytes) {
    testing::GTEST_FLAG(death_test_style) = "fast";
    write(model_of(14, 3));
    QuantizeOptions options = options_of(random_texts(15, 3, 80));
    std::mt19937_64 random(16);
    for (const bool sharded : {false, true}) {
        options.shard_limit = sharded ? 200'000 : Bytes{5} << 30;
        const std::string whole = sharded ? "sharded" : "joined";
        std::size_t calls = 0;
        options.progress = [&](Bytes, Bytes) { ++calls; };
        run(options, whole);
        const auto expected = content(out(whole));
        EXPECT_GT(calls, 100u);
        options.progress = {};
        for (int trial = 0; trial < 3; ++trial) {
            const std::string name = whole + std::to_string(trial);
            for (std::size_t stop = random() % calls; stop < calls;
                 stop += calls / 4 + random() % (calls / 2)) {
                options.threads = 1 + random() % 3;
                EXPECT_EXIT(
                    {
                        std::size_t done = 0;
                        QuantizeOptions stopped = options;
                        stopped.progress = [&](Bytes, Bytes) {
                            if (done++ == stop) std::_Exit(7);
                        };
                        (void)quantize(source(), out(name), stopped);
                        std::_Exit(0);
                    },
                    testing::ExitedWithCode(7), "");
                EXPECT_FALSE(fs::exists(out(name) / "config.json"));
            }
            run(options, name);
            EXPECT_EQ(content(out(name)), expected) << name;
        }
    }
}

// Whatever happened meanwhile to the files of a run that was stopped, in the middle, or when all
// shards had their names: it is noticed, what it belongs to is done again, and the bytes are those
// of a run that was not stopped.
TEST_F(CalibratedQuantize, AStoppedRunTrustsNoFileThatIsNotAsItWasLeft) {
    const tests::QuietLog quiet;
    testing::GTEST_FLAG(death_test_style) = "fast";
    write(model_of(14, 3));
    std::mt19937_64 random(21);
    const auto damage = [&](const fs::path& file, std::size_t kind) {
        std::string bytes = read_text_file(file, Bytes{1} << 30).value();
        switch (kind) {
            case 0:
                bytes.clear();
                break;
            case 1:
                bytes.resize(random() % bytes.size());
                break;
            case 2:
                bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
                break;
            case 3:
                bytes = "[]";
                break;
            case 4:
                bytes += "{}";
                break;
            default:
                EXPECT_TRUE(fs::remove(file));
                return;
        }
        std::ofstream(file, std::ios::binary) << bytes;
    };
    std::map<std::string, std::size_t> damaged;  // by kind of file
    for (const bool calibrated : {true, false}) {
        for (const bool sharded : {false, true}) {
            QuantizeOptions options;
            if (calibrated) options = options_of(random_texts(15, 3, 80));
            options.shard_limit = sharded ? 200'000 : Bytes{5} << 30;
            const std::string name = std::string(calibrated ? "c" : "n") + (sharded ? "s" : "j");
            std::size_t calls = 0;
            options.progress = [&](Bytes, Bytes) { ++calls; };
            run(options, name);
            options.progress = {};
            const auto expected = content(out(name));
            for (const bool behind_the_weights : {false, true}) {
                const std::string left = name + (behind_the_weights ? " behind" : " amid");
                if (behind_the_weights) {
                    QuantizeOptions stopped = options;
                    stopped.finish = [](const QuantizeReport&) {
                        return Status(Error(ErrorCode::io, "no room for the card"));
                    };
                    EXPECT_FALSE(quantize(source(), out(left), stopped).ok());
                } else {
                    EXPECT_EXIT(
                        {
                            std::size_t done = 0;
                            QuantizeOptions stopped = options;
                            stopped.progress = [&](Bytes, Bytes) {
                                if (++done == calls * 2 / 3) std::_Exit(7);
                            };
                            (void)quantize(source(), out(left), stopped);
                            std::_Exit(0);
                        },
                        testing::ExitedWithCode(7), "");
                }
                std::vector<fs::path> files;
                for (const auto& entry : fs::recursive_directory_iterator(out(left))) {
                    const std::string file = entry.path().filename();
                    const bool of_the_run =
                        file.starts_with("section-") || file.starts_with("part-") ||
                        file.starts_with("streams-") || file.starts_with("model-000");
                    if (of_the_run) files.push_back(fs::relative(entry.path(), out(left)));
                }
                ASSERT_GT(files.size(), 2u);
                std::sort(files.begin(), files.end());
                const std::string trial = "trial";
                // Each kind of damage, to files of every kind in turn; at last to all at once.
                for (std::size_t i = random() % 2; i < files.size() + 2; i += 2) {
                    fs::copy(out(left), out(trial), fs::copy_options::recursive);
                    std::string what;
                    for (std::size_t k = 0; k < files.size(); ++k) {
                        if (i < files.size() && k != i) continue;
                        const std::size_t kind = random() % 6;
                        damage(out(trial) / files[k], kind);
                        what += " " + files[k].string() + ":" + std::to_string(kind);
                        const std::string file = files[k].filename();
                        ++damaged[file.substr(0, file.find('-'))];
                    }
                    const auto report = quantize(source(), out(trial), options);
                    ASSERT_TRUE(report.ok()) << left << what << report.error().message();
                    ASSERT_EQ(content(out(trial)), expected) << left << what;
                    fs::remove_all(out(trial));
                }
            }
        }
    }
    for (const char* kind : {"section", "part", "streams", "model"})
        EXPECT_GT(damaged[kind], 1u) << kind;
}

// A record is its section's and its run's: another's in its place, or two that were swapped, with a
// part damaged that nobody would look for then.
TEST_F(CalibratedQuantize, ARecordOfAnotherSectionOrRunIsNone) {
    const tests::QuietLog quiet;
    write(model_of(14, 3));
    QuantizeOptions options = options_of(random_texts(15, 3, 80));
    options.shard_limit = 200'000;
    run(options, "whole");
    const auto expected = content(out("whole"));
    const auto stopped = [&](const std::string& name, const QuantizeOptions& by) {
        QuantizeOptions stopping = by;
        stopping.finish = [](const QuantizeReport&) {
            return Status(Error(ErrorCode::io, "no room for the card"));
        };
        EXPECT_FALSE(quantize(source(), out(name), stopping).ok());
        return out(name) / ".quantize";
    };
    const fs::path left = stopped("left", options);
    QuantizeOptions others = options;
    others.calibration->damping = 0.5;
    const fs::path other = stopped("other", others);
    for (const std::size_t section : {1, 2, 3}) {
        const std::string record = "section-" + std::to_string(section) + ".json";
        for (const fs::path& from : {left / "section-0.json", left / "section-2.json",
                                     left / "section-4.json", other / record}) {
            if (from == left / record) continue;
            fs::remove_all(out("trial"));
            fs::copy(out("left"), out("trial"), fs::copy_options::recursive);
            const fs::path to = out("trial") / ".quantize" / record;
            fs::copy_file(from, to, fs::copy_options::overwrite_existing);
            // Whatever shards the section has: every second one has another byte.
            bool every_second = false;
            for (const auto& entry : fs::directory_iterator(out("trial"))) {
                if (entry.path().extension() != ".safetensors") continue;
                every_second = !every_second;
                if (!every_second) continue;
                std::string bytes = read_text_file(entry.path(), Bytes{1} << 30).value();
                bytes.back() ^= 1;
                std::ofstream(entry.path(), std::ios::binary) << bytes;
            }
            const auto report = quantize(source(), out("trial"), options);
            ASSERT_TRUE(report.ok()) << from << report.error().message();
            ASSERT_EQ(content(out("trial")), expected) << section << from;
        }
    }
}

// The source is another than it was: nothing of the run before is used.
TEST_F(CalibratedQuantize, AStoppedRunDoesNotGoOnFromOtherWeights) {
    const SmallModel model = model_of(14, 3);
    write(model);
    QuantizeOptions options = options_of(random_texts(15, 3, 80));
    options.finish = [](const QuantizeReport&) { return Status(Error(ErrorCode::io, "stopped")); };
    EXPECT_FALSE(quantize(source(), out("out"), options).ok());
    options.finish = {};
    for (const auto& entry : fs::directory_iterator(source())) {
        if (entry.path().extension() != ".safetensors") continue;
        const auto before = fs::last_write_time(entry.path());
        fs::last_write_time(entry.path(), before + std::chrono::seconds(1));
        EXPECT_THAT(refusal(options, "out"),
                    AllOf(HasSubstr("unfinished run"), HasSubstr("files of MODEL")));
        fs::last_write_time(entry.path(), before);
    }
    // Numbers of the network are not in the weights' files.
    const std::string config = read_text_file(source() / "config.json", Bytes{1} << 20).value();
    Json other = Json::parse(config);
    other["text_config"]["routed_scaling_factor"] = 1.25;
    ASSERT_TRUE(write_text_file(source() / "config.json", other.dump()).ok());
    EXPECT_THAT(refusal(options, "out"),
                AllOf(HasSubstr("unfinished run"), HasSubstr("config.json of MODEL")));
    ASSERT_TRUE(write_text_file(source() / "config.json", config).ok());
    // Nor does anybody know what a damaged description described.
    const fs::path description = out("out") / ".quantize/run.json";
    const std::string run = read_text_file(description, Bytes{1} << 20).value();
    for (const char* damaged : {"", "[]", "{\"format\": "}) {
        ASSERT_TRUE(write_text_file(description, damaged).ok());
        EXPECT_THAT(refusal(options, "out"), AllOf(HasSubstr("run.json: is damaged"),
                                                   HasSubstr("remove"), HasSubstr(".quantize")));
    }
    ASSERT_TRUE(write_text_file(description, run).ok());
    EXPECT_EQ(refusal(options, "out"), "");
}

// The card of a large model takes hours: a run that was stopped while it was measured comes back to
// it, and to nothing before it.
TEST_F(CalibratedQuantize, ARunStoppedBehindItsLastWeightComesBackToItsCard) {
    write(model_of(14, 3));
    for (const bool sharded : {false, true}) {
        QuantizeOptions options = options_of(random_texts(15, 3, 80));
        options.shard_limit = sharded ? 200'000 : Bytes{5} << 30;
        const std::string whole = sharded ? "sharded" : "joined", name = whole + " again";
        run(options, whole);
        int measured = 0;
        options.finish = [&](const QuantizeReport& report) -> Status {
            EXPECT_EQ(report.calibration_texts, 3u);
            EXPECT_TRUE(Checkpoint::open(out(name)).ok());
            if (++measured < 3) return Error(ErrorCode::io, "no room for the card");
            return write_text_file(out(name) / "QUALITY.md", "good");
        };
        for (int stop = 0; stop < 2; ++stop) {
            const auto stopped = quantize(source(), out(name), options);
            ASSERT_FALSE(stopped.ok());
            EXPECT_EQ(stopped.error().message(), "no room for the card");
        }
        run(options, name);
        EXPECT_EQ(measured, 3);
        auto made = content(out(name));
        EXPECT_EQ(made.erase("QUALITY.md"), 1u);
        EXPECT_EQ(made, content(out(whole)));
        // Whole now: nothing of it is done again.
        EXPECT_FALSE(quantize(source(), out(name), options).ok());
        EXPECT_EQ(measured, 3);
    }
}

TEST_F(CalibratedQuantize, AnotherRunDoesNotGoOnFromAnUnfinishedOne) {
    testing::GTEST_FLAG(death_test_style) = "fast";
    write(model_of(17));
    QuantizeOptions options = options_of(random_texts(18, 4, 80));
    EXPECT_EXIT(
        {
            QuantizeOptions stopped = options;
            std::size_t done = 0;
            stopped.progress = [&](Bytes, Bytes) {
                if (++done == 60) std::_Exit(7);
            };
            (void)quantize(source(), out("out"), stopped);
            std::_Exit(0);
        },
        testing::ExitedWithCode(7), "");
    QuantizeOptions other = options;
    other.calibration->damping = 0.5;
    EXPECT_THAT(refusal(other, "out"), AllOf(HasSubstr("unfinished run"), HasSubstr("damping")));
    other = options_of(random_texts(19, 4, 80));
    EXPECT_THAT(refusal(other, "out"), HasSubstr("calibration texts"));
    other = options;
    other.keep = {"*.experts.0.*"};
    EXPECT_THAT(refusal(other, "out"), HasSubstr("keep"));
    EXPECT_EQ(refusal(options, "out"), "");
    EXPECT_THAT(refusal(options, "out"), HasSubstr("there is a checkpoint already"));
}

TEST_F(CalibratedQuantize, LayersOneByOneAreTheNetwork) {
    write(model_of(20));
    const auto checkpoint = Checkpoint::open(source());
    ASSERT_TRUE(checkpoint.ok());
    const model::ModelConfig& config = (*checkpoint)->config();
    auto texts = random_texts(21, 4, 700);
    // Two pictures of four tokens each, the second over the end of a step of 256 rows.
    for (const std::uint32_t first : {3u, 254u}) {
        texts[1].ids.resize(400, TokenId(1));
        texts[1].images.push_back(random_picture(first));
    }
    ReplacedWeights weights(**checkpoint);
    fs::create_directory(out("state"));
    LayerFiles files{out("state")};
    LayeredNetwork layered(config, weights, texts, files, 2);
    ASSERT_TRUE(layered.embed().ok());
    for (std::size_t layer = 0; layer < config.layers(); ++layer) {
        ASSERT_TRUE(layered.attend(layer, {}).ok());
        const Status status = layered.feed_forward({}, true);
        ASSERT_TRUE(status.ok()) << status.error().message();
        layered.leave();
    }
    const auto streams = RowFile::open(files.streams(config.layers()),
                                       config.streams * config.hidden, layered.tokens());
    ASSERT_TRUE(streams.ok());

    const auto pictures = CalibrationPictures::encode(texts, config, **checkpoint, 1);
    ASSERT_TRUE(pictures.ok()) << pictures.error().message();
    const auto backend = *ops::make_cpu_backend({1, ops::Arithmetic::standard, ""});
    const std::size_t longest = 704;
    const auto network = *model::Network::load(config, **checkpoint, *backend,
                                               {.max_rows = longest, .max_logit_rows = 1});
    ASSERT_TRUE(network->set_taps({config.layers() - 1}).ok());
    const auto caches = *cache::CacheStore::create(cache::CacheShape::of(config, DType::bf16),
                                                   cache::pages_for(longest), 1, *backend);
    std::vector<PageId> pages;
    for (std::uint32_t page = 0; page < cache::pages_for(longest); ++page)
        pages.push_back(PageId(page));
    std::size_t first = 0;
    for (const CalibrationText& text : texts) {
        const std::size_t length = text.ids.size();
        ops::SequenceRows sequence;
        sequence.row_count = sequence.commit_rows = static_cast<std::uint32_t>(length);
        sequence.pages = pages;
        ops::RowBatch batch;
        batch.numeric_class = ops::NumericClass::prefill;
        batch.sequences = {&sequence, 1};
        batch.tokens = text.ids;
        const auto overrides = pictures->rows(text, 0, length);
        ASSERT_EQ(overrides.size(), text.images.size() * 4);
        batch.overrides = overrides;
        ASSERT_TRUE(network->forward(batch, caches->views()).ok());
        std::vector<float> expected(length * config.hidden);
        backend->read(network->tap(0), expected.data());
        std::vector<float> rows(length * config.streams * config.hidden);
        ASSERT_TRUE(
            streams->read(first, {rows.data(), length, config.streams * config.hidden}).ok());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            double sum = 0, size = 0;
            for (std::size_t stream = 0; stream < config.streams; ++stream) {
                const double value =
                    rows[(i / config.hidden * config.streams + stream) * config.hidden +
                         i % config.hidden];
                sum += value / static_cast<double>(config.streams);
                size += std::fabs(value);
            }
            ASSERT_NEAR(expected[i], sum, 1e-6 * size) << i;
        }
        first += length;
    }
}

}  // namespace
}  // namespace percheron::tools
