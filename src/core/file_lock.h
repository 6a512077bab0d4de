// A folder's owner: one process at a time, whatever way the one before ended.
#pragma once

#include <filesystem>
#include <utility>

#include "core/status.h"

namespace percheron {

class FileLock {
  public:
    // Takes the lock that is kept in the file, which is made where it is missing, until this ends:
    // the lock is the system's and goes with the process.
    // Errors, with messages that go on from the folder's name: unavailable ("in use by another
    // process (4711)"); io ("cannot make its lock file: ...").
    static Result<FileLock> take(const std::filesystem::path& path);

    FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    FileLock& operator=(FileLock&&) = delete;
    ~FileLock();

  private:
    explicit FileLock(int descriptor) : descriptor_(descriptor) {}

    int descriptor_;
};

}  // namespace percheron
