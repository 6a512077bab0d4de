#include "core/direct_file.h"

#include <cassert>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace percheron {

Status read_whole_blocks(const BlockReader& reader, const std::filesystem::path& path, Bytes offset,
                         std::span<std::byte> out, Bytes needed) {
    assert(offset % DirectFile::block == 0 && out.size() % DirectFile::block == 0);
    Bytes done = 0;  // whole blocks, until all that is needed is there
    while (done < needed) {
        const ssize_t count = reader(out.data() + done, out.size() - done, offset + done);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            return Error(ErrorCode::io, path.string() + ": cannot read: " + std::strerror(errno));
        }
        const Bytes reached = done + static_cast<Bytes>(count);
        if (reached >= needed) return {};
        const Bytes whole = reached / DirectFile::block * DirectFile::block;
        // Less than a block, and not all that is needed: nothing but the end of a file is so short.
        if (whole == done) {
            return Error(ErrorCode::corrupt,
                         path.string() +
                             ": has become shorter since it was opened; put the whole file back");
        }
        done = whole;
    }
    return {};
}

Result<DirectFile> DirectFile::open(const std::filesystem::path& path) {
    DirectFile file;
    file.path_ = path;
    file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (file.descriptor_ < 0 && errno == EINVAL) {
        file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        file.cached_ = true;
    }
    if (file.descriptor_ < 0) {
        return Error(errno == ENOENT || errno == ENOTDIR ? ErrorCode::not_found : ErrorCode::io,
                     path.string() + ": cannot open: " + std::strerror(errno));
    }
    return file;
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      cached_(other.cached_) {}

DirectFile::~DirectFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

Status DirectFile::read_blocks(Bytes offset, std::span<std::byte> out, Bytes needed) const {
    PERCHERON_TRY(read_whole_blocks(
        [this](std::byte* to, Bytes bytes, Bytes at) {
            return ::pread(descriptor_, to, bytes, static_cast<off_t>(at));
        },
        path_, offset, out, needed));
    if (cached_) {
        ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(out.size()),
                        POSIX_FADV_DONTNEED);
    }
    return {};
}

Result<std::span<std::byte>> DirectFile::read(Bytes offset, Bytes bytes,
                                              std::span<std::byte> memory) const {
    assert(reinterpret_cast<std::uintptr_t>(memory.data()) % block == 0);
    assert(memory.size() >= room_for(bytes));
    const Bytes before = offset % block;
    const Bytes needed = before + bytes;
    const Bytes blocks = (needed + block - 1) / block * block;
    PERCHERON_TRY(read_blocks(offset - before, memory.first(blocks), needed));
    return memory.subspan(before, bytes);
}

void DirectFile::drop_from_cache() const {
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace percheron
