#include "tools/row_file.h"

#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace percheron::tools {
namespace {

std::filesystem::path partial(const std::filesystem::path& path) {
    return path.string() + ".partial";
}

Error failed(const std::filesystem::path& path, const char* what) {
    return Error(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io,
                 path.string() + ": cannot " + what + ": " + std::strerror(errno));
}

// Moves all of `bytes` with pread or pwrite.
template <class Call, class Byte>
bool transfer(Call call, int descriptor, Byte* bytes, std::size_t size, off_t offset) {
    while (size > 0) {
        const ssize_t count = call(descriptor, bytes, size, offset);
        if (count < 0 && errno == EINTR) continue;
        if (count == 0) errno = EIO;
        if (count <= 0) return false;
        bytes += count;
        size -= static_cast<std::size_t>(count);
        offset += count;
    }
    return true;
}

}  // namespace

Result<RowFile> RowFile::create(const std::filesystem::path& path, std::size_t columns) {
    RowFile file;
    file.path_ = path;
    file.columns_ = columns;
    file.descriptor_ = ::open(partial(path).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file.descriptor_ < 0) return failed(path, "create");
    file.unfinished_ = true;
    return file;
}

Result<RowFile> RowFile::open(const std::filesystem::path& path, std::size_t columns,
                              std::size_t rows) {
    RowFile file;
    file.path_ = path;
    file.columns_ = columns;
    file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file.descriptor_ < 0) return failed(path, "open");
    struct stat status {};
    if (::fstat(file.descriptor_, &status) != 0) return failed(path, "examine");
    if (static_cast<std::size_t>(status.st_size) != rows * columns * sizeof(float)) {
        return Error(ErrorCode::corrupt, path.string() + ": holds " +
                                             std::to_string(status.st_size) + " bytes, not " +
                                             std::to_string(rows * columns * sizeof(float)));
    }
    return file;
}

RowFile::RowFile(RowFile&& other) noexcept
    : path_(std::move(other.path_)),
      columns_(other.columns_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      unfinished_(std::exchange(other.unfinished_, false)) {}

RowFile& RowFile::operator=(RowFile&& other) noexcept {
    if (this == &other) return *this;
    drop();
    path_ = std::move(other.path_);
    columns_ = other.columns_;
    descriptor_ = std::exchange(other.descriptor_, -1);
    unfinished_ = std::exchange(other.unfinished_, false);
    return *this;
}

RowFile::~RowFile() {
    drop();
}

void RowFile::drop() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (unfinished_) ::unlink(partial(path_).c_str());
}

Status RowFile::write(std::size_t first, Rows<const float> rows) {
    assert(rows.columns == columns_ && rows.stride == columns_);
    const std::size_t row_bytes = columns_ * sizeof(float);
    if (transfer(::pwrite, descriptor_, reinterpret_cast<const char*>(rows.data),
                 rows.rows * row_bytes, static_cast<off_t>(first * row_bytes))) {
        return {};
    }
    return failed(path_, "write");
}

Status RowFile::read(std::size_t first, Rows<float> rows) const {
    assert(rows.columns == columns_ && rows.stride == columns_);
    const std::size_t row_bytes = columns_ * sizeof(float);
    if (transfer(::pread, descriptor_, reinterpret_cast<char*>(rows.data), rows.rows * row_bytes,
                 static_cast<off_t>(first * row_bytes))) {
        return {};
    }
    return failed(path_, "read");
}

Status RowFile::finish(bool durable) {
    if (!unfinished_) return {};
    if (durable && ::fsync(descriptor_) != 0) return failed(path_, "sync");
    if (::rename(partial(path_).c_str(), path_.c_str()) != 0) {
        return failed(path_, "rename to its final name");
    }
    unfinished_ = false;
    return {};
}

}  // namespace percheron::tools
