// Files as the engine uses them: mapped for reading, read whole when small, and written under a
// temporary name that takes the final one only when every byte is there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron {

// The reason of an io error where a disk or a quota has no room left.
inline constexpr std::string_view disk_full = "disk_full";

// A regular file mapped read-only for the life of the object.  Moving keeps the addresses.
// Nobody may shorten the file meanwhile: reading past the new end is a bus error.
class MappedFile {
  public:
    enum class Access { normal, sequential, random, will_need, dont_need };

    // Errors: not_found, io (not a regular file, or the system refuses).
    static Result<MappedFile> open(const std::filesystem::path& path);

    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    const std::filesystem::path& path() const { return path_; }

    // Tells the system how [offset, offset + size) will be read; a hint, never an error.
    void advise(Access access, std::size_t offset, std::size_t size) const;
    void advise(Access access) const { advise(access, 0, size_); }

  private:
    MappedFile() = default;

    std::filesystem::path path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

// A regular file read in pieces, for those that somebody may shorten or replace meanwhile.
class FileReader {
  public:
    // Errors: not_found, io (not a regular file, or the system refuses).
    static Result<FileReader> open(const std::filesystem::path& path);

    FileReader(FileReader&& other) noexcept;
    FileReader& operator=(FileReader&&) = delete;
    ~FileReader();

    Bytes size() const { return size_; }  // when it was opened
    // Fills all of `out`.  Errors: io; corrupt, where the file ends before.
    Status read_at(Bytes offset, std::span<std::byte> out) const;

  private:
    FileReader() = default;

    std::filesystem::path path_;
    int descriptor_ = -1;
    Bytes size_ = 0;
};

// Free bytes where a folder is or will be; absent: the system does not say.
std::optional<Bytes> free_space(std::filesystem::path folder);

// A whole file as text.  Errors: not_found, io, unsupported (longer than `limit`).
Result<std::string> read_text_file(const std::filesystem::path& path, Bytes limit);

// Replaces the file by `text`, or leaves it as it was.
Status write_text_file(const std::filesystem::path& path, std::string_view text);

// Writes a file.  The bytes go to "PATH.partial"; commit() syncs them and renames.  Without
// commit() nothing is left behind.
class FileWriter {
  public:
    static Result<FileWriter> create(const std::filesystem::path& path);

    FileWriter(FileWriter&& other) noexcept;
    FileWriter& operator=(FileWriter&&) = delete;
    ~FileWriter();

    // Anywhere in the file; what was never written reads as zeros.
    Status write_at(Bytes offset, std::span<const std::byte> bytes);
    Status write_at(Bytes offset, std::string_view text) {
        return write_at(offset, std::as_bytes(std::span(text)));
    }
    Status commit();

  private:
    FileWriter() = default;

    std::filesystem::path path_;
    int descriptor_ = -1;
};

}  // namespace percheron
