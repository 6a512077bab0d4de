#include "core/machine_memory.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace percheron {

namespace {

// "NAME:   123 kB" in a file of such lines.
std::optional<Bytes> read_kilobytes(const char* path, const std::string& name) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        if (line.starts_with(name + ":")) {
            return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
        }
    }
    return std::nullopt;
}

std::optional<Bytes> read_number(const std::filesystem::path& path) {
    std::ifstream file(path);
    Bytes number = 0;
    if (file >> number) {
        return number;
    }
    return std::nullopt;  // no such file, or "max"
}

// The tightest limit of this process's control group and those above it (version 2).
std::optional<Bytes> control_group_headroom() {
    std::ifstream file("/proc/self/cgroup");
    std::string line;
    std::optional<Bytes> headroom;
    while (std::getline(file, line)) {
        if (!line.starts_with("0::/")) {
            continue;
        }
        std::filesystem::path relative = line.substr(4);
        for (;;) {
            const std::filesystem::path group = "/sys/fs/cgroup" / relative;
            const auto limit = read_number(group / "memory.max");
            const auto used = read_number(group / "memory.current");
            if (limit && used) {
                const Bytes left = *limit > *used ? *limit - *used : 0;
                headroom = std::min(headroom.value_or(left), left);
            }
            if (relative.empty()) {
                break;
            }
            relative = relative.parent_path();
        }
    }
    return headroom;
}

}  // namespace

Result<MachineMemory> machine_memory() {
    const auto total = read_kilobytes("/proc/meminfo", "MemTotal");
    const auto available = read_kilobytes("/proc/meminfo", "MemAvailable");
    if (!total || !available) {
        return Error(ErrorCode::io, "/proc/meminfo cannot be read; mount /proc");
    }
    MachineMemory memory{*total, *available};
    if (const auto headroom = control_group_headroom()) {
        memory.available = std::min(memory.available, *headroom);
    }
    return memory;
}

Result<Bytes> anonymous_memory() {
    const auto anonymous = read_kilobytes("/proc/self/status", "RssAnon");
    const auto shared = read_kilobytes("/proc/self/status", "RssShmem");
    if (!anonymous || !shared) {
        return Error(ErrorCode::io, "/proc/self/status cannot be read; mount /proc");
    }
    return *anonymous + *shared;
}

}  // namespace percheron
