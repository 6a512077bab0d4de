// The files of the prefix cache: what was written is read again after any end of the process,
// whatever else lies in the folder (C14 and C15 of docs/SCHEDULER.md).
#include "cache/tier_folder.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/files.h"
#include "support/quiet_log.h"
#include "support/temporary_folder.h"

namespace percheron::cache {
namespace {

namespace fs = std::filesystem;
using tests::TemporaryFolder;

constexpr Bytes page_bytes = 200, state_bytes = 700;

TierOptions options_of(const fs::path& folder, Bytes limit = Bytes{1} << 30) {
    TierOptions options;
    options.folder = folder;
    options.limit = limit;
    options.identity = "model A";
    options.page_bytes = page_bytes;
    options.state_bytes = state_bytes;
    return options;
}

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes)
        byte = static_cast<std::byte>(random());
    return bytes;
}

BlockKey key_of(std::uint64_t number) {
    return root_key("test", std::to_string(number));
}

Status write_plainly(const fs::path& path, std::span<const std::span<const std::byte>> parts) {
    std::ofstream out(path, std::ios::binary);
    for (const auto part : parts)
        out.write(reinterpret_cast<const char*>(part.data()),
                  static_cast<std::streamsize>(part.size()));
    return {};
}

// A folder with `paths` paths of `blocks` blocks in files of various lengths and a state at their
// ends, and all of it to compare with.
struct Content {
    std::map<BlockKey, std::vector<std::byte>> pages, states;

    void write(TierFolder& folder, std::mt19937& random, std::uint64_t path, std::uint32_t blocks) {
        BlockKey before = key_of(1000 * path);
        for (std::uint32_t done = 0; done < blocks;) {
            const std::uint32_t count = std::min<std::uint32_t>(1 + random() % 4, blocks - done);
            std::vector<BlockKey> keys;
            std::vector<std::span<const std::byte>> pieces;
            for (std::uint32_t i = 0; i < count; ++i) {
                keys.push_back(key_of(1000 * path + done + i + 1));
                auto& page = pages[keys.back()] = random_bytes(random, page_bytes);
                pieces.emplace_back(page);
            }
            ASSERT_TRUE(folder.write_pages(before, done == 0, keys, pieces).value());
            before = keys.back();
            done += count;
        }
        auto& state = states[before] = random_bytes(random, state_bytes);
        ASSERT_TRUE(folder.write_state(before, CheckpointKind::anchor, state).value());
    }
    // Everything that the folder says it has is what was written; how much that is.
    std::size_t check(TierFolder& folder) const {
        std::size_t found = 0;
        for (const auto& [key, bytes] : pages) {
            if (!folder.has_block(key)) continue;
            std::vector<std::byte> read(page_bytes);
            if (!folder.read_pages(std::span(&key, 1), read).ok()) continue;
            EXPECT_EQ(read, bytes);
            ++found;
        }
        for (const auto& [key, bytes] : states) {
            if (!folder.has_state(key)) continue;
            std::vector<std::byte> read(state_bytes);
            const auto kind = folder.read_state(key, read);
            if (!kind.ok()) continue;
            EXPECT_EQ(*kind, CheckpointKind::anchor);
            EXPECT_EQ(read, bytes);
            ++found;
        }
        return found;
    }
};

std::vector<fs::path> files_in(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (is_tier_name(entry.path())) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
}

TEST(TierFolder, ReadsWhatWasWrittenByAnotherProcess) {
    const TemporaryFolder place;
    std::mt19937 random(1);
    Content content;
    Bytes bytes = 0;
    {
        const auto folder = TierFolder::open(options_of(place.path() / "new" / "folder")).value();
        for (std::uint64_t path = 1; path <= 20; ++path)
            content.write(*folder, random, path, 1 + random() % 30);
        EXPECT_EQ(content.check(*folder), content.pages.size() + content.states.size());
        EXPECT_EQ(folder->entries(), 20u);
        bytes = folder->bytes();
    }
    const auto folder = TierFolder::open(options_of(place.path() / "new" / "folder")).value();
    EXPECT_EQ(content.check(*folder), content.pages.size() + content.states.size());
    EXPECT_EQ(folder->bytes(), bytes);
    EXPECT_EQ(folder->refused(), 0u);
    // Several at once, over the edges of files.
    std::vector<BlockKey> keys;
    std::vector<std::byte> wanted;
    for (std::uint64_t block = 1; folder->has_block(key_of(3000 + block)); ++block) {
        keys.push_back(key_of(3000 + block));
        const auto& page = content.pages[keys.back()];
        wanted.insert(wanted.end(), page.begin(), page.end());
    }
    std::vector<std::byte> read(wanted.size());
    ASSERT_TRUE(folder->read_pages(keys, read).ok());
    EXPECT_EQ(read, wanted);
    keys.push_back(key_of(77));
    read.resize(read.size() + page_bytes);
    EXPECT_EQ(folder->read_pages(keys, read).error().code(), ErrorCode::not_found);
}

// Every kind of damage to every file: what is damaged is not read and goes, the rest stays.
TEST(TierFolder, DamageOfEveryKindCostsTheFileAlone) {
    const tests::QuietLog quiet;
    enum class Way { turned_bit, cut, emptied, grown, replaced, swapped, header_bit, ways };
    std::mt19937 random(2);
    std::uint64_t noticed_at_open = 0, noticed_at_read = 0;
    for (int round = 0; round < 84; ++round) {
        const auto way = static_cast<Way>(round % static_cast<int>(Way::ways));
        const bool while_open = round % 2 == 0;
        const TemporaryFolder place;
        Content content;
        auto folder = TierFolder::open(options_of(place.path())).value();
        for (std::uint64_t path = 1; path <= 3; ++path)
            content.write(*folder, random, path, 4 + random() % 6);
        const std::vector<fs::path> files = files_in(place.path());
        const fs::path victim = files[random() % files.size()];
        const TierFile before = read_tier_file(victim).value();
        const std::size_t pieces = before.keys.size();
        std::string text;
        {
            std::ifstream in(victim, std::ios::binary);
            text.assign(std::istreambuf_iterator<char>(in), {});
        }
        const std::size_t header = before.header_bytes();
        switch (way) {
            case Way::turned_bit: {
                const std::size_t at = header + random() % (text.size() - header);
                text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
                break;
            }
            case Way::header_bit: {
                const std::size_t at = random() % header;
                text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
                break;
            }
            case Way::cut:
                text.resize(random() % text.size());
                break;
            case Way::emptied:
                text.clear();
                break;
            case Way::grown:
                text += std::string(1 + random() % 500, 'x');
                break;
            case Way::replaced:
                text = "not such a file at all";
                break;
            case Way::swapped:  // two pieces of equal length in each other's place
                if (pieces < 2) continue;
                std::swap_ranges(text.begin() + static_cast<std::ptrdiff_t>(header),
                                 text.begin() + static_cast<std::ptrdiff_t>(header + page_bytes),
                                 text.begin() + static_cast<std::ptrdiff_t>(header + page_bytes));
                break;
            case Way::ways:
                break;
        }
        std::ofstream(victim, std::ios::binary | std::ios::trunc) << text;
        if (!while_open) {
            folder.reset();
            folder = TierFolder::open(options_of(place.path())).value();
            noticed_at_open += folder->refused();
        }
        const std::size_t all = content.pages.size() + content.states.size();
        const std::size_t found = content.check(*folder);
        // A header that is sound in memory does not matter while the pieces are.
        const bool harmless = while_open && way == Way::header_bit;
        EXPECT_GE(found, all - pieces) << static_cast<int>(way);
        EXPECT_EQ(found < all, !harmless) << static_cast<int>(way);
        noticed_at_read += while_open ? folder->refused() : 0;
        if (!harmless) {
            EXPECT_EQ(folder->refused(), 1u);
            // And it can be written again.
            if (before.kind == TierFile::Kind::pages) {
                std::vector<std::span<const std::byte>> again;
                for (const BlockKey& key : before.keys)
                    again.emplace_back(content.pages[key]);
                EXPECT_TRUE(folder->write_pages(before.before, true, before.keys, again).value());
            } else {
                EXPECT_TRUE(folder
                                ->write_state(before.keys[0], CheckpointKind::anchor,
                                              content.states[before.keys[0]])
                                .value());
            }
            EXPECT_EQ(content.check(*folder), all);
        }
    }
    EXPECT_GT(noticed_at_open, 15u);
    EXPECT_GT(noticed_at_read, 15u);
}

TEST(TierFolder, LeavesForeignNewerAndUnknownFilesUnread) {
    const tests::QuietLog quiet;
    const TemporaryFolder place;
    std::mt19937 random(3);
    Content ours, theirs;
    {
        TierOptions other = options_of(place.path());
        other.identity = "model B";
        theirs.write(*TierFolder::open(other).value(), random, 1, 9);
    }
    const std::vector<fs::path> foreign = files_in(place.path());
    // One of them claims to be of a version to come.
    {
        std::fstream file(foreign.front(), std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(8);
        file.put(static_cast<char>(tier_file_version + 1));
    }
    std::ofstream(place.path() / "notes.txt") << "mine";
    std::ofstream(place.path() / "short.pages") << "mine too";
    fs::create_directory(place.path() / (std::string(40, 'a') + ".pages"));
    const fs::path partial = place.path() / (std::string(40, 'b') + ".pages.partial");
    std::ofstream(partial) << "half";
    {
        const auto folder = TierFolder::open(options_of(place.path())).value();
        EXPECT_EQ(folder->refused(), foreign.size());
        EXPECT_EQ(theirs.check(*folder), 0u);
        ours.write(*folder, random, 2, 9);
        EXPECT_EQ(ours.check(*folder), 10u);
    }
    EXPECT_TRUE(fs::exists(place.path() / "notes.txt"));
    EXPECT_TRUE(fs::exists(place.path() / "short.pages"));
    EXPECT_TRUE(fs::is_directory(place.path() / (std::string(40, 'a') + ".pages")));
    EXPECT_FALSE(fs::exists(partial));
    for (const fs::path& path : foreign)
        EXPECT_TRUE(fs::exists(path));
    // Another size of a page is another lay-out.
    TierOptions wider = options_of(place.path());
    wider.page_bytes += 8;
    EXPECT_EQ(ours.check(*TierFolder::open(wider).value()), 1u);  // the state alone
}

TEST(TierFolder, BelongsToOneAtATime) {
    const TemporaryFolder place;
    auto first = TierFolder::open(options_of(place.path())).value();
    const auto second = TierFolder::open(options_of(place.path()));
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code(), ErrorCode::unavailable);
    EXPECT_NE(second.error().message().find("give every server a folder of its own"),
              std::string::npos);
    EXPECT_NE(second.error().message().find(std::to_string(::getpid())), std::string::npos);
    first.reset();
    EXPECT_TRUE(TierFolder::open(options_of(place.path())).ok());
    std::ofstream(place.path() / "file") << "x";
    const auto no_folder = TierFolder::open(options_of(place.path() / "file" / "below"));
    ASSERT_FALSE(no_folder.ok());
    EXPECT_EQ(no_folder.error().code(), ErrorCode::io);
}

// Under any sequence of writes and uses the files stay below the limit, the longest unused go, and
// a path is left from its end.
TEST(TierFolder, KeepsToItsLimitAndGivesUpTheLongestUnused) {
    const TemporaryFolder place;
    std::mt19937 random(4);
    const Bytes limit = 30'000;
    auto folder = TierFolder::open(options_of(place.path(), limit)).value();
    Content content;
    std::map<std::uint64_t, std::uint32_t> lengths;
    std::vector<std::uint64_t> use;  // paths, the latest last
    for (std::uint64_t path = 1; path <= 150; ++path) {
        lengths[path] = 1 + random() % 12;
        content.write(*folder, random, path, lengths[path]);
        use.push_back(path);
        if (path > 3 && random() % 2 == 0) {
            const std::uint64_t old = use[use.size() - 1 - random() % 4];
            folder->touch(key_of(1000 * old + lengths[old]));
            use.erase(std::find(use.begin(), use.end(), old));
            use.push_back(old);
        }
        ASSERT_LE(folder->bytes(), limit);
        Bytes on_disk = 0;
        for (const fs::path& file : files_in(place.path()))
            on_disk += fs::file_size(file);
        ASSERT_EQ(on_disk, folder->bytes());
        // Whole paths from the latest on, then at most one that has lost its end, then nothing.
        bool whole = true, any = true;
        for (auto at = use.rbegin(); at != use.rend(); ++at) {
            std::uint32_t there = 0;
            while (there < lengths[*at] && folder->has_block(key_of(1000 * *at + there + 1)))
                ++there;
            for (std::uint32_t behind = there; behind < lengths[*at]; ++behind)
                ASSERT_FALSE(folder->has_block(key_of(1000 * *at + behind + 1)));
            const bool complete =
                there == lengths[*at] && folder->has_state(key_of(1000 * *at + there));
            ASSERT_TRUE(whole || !complete);
            ASSERT_TRUE(any || there == 0);
            whole = whole && complete;
            any = any && complete;
        }
    }
    EXPECT_GT(folder->evictions(), 100u);
    EXPECT_FALSE(folder->take_lost().empty());
    const std::size_t found = content.check(*folder);
    EXPECT_GT(found, 20u);
    // A smaller limit holds from the next opening on.
    folder.reset();
    folder = TierFolder::open(options_of(place.path(), limit / 3)).value();
    EXPECT_LE(folder->bytes(), limit / 3);
    EXPECT_LT(content.check(*folder), found);
}

// What is written never pushes out what stands before it.
TEST(TierFolder, AFullFolderKeepsTheBeginningOfAPath) {
    const TemporaryFolder place;
    std::mt19937 random(5);
    const auto folder = TierFolder::open(options_of(place.path(), 6'000)).value();
    BlockKey before = key_of(0);
    std::uint32_t written = 0, refused = 0;
    for (std::uint32_t block = 1; block <= 40; ++block) {
        const std::vector<std::byte> page = random_bytes(random, page_bytes);
        const std::span<const std::byte> piece = page;
        const BlockKey key = key_of(block);
        const bool taken =
            folder->write_pages(before, block == 1, std::span(&key, 1), std::span(&piece, 1))
                .value();
        (taken ? written : refused) += 1;
        EXPECT_EQ(taken, folder->has_block(key));
        EXPECT_EQ(taken, refused == 0);
        before = key;
    }
    EXPECT_GT(written, 10u);
    EXPECT_GT(refused, 10u);
    for (std::uint32_t block = 1; block <= written; ++block)
        EXPECT_TRUE(folder->has_block(key_of(block)));
    const std::vector<std::byte> huge(state_bytes);
    const auto tiny = TierFolder::open(options_of(place.path() / "tiny", 500)).value();
    const BlockKey first = key_of(1);
    const std::span<const std::byte> page = std::span(huge).first(page_bytes);
    EXPECT_TRUE(
        tiny->write_pages(key_of(0), true, std::span(&first, 1), std::span(&page, 1)).value());
    EXPECT_FALSE(tiny->write_state(first, CheckpointKind::turn_end, huge).value());
    EXPECT_TRUE(tiny->has_block(first));
}

TEST(TierFolder, AFailedWriteLeavesNothing) {
    const TemporaryFolder place;
    std::mt19937 random(6);
    TierOptions options = options_of(place.path());
    bool full = false;
    options.write = [&](const fs::path& path,
                        std::span<const std::span<const std::byte>> parts) -> Status {
        if (full) return Error(ErrorCode::io, path.string() + ": cannot write: No space left");
        return write_plainly(path, parts);
    };
    const auto folder = TierFolder::open(options).value();
    Content content;
    content.write(*folder, random, 1, 5);
    const Bytes bytes = folder->bytes();
    full = true;
    const std::vector<std::byte> state = random_bytes(random, state_bytes);
    EXPECT_EQ(folder->write_state(key_of(1003), CheckpointKind::anchor, state).error().code(),
              ErrorCode::io);
    EXPECT_FALSE(folder->has_state(key_of(1003)));
    EXPECT_EQ(folder->bytes(), bytes);
    EXPECT_EQ(content.check(*folder), 6u);
}

// The limit allows more than the disk has room for: the longest unused files go, as at the limit.
TEST(TierFolder, AFullDiskKeepsTheLatest) {
    const TemporaryFolder place;
    std::mt19937 random(7);
    TierOptions options = options_of(place.path());
    std::size_t room = 0;
    options.write = [&](const fs::path& path,
                        std::span<const std::span<const std::byte>> parts) -> Status {
        std::size_t taken = 0;
        for (const auto& file : fs::directory_iterator(place.path()))
            taken += file.path().extension() == ".lock" ? 0 : file.file_size();
        for (const auto part : parts)
            taken += part.size();
        if (room > 0 && taken > room)
            return Error(ErrorCode::io, path.string() + ": cannot write: full", disk_full);
        return write_plainly(path, parts);
    };
    const auto folder = TierFolder::open(options).value();
    Content content;
    content.write(*folder, random, 1, 5);
    room = folder->bytes() * 2;
    for (std::uint32_t text = 2; text < 12; ++text)
        content.write(*folder, random, text, 5);
    EXPECT_GT(folder->evictions(), 5u);
    EXPECT_LE(folder->bytes(), room);
    EXPECT_GE(folder->bytes(), room / 4);
    EXPECT_TRUE(folder->has_block(key_of(11003)));
    EXPECT_FALSE(folder->has_block(key_of(1003)));
}

}  // namespace
}  // namespace percheron::cache
