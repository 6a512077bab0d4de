// Whose files of the prefix cache may be read: only those of the same weights and program.
#include "tools/model_identity.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "ops/cpu/cpu_backend.h"
#include "support/temporary_folder.h"
#include "tools/load_engine.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;
using tests::TemporaryFolder;

std::string identity_of(const fs::path& model,
                        ops::Arithmetic arithmetic = ops::Arithmetic::standard) {
    return model_identity(model, *ops::make_cpu_backend({1, arithmetic, {}}).value()).value();
}

void turn_a_bit(const fs::path& path, std::uint64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
}

TEST(ModelIdentity, IsThatOfEveryByteOfASmallFolder) {
    const TemporaryFolder place;
    const fs::path model = place.path() / "model";
    fs::create_directory(model);
    std::mt19937 random(1);
    for (const char* name : {"config.json", "a.safetensors", "b.safetensors"}) {
        std::ofstream file(model / name, std::ios::binary);
        for (int i = 0; i < 3000; ++i)
            file.put(static_cast<char>(random()));
    }
    std::ofstream(model / "README.md") << "words";
    std::set<std::string> seen{identity_of(model)};
    EXPECT_EQ(identity_of(model), *seen.begin());
    fs::copy(model, place.path() / "copy");
    EXPECT_EQ(identity_of(place.path() / "copy"), *seen.begin());
    std::ofstream(model / "README.md") << "other words";
    EXPECT_EQ(identity_of(model), *seen.begin());
    for (int round = 0; round < 30; ++round) {
        const char* const names[] = {"config.json", "a.safetensors", "b.safetensors"};
        turn_a_bit(model / names[round % 3], random() % 3000);
        EXPECT_TRUE(seen.insert(identity_of(model)).second) << round;
    }
    fs::rename(model / "b.safetensors", model / "c.safetensors");
    EXPECT_TRUE(seen.insert(identity_of(model)).second);
    EXPECT_TRUE(seen.insert(identity_of(model, ops::Arithmetic::fp32)).second);
    EXPECT_FALSE(model_identity(place.path() / "nothing", *ops::make_cpu_backend({}).value()).ok());
}

TEST(ModelIdentity, OfLargeFilesIsThatOfTheirSizeTimeAndSamples) {
    const TemporaryFolder place;
    const fs::path file = place.path() / "large.safetensors";
    std::ofstream(file) << "header";
    const std::uint64_t size = (std::uint64_t{64} << 20) + 4096;
    fs::resize_file(file, size);
    const auto time = fs::last_write_time(file);
    const std::string before = identity_of(place.path());
    EXPECT_EQ(identity_of(place.path()), before);
    for (const std::uint64_t at : {std::uint64_t{3}, std::uint64_t{900'000}, size - 1}) {
        turn_a_bit(file, at);
        fs::last_write_time(file, time);
        EXPECT_NE(identity_of(place.path()), before) << at;
        turn_a_bit(file, at);
        fs::last_write_time(file, time);
        EXPECT_EQ(identity_of(place.path()), before) << at;
    }
    fs::last_write_time(file, time + std::chrono::seconds(1));
    EXPECT_NE(identity_of(place.path()), before);
    fs::resize_file(file, size + 1);
    fs::last_write_time(file, time);
    EXPECT_NE(identity_of(place.path()), before);
}

TEST(ModelIdentity, OfAMadeUpModelIsItsDescription) {
    EXPECT_EQ(identity_of("synth:layers=2,seed=1"), identity_of("synth:layers=2,seed=1"));
    EXPECT_NE(identity_of("synth:layers=2,seed=1"), identity_of("synth:layers=2,seed=2"));
}

TEST(PrefixDiskSize, LeavesHalfOfASmallDiskAndIsNoLargerThanItNeedBe) {
    constexpr Bytes gibibyte = Bytes{1} << 30;
    EXPECT_EQ(default_prefix_disk_size(1000 * gibibyte, 0, 1), 16 * gibibyte);
    EXPECT_EQ(default_prefix_disk_size(10 * gibibyte, 0, 1), 5 * gibibyte);
    // What it holds already is not asked for twice.
    EXPECT_EQ(default_prefix_disk_size(6 * gibibyte, 4 * gibibyte, 1), 5 * gibibyte);
    // A full disk keeps no server from starting: the files wait for room.
    EXPECT_EQ(default_prefix_disk_size(0, 0, 7), 7u);
}

}  // namespace
}  // namespace percheron::tools
