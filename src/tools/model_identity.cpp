#include "tools/model_identity.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/files.h"
#include "core/sha256.h"
#include "ops/cpu/levels.h"
#include "tools/model_path.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;

constexpr Bytes whole_up_to = Bytes{64} << 20;
constexpr Bytes piece_bytes = Bytes{1} << 20;  // read at a time; of a large file, from its front
constexpr Bytes sample_bytes = 4096;
constexpr Bytes samples = 512;

std::string hex(const Sha256Digest& digest) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (const std::uint8_t byte : digest) {
        text += digits[byte >> 4];
        text += digits[byte & 15u];
    }
    return text;
}

Status add_range(Sha256& hash, const FileReader& reader, Bytes offset, Bytes size) {
    std::vector<std::byte> piece(std::min(size, piece_bytes));
    while (size > 0) {
        const auto part = std::span(piece).first(std::min<Bytes>(size, piece.size()));
        PERCHERON_TRY(reader.read_at(offset, part));
        hash.add(part);
        offset += part.size();
        size -= part.size();
    }
    return {};
}

Status add_file(Sha256& hash, const fs::path& path, bool always_whole) {
    PERCHERON_ASSIGN(const FileReader reader, FileReader::open(path));
    hash.add(path.filename().string() + " " + std::to_string(reader.size()) + " ");
    if (always_whole || reader.size() <= whole_up_to) {
        return add_range(hash, reader, 0, reader.size());
    }
    std::error_code ignored;
    const auto time = fs::last_write_time(path, ignored).time_since_epoch().count();
    hash.add(std::to_string(time) + " ");
    PERCHERON_TRY(add_range(hash, reader, 0, piece_bytes));
    for (Bytes i = 1; i <= samples; ++i) {
        PERCHERON_TRY(
            add_range(hash, reader, (reader.size() - sample_bytes) / samples * i, sample_bytes));
    }
    return {};
}

Result<std::string> weights_of(const fs::path& model) {
    if (is_synthetic(model.string())) return model.string();
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator at(model, error), end; !error && at != end; at.increment(error)) {
        const fs::path extension = at->path().extension();
        if (extension == ".safetensors" || extension == ".json") files.push_back(at->path());
    }
    if (error) {
        return Error(ErrorCode::io, model.string() + ": cannot be listed: " + error.message());
    }
    std::sort(files.begin(), files.end());
    Sha256 hash;
    for (const fs::path& file : files)
        PERCHERON_TRY(add_file(hash, file, false));
    return hex(hash.finish());
}

}  // namespace

Result<std::string> model_identity(const fs::path& model, const ops::Backend& backend) {
    PERCHERON_ASSIGN(const std::string weights, weights_of(model));
    Sha256 program;
    PERCHERON_TRY(add_file(program, "/proc/self/exe", true));
    std::string identity = "weights ";
    identity += weights;
    identity += "\nprogram ";
    identity += hex(program.finish());
    identity += "\nbackend ";
    identity += backend.name();
    identity += backend.arithmetic() == ops::Arithmetic::fp32 ? " fp32" : " standard";
    if (!backend.has_own_memory()) {
        PERCHERON_ASSIGN(const ops::cpu::Kernels* const level, ops::cpu::choose_level({}));
        identity += ' ';
        identity += level->level;
    }
    return identity;
}

}  // namespace percheron::tools
