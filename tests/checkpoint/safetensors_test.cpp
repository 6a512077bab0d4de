#include "checkpoint/safetensors.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/small_model.h"

namespace percheron::checkpoint::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr DType every_type[] = {DType::f64,     DType::f32,     DType::bf16,    DType::f16,
                                DType::f8_e4m3, DType::f8_e5m2, DType::f8_e8m0, DType::i64,
                                DType::u64,     DType::i32,     DType::u32,     DType::i16,
                                DType::u16,     DType::i8,      DType::u8,      DType::boolean};

std::string random_name(std::mt19937_64& random) {
    static const std::string letters = "abcXYZ019._-/ \"\\\n\t\xc3\xa9\xe4\xb8\xad";
    std::string name;
    const std::size_t length = 1 + random() % 40;
    while (name.size() < length) {
        const std::size_t at = random() % letters.size();
        if ((letters[at] & 0x80) == 0) name += letters[at];
        if (random() % 16 == 0) name += "\xc3\xa9\xe4\xb8\xad";  // whole characters only
    }
    return name;
}

TestTensors random_tensors(std::mt19937_64& random) {
    TestTensors tensors;
    const std::size_t count = random() % 20;
    for (std::size_t i = 0; i < count; ++i) {
        TestTensor tensor;
        tensor.dtype = every_type[random() % std::size(every_type)];
        const std::size_t rank = random() % 5;
        for (std::size_t axis = 0; axis < rank; ++axis)
            tensor.shape.push_back(random() % 9);
        tensor.bytes.resize(product(tensor.shape) * size_of(tensor.dtype));
        for (std::byte& byte : tensor.bytes)
            byte = static_cast<std::byte>(random());
        tensors[random_name(random)] = std::move(tensor);
    }
    return tensors;
}

// Writes the tensors in the order given.
void write_tensors(const fs::path& path, const TestTensors& tensors,
                   const std::vector<std::string>& order) {
    std::vector<TensorHeader> headers;
    for (const std::string& name : order) {
        headers.push_back({name, tensors.at(name).dtype, tensors.at(name).shape});
    }
    auto writer = SafetensorsWriter::create(path, headers);
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    for (const std::string& name : order) {
        ASSERT_TRUE(writer->write(name, tensors.at(name).bytes).ok());
    }
    const Status status = writer->finish();
    ASSERT_TRUE(status.ok()) << status.error().message();
}

TEST(Safetensors, WhatIsWrittenIsReadBackAlignedWhateverTheOrder) {
    const TemporaryFolder folder;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        std::mt19937_64 random(seed);
        const TestTensors tensors = random_tensors(random);
        std::vector<std::string> order;
        for (const auto& [name, tensor] : tensors)
            order.push_back(name);
        write_tensors(folder.path() / "a.safetensors", tensors, order);
        std::shuffle(order.begin(), order.end(), random);
        write_tensors(folder.path() / "b.safetensors", tensors, order);
        auto first = SafetensorsFile::open(folder.path() / "a.safetensors");
        auto second = SafetensorsFile::open(folder.path() / "b.safetensors");
        ASSERT_TRUE(first.ok()) << first.error().message();
        ASSERT_TRUE(second.ok()) << second.error().message();
        const auto bytes = first->mapping().bytes();
        EXPECT_TRUE(std::ranges::equal(bytes, second->mapping().bytes())) << seed;
        ASSERT_EQ(first->tensors().size(), tensors.size());
        for (const StoredTensor& stored : first->tensors()) {
            const TestTensor& expected = tensors.at(stored.name);
            EXPECT_EQ(stored.dtype, expected.dtype);
            EXPECT_EQ(stored.shape, expected.shape);
            EXPECT_TRUE(std::ranges::equal(stored.bytes, expected.bytes)) << stored.name;
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(stored.bytes.data()) % size_of(stored.dtype),
                      0u);
        }
    }
}

TEST(SafetensorsWriter, LeavesNothingBehindUnlessFinished) {
    const TemporaryFolder folder;
    const fs::path path = folder.path() / "model.safetensors";
    const std::vector<std::byte> bytes(8);
    {
        auto writer =
            SafetensorsWriter::create(path, {{"a", DType::f32, {2}}, {"b", DType::u8, {8}}});
        ASSERT_TRUE(writer.ok());
        ASSERT_TRUE(writer->write("a", bytes).ok());
        EXPECT_THAT(writer->finish().error().message(), HasSubstr("tensor b"));
        EXPECT_THAT(writer->write("c", bytes).error().message(), HasSubstr("tensor c"));
        EXPECT_THAT(writer->write("b", std::span(bytes).first(7)).error().message(),
                    HasSubstr("tensor b"));
    }
    EXPECT_TRUE(fs::is_empty(folder.path()));
    EXPECT_FALSE(
        SafetensorsWriter::create(path, {{"a", DType::f32, {2}}, {"a", DType::u8, {8}}}).ok());
    EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SafetensorsWriter, UnitsStayTogetherAndShardsWithinTheLimit) {
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 100; ++trial) {
        std::vector<std::vector<TensorHeader>> units;
        for (std::size_t i = 0; i < 30; ++i) {
            units.emplace_back();
            for (std::size_t part = 0; part < 1 + random() % 3; ++part) {
                std::string name("t");
                name.append(std::to_string(i)).append(".").append(std::to_string(part));
                units.back().push_back({name, DType::u8, {random() % 50}});
            }
        }
        const Bytes limit = 20 + random() % 200;
        const auto shards = join_into_shards(units, limit);
        std::vector<std::string> joined;
        for (const auto& shard : shards) {
            Bytes size = 0;
            std::size_t members = 0;
            for (const TensorHeader& tensor : shard) {
                size += tensor.bytes();
                members += tensor.name.ends_with(".0") ? 1 : 0;
                joined.push_back(tensor.name);
            }
            EXPECT_TRUE(shard.front().name.ends_with(".0"));
            EXPECT_TRUE(size <= limit || members == 1);
        }
        std::vector<std::string> expected;
        for (const auto& unit : units) {
            for (const TensorHeader& tensor : unit)
                expected.push_back(tensor.name);
        }
        EXPECT_EQ(joined, expected);
    }
}

// A file of a given header and `data` zero bytes.
std::string raw_file(const std::string& header, std::size_t data,
                     std::uint64_t claimed = ~std::uint64_t{0}) {
    const std::uint64_t length = claimed == ~std::uint64_t{0} ? header.size() : claimed;
    std::string file;
    for (int i = 0; i < 8; ++i)
        file += static_cast<char>(length >> (8 * i));
    return file + header + std::string(data, '\0');
}

std::string refusal(const std::string& content) {
    const TemporaryFolder folder;
    const fs::path path = folder.path() / "broken.safetensors";
    EXPECT_TRUE(write_text_file(path, content).ok());
    auto file = SafetensorsFile::open(path);
    if (file.ok()) return "";
    EXPECT_THAT(file.error().message(), HasSubstr(path.string()));
    return file.error().message();
}

TEST(Safetensors, EveryKindOfDamageIsNamed) {
    const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    ASSERT_EQ(refusal(raw_file(good, 8)), "");
    EXPECT_EQ(refusal(raw_file("{}", 0)), "");
    EXPECT_EQ(refusal(raw_file(R"({"__metadata__":{"format":"pt"}}   )", 0)), "");

    EXPECT_THAT(refusal(""), HasSubstr("too short"));
    EXPECT_THAT(refusal("1234567"), HasSubstr("too short"));
    EXPECT_THAT(refusal(raw_file(good, 8, 9'000'000'000)), HasSubstr("not a safetensors file"));
    EXPECT_THAT(refusal(raw_file(good, 8, good.size() + 9)), HasSubstr("past the end"));
    EXPECT_THAT(refusal(raw_file("", 0)), HasSubstr("not JSON"));
    EXPECT_THAT(refusal(raw_file("{\"a\":", 8)), HasSubstr("not JSON"));
    EXPECT_THAT(refusal(raw_file("[1]", 0)), HasSubstr("not an object"));
    EXPECT_THAT(refusal(raw_file(std::string(5000, '['), 0)), HasSubstr("not JSON"));
    EXPECT_THAT(refusal(raw_file(good, 7)), AllOf(HasSubstr("tensor a"), HasSubstr("cut short")));
    EXPECT_THAT(refusal(raw_file(good, 9)), HasSubstr("after the last tensor"));
    EXPECT_THAT(refusal(raw_file("{}", 4)), HasSubstr("after the last tensor"));

    const auto entry = [](const std::string& fields) {
        return std::string("{\"a\":").append(fields).append("}");
    };
    const std::vector<std::pair<std::string, std::string>> cases = {
        {entry("7"), "not an object"},
        {entry(R"({"shape":[2],"data_offsets":[0,8]})"), "dtype"},
        {entry(R"({"dtype":"F32","data_offsets":[0,8]})"), "shape is missing"},
        {entry(R"({"dtype":"F32","shape":[2]})"), "data_offsets are missing"},
        {entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), "beside"},
        {entry(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), "'F33' is unknown"},
        {entry(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})"), "dtype"},
        {entry(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "not a list"},
        {entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "not a size"},
        {entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "not a size"},
        {entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "needs 12 bytes but 8"},
        {entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
         "larger than any file"},
        {entry(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8]})"),
         "larger than any file"},
        {entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "two numbers"},
        {entry(R"({"dtype":"F32","shape":[2],"data_offsets":[-1,8]})"), "two numbers"},
        {entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "reach outside"},
        {entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})"),
         "reach outside"},
    };
    for (const auto& [header, expected] : cases) {
        EXPECT_THAT(refusal(raw_file(header, 8)), AllOf(HasSubstr("tensor a"), HasSubstr(expected)))
            << header;
    }
    EXPECT_THAT(refusal(raw_file(R"({"__metadata__":{"a":1}})", 0)), HasSubstr("beside strings"));
    EXPECT_THAT(refusal(raw_file(R"({"__metadata__":1})", 0)), HasSubstr("not an object"));
}

TEST(Safetensors, OverlapsHolesAndDoublesAreRefused) {
    const auto two = [](const std::string& second, const std::string& first_range,
                        const std::string& second_range) {
        std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)";
        header.append(first_range).append("},\"").append(second);
        header.append(R"(":{"dtype":"U8","shape":[4],"data_offsets":)");
        return header.append(second_range).append("}}");
    };
    EXPECT_EQ(refusal(raw_file(two("b", "[4,8]", "[0,4]"), 8)), "");
    EXPECT_THAT(refusal(raw_file(two("b", "[0,4]", "[2,6]"), 6)),
                AllOf(HasSubstr("tensor b"), HasSubstr("overlap")));
    EXPECT_THAT(refusal(raw_file(two("b", "[0,4]", "[0,4]"), 4)), HasSubstr("overlap"));
    EXPECT_THAT(refusal(raw_file(two("b", "[0,4]", "[5,9]"), 9)),
                AllOf(HasSubstr("tensor b"), HasSubstr("hole")));
    EXPECT_THAT(refusal(raw_file(two("b", "[1,5]", "[5,9]"), 9)), HasSubstr("hole"));
    EXPECT_THAT(refusal(raw_file(two("a", "[0,4]", "[4,8]"), 8)), HasSubstr("listed twice"));
}

TEST(Safetensors, WhatIsNoRegularFileIsRefused) {
    const TemporaryFolder folder;
    EXPECT_EQ(SafetensorsFile::open(folder.path() / "absent").error().code(), ErrorCode::not_found);
    EXPECT_EQ(SafetensorsFile::open(folder.path()).error().code(), ErrorCode::io);
    const fs::path pipe = folder.path() / "pipe.safetensors";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_THAT(SafetensorsFile::open(pipe).error().message(), HasSubstr("not a regular file"));
}

TEST(Safetensors, TensorsOfAFileWithOddOffsetsAreStillReadRight) {
    // Two bytes of U8 before the floats, and a header whose length is odd.
    std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})";
    if (header.size() % 2 == 0) header += ' ';
    std::string file = raw_file(header, 7);
    const float value = 1.5f;
    std::memcpy(file.data() + file.size() - 4, &value, 4);
    const TemporaryFolder folder;
    ASSERT_TRUE(write_text_file(folder.path() / "odd.safetensors", file).ok());
    auto opened = SafetensorsFile::open(folder.path() / "odd.safetensors");
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    float read = 0;
    std::memcpy(&read, opened->tensors()[1].bytes.data(), 4);
    EXPECT_EQ(read, value);
}

}  // namespace
}  // namespace percheron::checkpoint::test
