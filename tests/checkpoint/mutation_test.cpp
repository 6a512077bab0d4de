// Random damage to small checkpoints: whatever the bytes say, opening ends, says which file is
// wrong or gives a checkpoint whose every tensor can be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/formats.h"
#include "checkpoint/small_model.h"

namespace percheron::checkpoint::test {
namespace {

using testing::HasSubstr;

// Reads every tensor the checkpoint claims to have.
void read_everything(Checkpoint& checkpoint) {
    const model::ModelConfig& config = checkpoint.config();
    std::vector<ExpectedTensor> expected = outer_tensors(config);
    for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i) {
        for (ExpectedTensor& tensor : layer_tensors(config, i))
            expected.push_back(std::move(tensor));
    }
    if (config.has_vision) {
        for (ExpectedTensor& tensor : vision_tensors(config.vision))
            expected.push_back(std::move(tensor));
    }
    std::vector<float> values;
    for (const ExpectedTensor& tensor : expected) {
        if (tensor.role == TensorRole::plain) {
            values.resize(product(tensor.shape));
            const Status status = checkpoint.vector(tensor.name, values);
            ASSERT_TRUE(status.ok()) << status.error().message();
            continue;
        }
        const auto matrix =
            checkpoint.matrix(stem_of(tensor.name), tensor.shape[0], tensor.shape[1]);
        if (!matrix.ok()) {
            // Offsets that are wrong but possible may make any bytes FP8 codes.
            ASSERT_THAT(matrix.error().message(), HasSubstr("is NaN"));
            continue;
        }
        values.resize(matrix->k);
        for (std::size_t row = 0; row < matrix->n; ++row)
            ops::dequantise_row(*matrix, row, values.data());
    }
}

// Opens a damaged folder.  What is refused names a file of it, or the folder and the tensor that is
// in none of its files.
void open_damaged(const fs::path& folder, std::size_t& refused, const std::string& damage) {
    auto checkpoint = Checkpoint::open(folder);
    if (checkpoint.ok()) {
        read_everything(**checkpoint);
        return;
    }
    ++refused;
    EXPECT_THAT(checkpoint.error().message(),
                testing::AnyOf(testing::StartsWith(folder.string() + "/"),
                               testing::StartsWith(folder.string() + ": tensor ")))
        << damage;
}

// A change of one to four bytes somewhere in the first `limit` bytes.
std::string mutate(std::string text, std::size_t limit, std::mt19937_64& random) {
    static const std::string alphabet = "0123456789{}[]\",:-.eE \x00\xff";
    const std::size_t changes = 1 + random() % 4;
    for (std::size_t i = 0; i < changes; ++i) {
        const std::size_t at = random() % std::min(limit, text.size());
        switch (random() % 4) {
            case 0:
                text[at] = static_cast<char>(random());
                break;
            case 1:
                text[at] = alphabet[random() % alphabet.size()];
                break;
            case 2:
                text.erase(at, 1 + random() % 8);
                break;
            default:
                text.insert(at, 1, alphabet[random() % alphabet.size()]);
                break;
        }
    }
    return text;
}

SmallModel packed_model() {
    return small_model(1, small_config(), [](const ExpectedTensor& tensor) {
        return tensor.role == TensorRole::routed_expert && tensor.shape[1] % 16 == 0
                   ? WeightFormat::nvfp4
                   : WeightFormat::fp8_block;
    });
}

TEST(Mutations, OfASafetensorsHeader) {
    const TemporaryFolder folder;
    packed_model().write(folder.path());
    const fs::path path = folder.path() / "model.safetensors";
    const std::string good = *read_text_file(path, 1u << 30);
    std::uint64_t header = 0;
    std::memcpy(&header, good.data(), 8);
    std::mt19937_64 random(1);
    std::size_t refused = 0;
    for (int trial = 0; trial < 2000; ++trial) {
        const std::string bad = mutate(good, 8 + header, random);
        ASSERT_TRUE(write_text_file(path, bad).ok());
        open_damaged(folder.path(), refused, "trial " + std::to_string(trial));
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(refused, 1400u);
}

// Whole fields rather than bytes: every value of a random entry replaced by one that is almost
// right.
TEST(Mutations, OfTheFieldsOfAHeader) {
    const TemporaryFolder folder;
    packed_model().write(folder.path());
    const fs::path path = folder.path() / "model.safetensors";
    const std::string good = *read_text_file(path, 1u << 30);
    std::uint64_t length = 0;
    std::memcpy(&length, good.data(), 8);
    Json header = Json::parse(good.substr(8, length));
    header.erase("__metadata__");
    std::vector<std::string> names;
    for (const auto& entry : header.items())
        names.push_back(entry.key());
    const std::vector<Json> values = {0,
                                      1,
                                      -1,
                                      1u << 31,
                                      ~std::uint64_t{0},
                                      1e30,
                                      "F32",
                                      "BF16",
                                      "F8_E4M3",
                                      "I64",
                                      "U8",
                                      Json(),
                                      Json::array(),
                                      Json::object(),
                                      {0, 0},
                                      {0, 4},
                                      {16, 16},
                                      {1, 1, 1, 1},
                                      true,
                                      "\u00e9"};
    std::mt19937_64 random(2);
    std::size_t refused = 0;
    for (int trial = 0; trial < 1500; ++trial) {
        Json changed = header;
        const std::string& name = names[random() % names.size()];
        const char* field = std::array{"dtype", "shape", "data_offsets"}[random() % 3];
        Json& place = changed[name][field];
        if (place.is_array() && !place.empty() && random() % 2 == 0) {
            Json& number = place[random() % place.size()];
            number = random() % 2 == 0 ? Json(number.get<std::uint64_t>() + random() % 5 - 2)
                                       : values[random() % values.size()];
        } else if (random() % 4 == 0) {
            const std::string& other = names[random() % names.size()];
            std::swap(changed[name], changed[other]);
        } else {
            place = values[random() % values.size()];
        }
        const std::string text = changed.dump();
        std::string file;
        for (int i = 0; i < 8; ++i)
            file += static_cast<char>(text.size() >> (8 * i));
        file.append(text).append(good, 8 + length);
        ASSERT_TRUE(write_text_file(path, file).ok());
        open_damaged(folder.path(), refused, name + " " + field);
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(refused, 1000u);
}

TEST(Mutations, OfAnIndex) {
    const TemporaryFolder folder;
    const SmallModel small = packed_model();
    small.write(folder.path(), 3,
                [](const std::string& name) { return std::hash<std::string>()(name) % 3; });
    const fs::path path = folder.path() / "model.safetensors.index.json";
    const std::string good = *read_text_file(path, 1u << 30);
    std::mt19937_64 random(3);
    std::size_t refused = 0;
    for (int trial = 0; trial < 500; ++trial) {
        ASSERT_TRUE(write_text_file(path, mutate(good, good.size(), random)).ok());
        open_damaged(folder.path(), refused, "trial " + std::to_string(trial));
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(refused, 300u);
}

TEST(Mutations, OfAConfig) {
    const TemporaryFolder folder;
    const SmallModel small = packed_model();
    small.write(folder.path());
    std::mt19937_64 random(4);
    std::size_t refused = 0;
    for (const char* name : {"config.json", "generation_config.json"}) {
        const fs::path path = folder.path() / name;
        const std::string good = *read_text_file(path, 1u << 30);
        for (int trial = 0; trial < 500; ++trial) {
            ASSERT_TRUE(write_text_file(path, mutate(good, good.size(), random)).ok());
            open_damaged(folder.path(), refused, "trial " + std::to_string(trial));
            if (HasFatalFailure()) return;
        }
        ASSERT_TRUE(write_text_file(path, good).ok());
    }
    EXPECT_GT(refused, 500u);
    // Numbers rather than bytes: sizes the tensors do not have.
    std::vector<Json::json_pointer> numbers;
    const Json flat = small.config.flatten();
    for (const auto& entry : flat.items()) {
        if (entry.value().is_number()) numbers.emplace_back(entry.key());
    }
    for (int trial = 0; trial < 500; ++trial) {
        Json config = small.config;
        const std::size_t at = random() % numbers.size();
        Json& number = config[numbers[at]];
        const std::uint64_t extremes[] = {0,    1,     2,        3,        17,
                                          1000, 65536, 1u << 24, 1u << 31, std::uint64_t{1} << 62};
        number = extremes[random() % std::size(extremes)];
        ASSERT_TRUE(write_text_file(folder.path() / "config.json", config.dump()).ok());
        open_damaged(folder.path(), refused, numbers[at].to_string());
        if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace percheron::checkpoint::test
