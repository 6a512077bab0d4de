// The folder of the prefix cache's files: what is in it, which file goes when it is full (C14 of
// docs/SCHEDULER.md).  One thread at a time; every call may wait for the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "percheron/types.h"

#include "cache/block_key.h"
#include "cache/tier_file.h"
#include "core/file_lock.h"
#include "core/status.h"

namespace percheron::cache {

struct TierOptions {
    std::filesystem::path folder;
    Bytes limit = 0;  // of all files together
    // All that the numbers depend on beside the text: weights, program, arithmetic, lay-out of a
    // page.  Files with another one are never read.
    std::string identity;
    Bytes page_bytes = 0;
    Bytes state_bytes = 0;
    WriteFile write;  // absent: to the disk
};

class TierFolder {
  public:
    // Makes the folder where there is none, locks it, and reads the headers of what is in it.
    // Damaged files and what a killed process left half written are removed.
    // Errors: unavailable (another process has it), io.
    static Result<std::unique_ptr<TierFolder>> open(TierOptions options);
    TierFolder(const TierFolder&) = delete;
    TierFolder& operator=(const TierFolder&) = delete;

    // What can be read.
    bool has_block(const BlockKey& key) const { return blocks_.contains(key); }
    bool has_state(const BlockKey& key) const { return states_.contains(key); }
    std::vector<BlockKey> blocks() const;
    std::vector<BlockKey> states() const;

    // Pages of blocks that follow each other behind `before`, which is a root or a block.  Nothing
    // is written, and false returned, where that block is not there, or where room could only be
    // made by giving up what stands before them.
    // Errors: io, with nothing written.
    Result<bool> write_pages(const BlockKey& before, bool root, std::span<const BlockKey> keys,
                             std::span<const std::span<const std::byte>> pages);
    // The same of the state at a block's end.
    Result<bool> write_state(const BlockKey& key, CheckpointKind kind,
                             std::span<const std::byte> state);

    // So many of the first of `keys` as lie together in one file, at most `most`; 0: the first is
    // not there.
    std::size_t together(std::span<const BlockKey> keys, std::size_t most) const;
    // The pages of so many blocks, one behind the other; a state and its kind.
    // Errors: not_found, io, corrupt.  A file that gives one is given up.
    Status read_pages(std::span<const BlockKey> keys, std::span<std::byte> pages);
    Result<CheckpointKind> read_state(const BlockKey& key, std::span<std::byte> state);
    // A state was used, and all before it.
    void touch(const BlockKey& state);

    // What could be read once and no longer can, since the last call.
    struct Lost {
        TierFile::Kind kind{};
        BlockKey key{};
    };
    std::vector<Lost> take_lost() { return std::exchange(lost_, {}); }

    Bytes bytes() const { return bytes_; }
    std::uint64_t entries() const { return states_.size(); }
    std::uint64_t evictions() const { return evictions_; }
    std::uint64_t refused() const { return refused_; }

  private:
    struct Entry {
        std::filesystem::path path;
        TierFile file;  // without keys where it is not readable
        Bytes bytes = 0;
        std::uint64_t used = 0;  // the number of the latest touch
        std::int64_t stamp = 0;  // the file's own time, in seconds
        std::list<Entry*>::iterator place;
    };
    struct BlockPlace {
        Entry* entry = nullptr;
        std::uint32_t piece = 0;
    };

    explicit TierFolder(TierOptions options) : options_(std::move(options)) {}
    Status lock();
    Status scan();
    void look_at(const std::filesystem::path& path);
    Result<bool> write(TierFile file, std::span<const std::span<const std::byte>> pieces);
    Entry* entry_of(const TierFile& file) const;
    Entry& add(std::filesystem::path path, TierFile file, Bytes bytes);
    void touch(Entry& entry);
    void touch_path(const BlockKey& last_block);
    bool make_room(Bytes bytes);
    bool give_up_oldest();
    void remove(Entry& entry);
    Error give_up(Entry& entry, Error error);

    TierOptions options_;
    std::optional<FileLock> lock_;
    std::unordered_map<const Entry*, std::unique_ptr<Entry>> entries_;
    std::unordered_map<BlockKey, BlockPlace, BlockKeyHash> blocks_;
    std::unordered_map<BlockKey, Entry*, BlockKeyHash> states_;
    std::list<Entry*> by_use_;  // the longest unused first
    std::uint64_t touches_ = 0;
    Bytes bytes_ = 0;
    std::uint64_t evictions_ = 0;
    std::uint64_t refused_ = 0;
    std::vector<Lost> lost_;
};

}  // namespace percheron::cache
