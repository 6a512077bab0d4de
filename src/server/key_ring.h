// The keys that open the server, read from a file only its owner can read.
//
// One key a line: `KEY`, or `LABEL KEY` with blanks between; empty lines and lines that begin with
// # are passed over.  The label stands in the request log; the key itself never does.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "server/http_message.h"

namespace percheron::server {

// Whose key a request carries.
struct KeyHolder {
    std::string label;  // "" for a key without one
    std::string owner;  // of what is kept for this key alone: its digest in hex; "" without keys
};

class KeyRing {
  public:
    // No file: every request may pass.
    KeyRing() = default;

    // Errors: io; invalid_argument when others than the owner may read the file, or it has no key.
    static Result<KeyRing> load(const std::filesystem::path& file);

    bool locked() const { return !file_.empty(); }

    // Nothing when the request may not pass.  Its key is read from `Authorization: Bearer KEY`,
    // `Authorization: Basic` (the password) and `x-api-key`.  The time taken depends on the number
    // of keys and not on what is sent.
    std::optional<KeyHolder> holder_of(const HttpRequest& request) const;

    // Reads the file again when it has changed.  A file that has become unreadable or is open to
    // others changes nothing: the error is returned once and the keys stay as they are.
    Status refresh();

  private:
    using Digest = std::array<unsigned char, 32>;
    struct Key {
        Digest digest{};
        std::string label;
    };
    struct Stamp {
        std::int64_t seconds = 0;
        std::int64_t nanoseconds = 0;
        std::uint64_t inode = 0;
        std::int64_t size = 0;
        std::uint32_t mode = 0;
        bool operator==(const Stamp&) const = default;
    };

    static Result<Stamp> stamp_of(const std::filesystem::path& file);
    Status read(const Stamp& stamp);

    std::filesystem::path file_;
    Stamp stamp_;
    std::vector<Key> keys_;
};

}  // namespace percheron::server
