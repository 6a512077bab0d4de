// A file read past the page cache: in whole blocks, from several threads at a time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

#include <sys/types.h>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron {

class DirectFile {
  public:
    // Offsets, lengths and memory of reads are multiples of it.
    static constexpr Bytes block = 4096;

    // Where the file system refuses reads past the cache they go through it, and what they left
    // there is dropped again.  Errors: not_found, io.
    static Result<DirectFile> open(const std::filesystem::path& path);

    DirectFile(DirectFile&& other) noexcept;
    DirectFile& operator=(DirectFile&&) = delete;
    ~DirectFile();

    bool past_the_cache() const { return !cached_; }

    // Fills `out`, whole blocks from the block boundary `offset` on; the first `needed` bytes must
    // be in the file.  Errors: io; corrupt, where the file ends before.
    Status read_blocks(Bytes offset, std::span<std::byte> out, Bytes needed) const;

    // Memory that read() takes for a range at any offset.
    static constexpr Bytes room_for(Bytes bytes) { return (bytes / block + 2) * block; }

    // Reads the blocks of [offset, offset + bytes) to the start of `memory`, which begins on a
    // block boundary and has room_for() them, and returns where the range lies there.  Errors: the
    // same.
    Result<std::span<std::byte>> read(Bytes offset, Bytes bytes, std::span<std::byte> memory) const;

    // Drops what the page cache holds of the file and nobody has mapped.
    void drop_from_cache() const;

  private:
    DirectFile() = default;

    std::filesystem::path path_;
    int descriptor_ = -1;
    bool cached_ = false;
};

// As pread(2): up to so many bytes from an offset, 0 at the end of the file, -1 with errno.
using BlockReader = std::function<ssize_t(std::byte* to, Bytes bytes, Bytes offset)>;

// What read_blocks() does, by any reader: goes on from the last whole block after a short read, and
// tries again after a signal.  `path` is for messages.
Status read_whole_blocks(const BlockReader& reader, const std::filesystem::path& path, Bytes offset,
                         std::span<std::byte> out, Bytes needed);

}  // namespace percheron
