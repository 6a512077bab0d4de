#include "core/direct_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/temporary_folder.h"

namespace percheron {
namespace {

constexpr Bytes block = DirectFile::block;

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory blocks_of(Bytes bytes) {
    return Memory(static_cast<std::byte*>(std::aligned_alloc(block, bytes)));
}

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t count) {
    std::vector<std::byte> bytes(count);
    for (std::byte& byte : bytes)
        byte = static_cast<std::byte>(random());
    return bytes;
}

void write(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
}

// Any range of a file has the bytes that were written there: odd offsets, lengths around the edges
// of blocks, the last block that is none.
TEST(DirectFile, AnyRangeHasItsBytes) {
    std::mt19937 random(3);
    const tests::TemporaryFolder folder;
    for (const Bytes size : {Bytes{1}, block - 1, block, block + 1, 7 * block, 9 * block + 513}) {
        const std::filesystem::path path = folder.path() / std::to_string(size);
        const std::vector<std::byte> stored = random_bytes(random, size);
        write(path, stored);
        const DirectFile file = DirectFile::open(path).value();
        for (int repeat = 0; repeat < 300; ++repeat) {
            // Both ends near a block's edge, or anywhere.
            const auto place = [&]() -> Bytes {
                const Bytes edge = random() % (size / block + 1) * block;
                const Bytes at = random() % 2 == 0 ? random() % size
                                                   : edge + random() % 3 - std::min<Bytes>(edge, 1);
                return std::min(at, size);
            };
            const Bytes a = place(), b = place();
            const Bytes first = std::min(a, b), bytes = std::max(a, b) - first;
            const Bytes room = DirectFile::room_for(bytes);
            const Memory memory = blocks_of(room);
            const auto read = file.read(first, bytes, {memory.get(), room});
            ASSERT_TRUE(read.ok()) << read.error().message();
            ASSERT_EQ(read->size(), bytes);
            ASSERT_GE(read->data(), memory.get());
            ASSERT_LE(read->data() + bytes, memory.get() + room);
            ASSERT_EQ(std::memcmp(read->data(), stored.data() + first, bytes), 0)
                << first << " " << bytes << " of " << size;
        }
    }
}

TEST(DirectFile, WhatIsMissingIsNamed) {
    const tests::TemporaryFolder folder;
    const auto none = DirectFile::open(folder.path() / "none");
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code(), ErrorCode::not_found);
    EXPECT_NE(none.error().message().find("/none"), std::string::npos);

    std::mt19937 random(4);
    const std::filesystem::path path = folder.path() / "short";
    write(path, random_bytes(random, 3 * block));
    const DirectFile file = DirectFile::open(path).value();
    const Memory memory = blocks_of(8 * block);
    for (const Bytes left : {2 * block, 2 * block + 9, Bytes{0}}) {
        std::filesystem::resize_file(path, left);
        const auto read = file.read(block + 1, 2 * block - 1, {memory.get(), 8 * block});
        ASSERT_FALSE(read.ok());
        EXPECT_EQ(read.error().code(), ErrorCode::corrupt);
        EXPECT_NE(read.error().message().find("shorter"), std::string::npos);
        EXPECT_NE(read.error().message().find("/short"), std::string::npos);
    }
}

// Short reads and signals change nothing, and every read begins where a direct one may.
TEST(DirectFile, GoesOnBehindShortReads) {
    std::mt19937 random(5);
    int short_reads = 0;
    for (int repeat = 0; repeat < 500; ++repeat) {
        const Bytes size = 1 + random() % (12 * block);
        const std::vector<std::byte> stored = random_bytes(random, size);
        const Bytes offset = random() % (size / block + 1) * block;
        const Bytes needed = size - offset;
        std::vector<std::byte> out((needed + block - 1) / block * block);
        const auto reader = [&](std::byte* to, Bytes bytes, Bytes at) -> ssize_t {
            EXPECT_EQ(at % block, 0u);
            EXPECT_EQ(bytes % block, 0u);
            EXPECT_LE(to + bytes, out.data() + out.size());
            if (random() % 8 == 0) {
                errno = EINTR;
                return -1;
            }
            Bytes count = std::min(bytes, size - at);
            // At least a block comes unless the file ends.
            if (count > block && random() % 2 == 0) {
                count = block + random() % (count - block);
                ++short_reads;
            }
            std::memcpy(to, stored.data() + at, count);
            return static_cast<ssize_t>(count);
        };
        ASSERT_TRUE(read_whole_blocks(reader, "file", offset, out, needed).ok());
        ASSERT_EQ(std::memcmp(out.data(), stored.data() + offset, needed), 0);
    }
    EXPECT_GT(short_reads, 200);
}

TEST(DirectFile, ReadersFaultsAreNamed) {
    std::vector<std::byte> out(4 * block);
    int calls = 0;
    const auto broken = [&](std::byte*, Bytes, Bytes) -> ssize_t {
        errno = EIO;
        return ++calls == 1 ? static_cast<ssize_t>(block) : -1;
    };
    const Status fault = read_whole_blocks(broken, "disk/file", 0, out, 4 * block);
    ASSERT_FALSE(fault.ok());
    EXPECT_EQ(fault.error().code(), ErrorCode::io);
    EXPECT_NE(fault.error().message().find("disk/file: cannot read: "), std::string::npos);
    EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace percheron
