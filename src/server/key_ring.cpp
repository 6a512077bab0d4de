#include "server/key_ring.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <sys/stat.h>

namespace percheron::server {
namespace {

constexpr std::string_view blanks = " \t\r";

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(blanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

bool is_control(char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

// What follows a scheme's name in an Authorization header, or nothing.
std::optional<std::string_view> credentials(std::string_view header, std::string_view scheme) {
    if (header.size() <= scheme.size() || header[scheme.size()] != ' ') return std::nullopt;
    if (!equal_without_case(header.substr(0, scheme.size()), scheme)) return std::nullopt;
    return trimmed(header.substr(scheme.size()));
}

std::string hex_of(std::span<const unsigned char> bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string hex;
    for (const unsigned char byte : bytes) {
        hex += digits[byte >> 4];
        hex += digits[byte & 15];
    }
    return hex;
}

std::string basic_password(std::string_view encoded) {
    if (encoded.empty() || encoded.size() > 8192 || encoded.size() % 4 != 0) return {};
    std::string decoded(encoded.size() / 4 * 3, '\0');
    const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(decoded.data()),
                                     reinterpret_cast<const unsigned char*>(encoded.data()),
                                     static_cast<int>(encoded.size()));
    if (size < 0) return {};
    const std::size_t padding = encoded.size() - (encoded.find_last_not_of('=') + 1);
    decoded.resize(decoded.size() - std::min<std::size_t>(padding, 2));
    const std::size_t colon = decoded.find(':');
    return colon == std::string::npos ? std::string() : decoded.substr(colon + 1);
}

}  // namespace

Result<KeyRing::Stamp> KeyRing::stamp_of(const std::filesystem::path& file) {
    struct stat facts {};
    if (::stat(file.c_str(), &facts) != 0) {
        return Error(ErrorCode::io,
                     "cannot read the key file " + file.string() + ": " + std::strerror(errno));
    }
    return Stamp{facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec, facts.st_ino, facts.st_size,
                 facts.st_mode};
}

Result<KeyRing> KeyRing::load(const std::filesystem::path& file) {
    KeyRing ring;
    ring.file_ = file;
    PERCHERON_ASSIGN(const Stamp stamp, stamp_of(file));
    PERCHERON_TRY(ring.read(stamp));
    return ring;
}

Status KeyRing::read(const Stamp& stamp) {
    if ((stamp.mode & (S_IRWXG | S_IRWXO)) != 0) {
        return Error(ErrorCode::invalid_argument, "the key file " + file_.string() +
                                                      " is open to others than its owner; run "
                                                      "chmod 600 on it");
    }
    std::ifstream stream(file_);
    if (!stream) return Error(ErrorCode::io, "cannot read the key file " + file_.string());
    std::vector<Key> keys;
    bool first = true;
    for (std::string line; std::getline(stream, line);) {
        // Editors may begin a file with a byte order mark.
        if (first && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
        first = false;
        const std::string_view text = trimmed(line);
        if (std::any_of(text.begin(), text.end(), is_control)) {
            return Error(ErrorCode::invalid_argument,
                         "the key file " + file_.string() +
                             " holds bytes that no key has; save it as plain text in UTF-8");
        }
        if (text.empty() || text[0] == '#') continue;
        const std::size_t gap = text.find_first_of(blanks);
        Key key;
        std::string_view secret = text;
        if (gap != std::string_view::npos) {
            key.label = std::string(text.substr(0, gap));
            secret = trimmed(text.substr(gap));
        }
        if (secret.find_first_of(blanks) != std::string_view::npos) {
            return Error(ErrorCode::invalid_argument,
                         "a line of the key file " + file_.string() +
                             " has more than a label and a key; use LABEL KEY");
        }
        SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
               key.digest.data());
        keys.push_back(std::move(key));
    }
    if (keys.empty()) {
        return Error(ErrorCode::invalid_argument,
                     "the key file " + file_.string() + " holds no key; write one a line");
    }
    keys_ = std::move(keys);
    stamp_ = stamp;
    return {};
}

Status KeyRing::refresh() {
    if (!locked()) return {};
    auto stamp = stamp_of(file_);
    if (!stamp.ok()) {
        // Said once, and again only after the file has come back.
        if (stamp_ == Stamp{}) return {};
        stamp_ = Stamp{};
        return stamp.error();
    }
    if (*stamp == stamp_) return {};
    Status status = read(*stamp);
    stamp_ = *stamp;
    return status;
}

std::optional<KeyHolder> KeyRing::holder_of(const HttpRequest& request) const {
    if (!locked()) return KeyHolder{};
    const std::string_view authorization = request.header("Authorization");
    std::string presented;
    if (const auto bearer = credentials(authorization, "Bearer")) {
        presented = std::string(*bearer);
    } else if (const auto basic = credentials(authorization, "Basic")) {
        presented = basic_password(*basic);
    } else {
        presented = std::string(request.header("x-api-key"));
    }
    Digest digest{};
    SHA256(reinterpret_cast<const unsigned char*>(presented.data()), presented.size(),
           digest.data());
    const Key* found = nullptr;
    for (const Key& key : keys_) {
        if (CRYPTO_memcmp(digest.data(), key.digest.data(), digest.size()) == 0) found = &key;
    }
    if (found == nullptr) return std::nullopt;
    return KeyHolder{found->label, hex_of(found->digest)};
}

}  // namespace percheron::server
