// One file of the prefix cache on disk: pages of consecutive blocks, or one checkpoint.
//
//   header   magic "PERCHRON", version u32, header bytes u32, checksum u64 of the header behind it,
//            kind u8, checkpoint kind u8, zeros u16, pieces u32, bytes of a piece u64,
//            bytes of the identity u32, zeros u32, key before the first block 32,
//            identity, a key of 32 a piece, a checksum u64 a piece
//   pieces   one behind the other; of a page: its latents, then its pooled keys (CacheStore)
//
// Numbers are little-endian; checksums are core/checksum.h's.  A file is whole or not there: it is
// written beside its name and synced before it takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "cache/block_key.h"
#include "cache/prefix_block.h"
#include "core/status.h"

namespace percheron::cache {

inline constexpr std::uint32_t tier_file_version = 1;

struct TierFile {
    enum class Kind : std::uint8_t { pages = 1, state = 2 };

    Kind kind = Kind::pages;
    CheckpointKind checkpoint = CheckpointKind::turn_end;  // of a state
    std::string identity;                                  // of who wrote it
    BlockKey before{};                // of the block before the first; a state's is its own
    std::vector<BlockKey> keys;       // a piece; a state's is the block at whose end it stands
    std::vector<std::uint64_t> sums;  // a piece
    Bytes piece_bytes = 0;

    Bytes header_bytes() const;
    Bytes bytes() const { return header_bytes() + keys.size() * piece_bytes; }
    Bytes offset_of(std::size_t piece) const { return header_bytes() + piece * piece_bytes; }
    // Of the name in its folder: the last key's, so that it says what is in it.
    std::string name() const;
};

// Reads a file's header and holds the file's size against it.
// Errors: io, not_found; corrupt (says what); unsupported (a newer version).
Result<TierFile> read_tier_file(const std::filesystem::path& path);

// Reads pieces [first, first + out.size() / piece_bytes) and checks them.  Errors: io, not_found,
// corrupt.
Status read_pieces(const std::filesystem::path& path, const TierFile& file, std::size_t first,
                   std::span<std::byte> out);

// Replaces how bytes reach a disk, in tests.
using WriteFile = std::function<Status(const std::filesystem::path&,
                                       std::span<const std::span<const std::byte>>)>;

// `pieces` as many as file.keys, each of piece_bytes; fills file.sums.  Errors: io.
Status write_tier_file(const std::filesystem::path& path, TierFile& file,
                       std::span<const std::span<const std::byte>> pieces, const WriteFile& write);

// Whether a name is one of these files'.
bool is_tier_name(const std::filesystem::path& path);

}  // namespace percheron::cache
