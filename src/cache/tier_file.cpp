#include "cache/tier_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "core/checksum.h"
#include "core/files.h"

namespace percheron::cache {
namespace {

constexpr std::string_view magic = "PERCHRON";
constexpr std::string_view pages_suffix = ".pages", state_suffix = ".state";
constexpr std::size_t checked_from = 24;  // magic, version, header bytes, checksum
constexpr std::size_t fixed_bytes = checked_from + 24 + sizeof(BlockKey);
constexpr std::size_t most_header_bytes = std::size_t{1} << 20;

template <class Number>
void append(std::string& bytes, Number number) {
    char raw[sizeof number];
    std::memcpy(raw, &number, sizeof number);
    bytes.append(raw, sizeof raw);
}

// Takes numbers off the front; what it takes was found to be there before.
class Reader {
  public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}
    template <class Number>
    Number number() {
        Number value{};
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string_view take(std::size_t size) {
        const std::string_view taken = bytes_.substr(0, size);
        bytes_.remove_prefix(size);
        return taken;
    }
    BlockKey key() {
        BlockKey key{};
        std::memcpy(key.data(), take(key.size()).data(), key.size());
        return key;
    }

  private:
    std::string_view bytes_;
};

std::string header_of(const TierFile& file) {
    std::string rest;
    append(rest, static_cast<std::uint8_t>(file.kind));
    append(rest, static_cast<std::uint8_t>(file.checkpoint));
    append(rest, std::uint16_t{0});
    append(rest, static_cast<std::uint32_t>(file.keys.size()));
    append(rest, std::uint64_t{file.piece_bytes});
    append(rest, static_cast<std::uint32_t>(file.identity.size()));
    append(rest, std::uint32_t{0});
    rest.append(reinterpret_cast<const char*>(file.before.data()), file.before.size());
    rest += file.identity;
    for (const BlockKey& key : file.keys)
        rest.append(reinterpret_cast<const char*>(key.data()), key.size());
    for (const std::uint64_t sum : file.sums)
        append(rest, sum);
    std::string header(magic);
    append(header, tier_file_version);
    append(header, static_cast<std::uint32_t>(checked_from + rest.size()));
    append(header, checksum(std::as_bytes(std::span(rest))));
    return header + rest;
}

Status write_file(const std::filesystem::path& path,
                  std::span<const std::span<const std::byte>> parts) {
    PERCHERON_ASSIGN(FileWriter writer, FileWriter::create(path));
    Bytes offset = 0;
    for (const std::span<const std::byte> part : parts) {
        PERCHERON_TRY(writer.write_at(offset, part));
        offset += part.size();
    }
    return writer.commit();
}

Error damaged(const std::filesystem::path& path, std::string_view what) {
    return Error(ErrorCode::corrupt, path.string() + ": " + std::string(what));
}

}  // namespace

Bytes TierFile::header_bytes() const {
    return fixed_bytes + identity.size() + keys.size() * (sizeof(BlockKey) + sizeof(std::uint64_t));
}

std::string TierFile::name() const {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string name;
    for (std::size_t i = 0; i < 20; ++i) {
        name += digits[keys.back()[i] >> 4];
        name += digits[keys.back()[i] & 15u];
    }
    return name += kind == Kind::pages ? pages_suffix : state_suffix;
}

bool is_tier_name(const std::filesystem::path& path) {
    const std::string name = path.filename().string();
    const std::string stem = path.stem().string();
    const bool ours = name.ends_with(pages_suffix) || name.ends_with(state_suffix);
    return ours && stem.size() == 40 &&
           stem.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Result<TierFile> read_tier_file(const std::filesystem::path& path) {
    PERCHERON_ASSIGN(const FileReader reader, FileReader::open(path));
    if (reader.size() < fixed_bytes) return damaged(path, "is shorter than its header");
    std::string header(fixed_bytes, '\0');
    PERCHERON_TRY(reader.read_at(0, std::as_writable_bytes(std::span(header))));
    Reader start(header);
    if (start.take(magic.size()) != magic) return damaged(path, "does not begin as such a file");
    const auto version = start.number<std::uint32_t>();
    if (version > tier_file_version) {
        return Error(ErrorCode::unsupported,
                     path.string() + ": is of a newer version, " + std::to_string(version));
    }
    const auto header_bytes = start.number<std::uint32_t>();
    const auto sum = start.number<std::uint64_t>();
    if (version != tier_file_version || header_bytes < fixed_bytes ||
        header_bytes > std::min<Bytes>(most_header_bytes, reader.size())) {
        return damaged(path, "has a header that cannot be");
    }
    header.resize(header_bytes);
    PERCHERON_TRY(reader.read_at(0, std::as_writable_bytes(std::span(header))));
    if (checksum(std::as_bytes(std::span(header)).subspan(checked_from)) != sum) {
        return damaged(path, "has a damaged header");
    }
    Reader rest(std::string_view(header).substr(checked_from));
    TierFile file;
    file.kind = TierFile::Kind(rest.number<std::uint8_t>());
    file.checkpoint = CheckpointKind(rest.number<std::uint8_t>());
    rest.take(2);
    const auto pieces = rest.number<std::uint32_t>();
    file.piece_bytes = rest.number<std::uint64_t>();
    const auto identity = rest.number<std::uint32_t>();
    rest.take(4);
    file.before = rest.key();
    const bool known = (file.kind == TierFile::Kind::pages && pieces > 0) ||
                       (file.kind == TierFile::Kind::state && pieces == 1);
    const Bytes entry = sizeof(BlockKey) + sizeof(std::uint64_t);
    if (!known || file.checkpoint > CheckpointKind::anchor ||
        header_bytes != fixed_bytes + identity + pieces * entry ||
        file.piece_bytes > reader.size() ||
        reader.size() != header_bytes + pieces * file.piece_bytes) {
        return damaged(path, "is not as long as its header says");
    }
    file.identity = std::string(rest.take(identity));
    for (std::uint32_t i = 0; i < pieces; ++i)
        file.keys.push_back(rest.key());
    for (std::uint32_t i = 0; i < pieces; ++i)
        file.sums.push_back(rest.number<std::uint64_t>());
    return file;
}

Status read_pieces(const std::filesystem::path& path, const TierFile& file, std::size_t first,
                   std::span<std::byte> out) {
    PERCHERON_ASSIGN(const FileReader reader, FileReader::open(path));
    if (reader.size() != file.bytes()) return damaged(path, "is not as long as it was");
    PERCHERON_TRY(reader.read_at(file.offset_of(first), out));
    for (std::size_t i = 0; i * file.piece_bytes < out.size(); ++i) {
        if (checksum(out.subspan(i * file.piece_bytes, file.piece_bytes)) != file.sums[first + i]) {
            return damaged(path, "is damaged in piece " + std::to_string(first + i));
        }
    }
    return {};
}

Status write_tier_file(const std::filesystem::path& path, TierFile& file,
                       std::span<const std::span<const std::byte>> pieces, const WriteFile& write) {
    file.sums.clear();
    for (const std::span<const std::byte> piece : pieces)
        file.sums.push_back(checksum(piece));
    const std::string header = header_of(file);
    std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(header))};
    parts.insert(parts.end(), pieces.begin(), pieces.end());
    return write ? write(path, parts) : write_file(path, parts);
}

}  // namespace percheron::cache
