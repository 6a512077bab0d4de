// Byte-level BPE, read from a Hugging Face tokenizer.json.
//
// Text is cut into pieces by the file's split pattern; a piece starts as its bytes, one token each,
// and the adjacent pair of lowest merge rank is joined (the leftmost first) until no pair has a
// rank.  Where the file says `ignore_merges`, a piece that is itself a token is that token.
//
// Added tokens (control tokens among them) are strings that stand for one id.  Text from outside
// never yields one: encode() knows none, encode_trusted() knows all, and encode_marked() knows them
// only where the text was written by a template.
//
// Thread-safe once loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron {

class MarkedText;

class Tokenizer {
  public:
    // Errors: not_found or io (the file), corrupt (not a tokenizer), unsupported (another kind of
    // tokenizer than byte-level BPE with one split pattern).
    static Result<Tokenizer> load(const std::filesystem::path& tokenizer_json);
    static Result<Tokenizer> parse(std::string_view json);

    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    // Plain text: added tokens written in it stay text.  Any bytes are accepted, and
    // bytes_of(encode(bytes)) joined gives the bytes back.
    std::vector<TokenId> encode(std::string_view text) const;
    // Added tokens are recognised (the leftmost, of those the longest).
    std::vector<TokenId> encode_trusted(std::string_view text) const;
    // Added tokens are recognised where every one of their bytes is template text; all else
    // between them is split and merged as one text, wherever it came from.
    std::vector<TokenId> encode_marked(const MarkedText& text) const;

    // The text of the ids; what is not UTF-8 becomes U+FFFD.  Special tokens are left out on
    // request; ids without a string give nothing.
    enum class SpecialTokens { keep, skip };
    std::string decode(std::span<const TokenId> ids,
                       SpecialTokens special = SpecialTokens::keep) const;

    // The bytes a token stands for: of an added token, its string.  Empty for unknown ids.
    std::string_view bytes_of(TokenId id) const;
    std::optional<TokenId> added_token(std::string_view string) const;
    // The token for one byte.
    TokenId byte_token(std::uint8_t byte) const;
    bool is_added(TokenId id) const;
    // Added and marked `special`: hidden when replies are decoded.
    bool is_special(TokenId id) const;
    // Of the longest token, in bytes: n bytes of text are at least n / longest_token() tokens.
    std::size_t longest_token() const;
    // One past the largest id that has a string.
    std::uint32_t size() const;

  private:
    struct Content;
    explicit Tokenizer(std::unique_ptr<const Content> content);

    std::unique_ptr<const Content> content_;
};

}  // namespace percheron
