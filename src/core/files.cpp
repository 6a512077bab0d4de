#include "core/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace percheron {
namespace {

Error system_error(const std::filesystem::path& path, std::string_view action, int code) {
    std::string message = path.string();
    message += ": cannot ";
    message += action;
    message += ": ";
    message += std::strerror(code);
    const bool full = code == ENOSPC || code == EDQUOT;
    return Error(code == ENOENT || code == ENOTDIR ? ErrorCode::not_found : ErrorCode::io,
                 std::move(message), full ? disk_full : std::string_view());
}

// A descriptor that closes itself.
struct Descriptor {
    int value = -1;
    ~Descriptor() {
        if (value >= 0) ::close(value);
    }
};

std::filesystem::path partial_path(const std::filesystem::path& path) {
    std::filesystem::path partial = path;
    partial += ".partial";
    return partial;
}

// Opens a regular file for reading and tells its size.  Non-blocking, so that a pipe under the name
// of a shard is an error and not an endless wait.
Result<std::size_t> open_regular(const std::filesystem::path& path, Descriptor& file) {
    file.value = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.value < 0) return system_error(path, "open", errno);
    struct stat status {};
    if (::fstat(file.value, &status) != 0) return system_error(path, "examine", errno);
    if (!S_ISREG(status.st_mode)) {
        return Error(ErrorCode::io, path.string() + ": is not a regular file");
    }
    return static_cast<std::size_t>(status.st_size);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
    Descriptor descriptor;
    PERCHERON_ASSIGN(const std::size_t size, open_regular(path, descriptor));
    MappedFile file;
    file.path_ = path;
    file.size_ = size;
    if (size > 0) {  // an empty range cannot be mapped
        void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor.value, 0);
        if (address == MAP_FAILED) return system_error(path, "map", errno);
        file.data_ = static_cast<const std::byte*>(address);
    }
    return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::advise(Access access, std::size_t offset, std::size_t size) const {
    if (data_ == nullptr || offset >= size_) return;
    int advice = MADV_NORMAL;
    switch (access) {
        case Access::normal:
            break;
        case Access::sequential:
            advice = MADV_SEQUENTIAL;
            break;
        case Access::random:
            advice = MADV_RANDOM;
            break;
        case Access::will_need:
            advice = MADV_WILLNEED;
            break;
        case Access::dont_need:
            advice = MADV_DONTNEED;
            break;
    }
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t first = offset / page * page;
    const std::size_t length = std::min(size, size_ - offset) + (offset - first);
    ::madvise(const_cast<std::byte*>(data_) + first, length, advice);
}

Result<FileReader> FileReader::open(const std::filesystem::path& path) {
    Descriptor descriptor;
    PERCHERON_ASSIGN(const std::size_t size, open_regular(path, descriptor));
    FileReader reader;
    reader.path_ = path;
    reader.size_ = size;
    reader.descriptor_ = std::exchange(descriptor.value, -1);
    return reader;
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

FileReader::~FileReader() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

Status FileReader::read_at(Bytes offset, std::span<std::byte> out) const {
    while (!out.empty()) {
        const ssize_t count =
            ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return system_error(path_, "read", errno);
        if (count == 0) {
            return Error(ErrorCode::corrupt, path_.string() + ": ends before what is looked for");
        }
        out = out.subspan(static_cast<std::size_t>(count));
        offset += static_cast<std::size_t>(count);
    }
    return {};
}

std::optional<Bytes> free_space(std::filesystem::path folder) {
    std::error_code error;
    folder = std::filesystem::absolute(folder, error);
    while (!std::filesystem::exists(folder, error) && folder != folder.root_path()) {
        folder = folder.parent_path();
    }
    const auto space = std::filesystem::space(folder, error);
    if (error) return std::nullopt;
    return space.available;
}

Result<std::string> read_text_file(const std::filesystem::path& path, Bytes limit) {
    Descriptor descriptor;
    PERCHERON_ASSIGN(const std::size_t size, open_regular(path, descriptor));
    if (size > limit) {
        return Error(ErrorCode::unsupported, path.string() + ": is " + std::to_string(size) +
                                                 " bytes long, more than the " +
                                                 std::to_string(limit) + " that are read");
    }
    std::string text(size, '\0');
    std::size_t done = 0;
    while (done < size) {
        const ssize_t count = ::read(descriptor.value, text.data() + done, size - done);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return system_error(path, "read", errno);
        if (count == 0) break;  // somebody shortened it; what is left decides
        done += static_cast<std::size_t>(count);
    }
    text.resize(done);
    return text;
}

Result<FileWriter> FileWriter::create(const std::filesystem::path& path) {
    const int descriptor =
        ::open(partial_path(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor < 0) return system_error(path, "create", errno);
    FileWriter writer;
    writer.path_ = path;
    writer.descriptor_ = descriptor;
    return writer;
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileWriter::~FileWriter() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    ::unlink(partial_path(path_).c_str());
}

Status FileWriter::write_at(Bytes offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t count =
            ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return system_error(path_, "write", errno);
        bytes = bytes.subspan(static_cast<std::size_t>(count));
        offset += static_cast<std::size_t>(count);
    }
    return {};
}

Status FileWriter::commit() {
    if (::fsync(descriptor_) != 0) return system_error(path_, "sync", errno);
    if (::close(std::exchange(descriptor_, -1)) != 0) return system_error(path_, "close", errno);
    if (::rename(partial_path(path_).c_str(), path_.c_str()) != 0) {
        const int code = errno;
        ::unlink(partial_path(path_).c_str());
        return system_error(path_, "rename to its final name", code);
    }
    return {};
}

Status write_text_file(const std::filesystem::path& path, std::string_view text) {
    PERCHERON_ASSIGN(FileWriter writer, FileWriter::create(path));
    PERCHERON_TRY(writer.write_at(0, text));
    return writer.commit();
}

}  // namespace percheron
