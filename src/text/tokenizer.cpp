#include "text/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "text/added_tokens.h"
#include "text/byte_pairs.h"
#include "text/marked_text.h"
#include "text/split_pattern.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"

namespace percheron {

struct Tokenizer::Content {
    SplitPattern pattern;
    BytePairs pairs;
    AddedTokens added;
    std::size_t longest = 1;

    void encode_plain(std::string_view text, std::vector<TokenId>& ids) const {
        if (text.empty()) return;
        SplitPattern::Walk walk(pattern, text);
        for (std::string_view piece = walk.next(); !piece.empty(); piece = walk.next()) {
            pairs.encode(piece, ids);
        }
    }

    // Added tokens are looked for in [begin, end); all before `plain` has been encoded.
    void encode_trusted_part(std::string_view text, std::size_t begin, std::size_t end,
                             std::size_t& plain, std::vector<TokenId>& ids) const {
        for (std::size_t i = begin; i < end;) {
            const AddedTokens::Match match = added.at_front_of(text.substr(i, end - i));
            if (match.length == 0) {
                ++i;
                continue;
            }
            encode_plain(text.substr(plain, i - plain), ids);
            ids.push_back(match.id);
            i += match.length;
            plain = i;
        }
    }
};

Tokenizer::Tokenizer(std::unique_ptr<const Content> content) : content_(std::move(content)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& tokenizer_json) {
    std::ifstream stream(tokenizer_json, std::ios::binary);
    if (!stream) {
        return Error(ErrorCode::not_found,
                     tokenizer_json.string() + " cannot be opened; a model folder needs one");
    }
    std::ostringstream content;
    content << stream.rdbuf();
    if (stream.bad()) return Error(ErrorCode::io, tokenizer_json.string() + " cannot be read");
    return parse(content.view());
}

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
    PERCHERON_ASSIGN(TokenizerFile file, read_tokenizer_file(json));
    // Some files list added tokens in the vocabulary too; plain text must not reach them there.
    std::set<std::int32_t> added_ids;
    for (const TokenizerFile::Added& token : file.added)
        added_ids.insert(token.id);
    for (BytePairs::Entry& entry : file.vocabulary) {
        if (added_ids.contains(entry.id)) entry.encodable = false;
    }
    PERCHERON_ASSIGN(SplitPattern pattern, SplitPattern::compile(file.split_pattern));
    PERCHERON_ASSIGN(BytePairs pairs,
                     BytePairs::build(file.vocabulary, file.merges, file.ignore_merges));
    AddedTokens added;
    for (const TokenizerFile::Added& token : file.added) {
        if (!added.string_of(TokenId{token.id}).empty() || added.find(token.string)) {
            return Error(ErrorCode::corrupt, "tokenizer.json: the added token " + token.string +
                                                 " or its id is listed twice");
        }
        added.add(token.string, TokenId{token.id}, token.special);
    }
    std::size_t longest = 1;
    for (const BytePairs::Entry& entry : file.vocabulary)
        longest = std::max(longest, entry.bytes.size());
    for (const TokenizerFile::Added& token : file.added)
        longest = std::max(longest, token.string.size());
    return Tokenizer(std::make_unique<const Content>(
        Content{std::move(pattern), std::move(pairs), std::move(added), longest}));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
    std::vector<TokenId> ids;
    ids.reserve(text.size() / 4);
    content_->encode_plain(text, ids);
    return ids;
}

std::vector<TokenId> Tokenizer::encode_trusted(std::string_view text) const {
    std::vector<TokenId> ids;
    ids.reserve(text.size() / 4);
    std::size_t plain = 0;
    content_->encode_trusted_part(text, 0, text.size(), plain, ids);
    content_->encode_plain(text.substr(plain), ids);
    return ids;
}

std::vector<TokenId> Tokenizer::encode_marked(const MarkedText& marked) const {
    const std::string_view text = marked.text();
    std::vector<TokenId> ids;
    ids.reserve(text.size() / 4);
    std::size_t plain = 0;
    std::size_t begin = 0;
    for (const MarkedText::Run& run : marked.runs()) {
        if (run.origin == TextOrigin::from_template) {
            content_->encode_trusted_part(text, begin, run.end, plain, ids);
        }
        begin = run.end;
    }
    content_->encode_plain(text.substr(plain), ids);
    return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialTokens special) const {
    std::string bytes;
    for (const TokenId id : ids) {
        if (special == SpecialTokens::skip && is_special(id)) continue;
        bytes += bytes_of(id);
    }
    return with_replacements(bytes);
}

std::string_view Tokenizer::bytes_of(TokenId id) const {
    const std::string_view added = content_->added.string_of(id);
    return added.empty() ? content_->pairs.bytes_of(to_int(id)) : added;
}

std::optional<TokenId> Tokenizer::added_token(std::string_view string) const {
    return content_->added.find(string);
}

TokenId Tokenizer::byte_token(std::uint8_t byte) const {
    return content_->pairs.byte_token(byte);
}

bool Tokenizer::is_added(TokenId id) const {
    return !content_->added.string_of(id).empty();
}

bool Tokenizer::is_special(TokenId id) const {
    return content_->added.is_special(id);
}

std::size_t Tokenizer::longest_token() const {
    return content_->longest;
}

std::uint32_t Tokenizer::size() const {
    return std::max(content_->pairs.size(), content_->added.end_id());
}

}  // namespace percheron
