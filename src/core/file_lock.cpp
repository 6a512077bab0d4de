#include "core/file_lock.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/logging.h"

namespace percheron {

Result<FileLock> FileLock::take(const std::filesystem::path& path) {
    const auto refused = [](int code) {
        return Error(ErrorCode::io,
                     std::string("cannot make its lock file: ") + std::strerror(code));
    };
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return refused(errno);
    FileLock lock(descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return refused(errno);
        char owner[32] = {};
        const bool named = ::pread(descriptor, owner, sizeof owner - 1, 0) > 0;
        return Error(ErrorCode::unavailable, std::string("in use by another process") +
                                                 (named ? " (" + std::string(owner) + ")" : ""));
    }
    const std::string self = std::to_string(::getpid());
    // Who it is is only a help for people.
    if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, self.data(), self.size(), 0) < 0) {
        log_warning(path.string() + ": the lock file does not say whose it is");
    }
    return lock;
}

FileLock::~FileLock() {
    if (descriptor_ >= 0) ::close(descriptor_);  // which lets it go
}

}  // namespace percheron
