#include "text/tokenizer_file.h"

#include <array>

#include <simdjson.h>

#include "text/unicode.h"

namespace percheron {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// The alphabet in which the file writes bytes: the printable ones of Latin-1 stand for themselves,
// the others are the characters from U+0100 on, in order.
constexpr std::size_t alphabet_end = 0x100 + 68;

std::array<int, alphabet_end> make_bytes_of_alphabet() {
    std::array<int, alphabet_end> bytes{};
    bytes.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
        const bool printable =
            (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        bytes[static_cast<std::size_t>(printable ? byte : next++)] = byte;
    }
    return bytes;
}

// The bytes that `written` stands for; nothing if a character is outside the alphabet.
bool undo_alphabet(std::string_view written, std::string& bytes) {
    static const std::array<int, alphabet_end> bytes_of_alphabet = make_bytes_of_alphabet();
    bytes.clear();
    while (!written.empty()) {
        const Utf8Unit unit = next_utf8_unit(written);
        if (unit.character >= alphabet_end || bytes_of_alphabet[unit.character] < 0) return false;
        bytes += static_cast<char>(bytes_of_alphabet[unit.character]);
        written.remove_prefix(unit.length);
    }
    return true;
}

Error corrupt(std::string_view what) {
    return Error(ErrorCode::corrupt, "tokenizer.json: " + std::string(what));
}

Error unsupported(std::string_view what) {
    return Error(ErrorCode::unsupported, "tokenizer.json: " + std::string(what));
}

bool is_null_or_absent(const object& in, const char* key) {
    element value;
    return in[key].get(value) != simdjson::SUCCESS || value.is_null();
}

bool flag(const object& in, const char* key, bool otherwise) {
    bool value = otherwise;
    return in[key].get(value) == simdjson::SUCCESS ? value : otherwise;
}

std::string_view word(const object& in, const char* key) {
    std::string_view value;
    return in[key].get(value) == simdjson::SUCCESS ? value : std::string_view();
}

Status read_pre_tokenizer(const object& root, TokenizerFile& file) {
    object pre;
    array steps;
    if (root["pre_tokenizer"].get(pre) != simdjson::SUCCESS || word(pre, "type") != "Sequence" ||
        pre["pretokenizers"].get(steps) != simdjson::SUCCESS || steps.size() != 2) {
        return unsupported("pre_tokenizer must be a sequence of one Split and one ByteLevel");
    }
    object split;
    object bytes;
    std::string_view pattern;
    if (steps.at(0).get(split) != simdjson::SUCCESS || word(split, "type") != "Split" ||
        word(split, "behavior") != "Isolated" || flag(split, "invert", false) ||
        split["pattern"]["Regex"].get(pattern) != simdjson::SUCCESS) {
        return unsupported("pre_tokenizer must begin with an isolating Split on a Regex");
    }
    if (steps.at(1).get(bytes) != simdjson::SUCCESS || word(bytes, "type") != "ByteLevel" ||
        flag(bytes, "add_prefix_space", true) || flag(bytes, "use_regex", true)) {
        return unsupported("the ByteLevel pre-tokenizer must add no space and use no regex");
    }
    file.split_pattern = pattern;
    return {};
}

Status read_vocabulary(const object& model, TokenizerFile& file) {
    object vocabulary;
    if (model["vocab"].get(vocabulary) != simdjson::SUCCESS) {
        return corrupt("model.vocab is missing or not an object");
    }
    file.vocabulary.reserve(vocabulary.size());
    for (const auto entry : vocabulary) {
        std::int64_t id = 0;
        if (entry.value.get(id) != simdjson::SUCCESS || id < 0 || id > 0x7fffffff) {
            return corrupt("model.vocab has an id that is not a small whole number");
        }
        BytePairs::Entry token;
        token.id = static_cast<std::int32_t>(id);
        token.encodable = undo_alphabet(entry.key, token.bytes);
        if (!token.encodable) token.bytes = entry.key;
        file.vocabulary.push_back(std::move(token));
    }
    return {};
}

Status read_merges(const object& model, TokenizerFile& file) {
    array merges;
    if (model["merges"].get(merges) != simdjson::SUCCESS) {
        return corrupt("model.merges is missing or not a list");
    }
    file.merges.reserve(merges.size());
    for (const element entry : merges) {
        std::string_view left;
        std::string_view right;
        array pair;
        if (entry.get(left) == simdjson::SUCCESS) {  // "left right"
            const std::size_t space = left.find(' ');
            if (space == std::string_view::npos) return corrupt("a merge has no space in it");
            right = left.substr(space + 1);
            left = left.substr(0, space);
        } else if (entry.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
                   pair.at(0).get(left) != simdjson::SUCCESS ||
                   pair.at(1).get(right) != simdjson::SUCCESS) {
            return corrupt("a merge is neither a string nor a pair of strings");
        }
        BytePairs::Merge merge;
        if (!undo_alphabet(left, merge.left) || !undo_alphabet(right, merge.right)) {
            return corrupt("a merge has a character outside the byte alphabet");
        }
        file.merges.push_back(std::move(merge));
    }
    return {};
}

Status read_added(const object& root, TokenizerFile& file) {
    array added;
    if (root["added_tokens"].get(added) != simdjson::SUCCESS) return {};
    for (const element entry : added) {
        object token;
        std::int64_t id = -1;
        if (entry.get(token) != simdjson::SUCCESS || token["id"].get(id) != simdjson::SUCCESS ||
            id < 0 || id > 0xffffff || word(token, "content").empty()) {
            return corrupt("an entry of added_tokens lacks its id or content");
        }
        if (flag(token, "lstrip", false) || flag(token, "rstrip", false) ||
            flag(token, "single_word", false)) {
            return unsupported("added tokens with lstrip, rstrip or single_word are not read");
        }
        file.added.push_back({std::string(word(token, "content")), static_cast<std::int32_t>(id),
                              flag(token, "special", false)});
    }
    return {};
}

}  // namespace

Result<TokenizerFile> read_tokenizer_file(std::string_view json) {
    simdjson::dom::parser parser;
    object root;
    if (parser.parse(json.data(), json.size()).get(root) != simdjson::SUCCESS) {
        return corrupt("this is not a JSON object");
    }
    object model;
    if (root["model"].get(model) != simdjson::SUCCESS) return corrupt("model is missing");
    if (word(model, "type") != "BPE") return unsupported("only BPE models are read");
    if (!is_null_or_absent(root, "normalizer")) return unsupported("normalizer must be null");
    if (!is_null_or_absent(model, "dropout") || flag(model, "byte_fallback", false) ||
        !word(model, "continuing_subword_prefix").empty() ||
        !word(model, "end_of_word_suffix").empty()) {
        return unsupported("dropout, byte_fallback, prefixes and suffixes are not read");
    }
    TokenizerFile file;
    file.ignore_merges = flag(model, "ignore_merges", false);
    PERCHERON_TRY(read_pre_tokenizer(root, file));
    PERCHERON_TRY(read_vocabulary(model, file));
    PERCHERON_TRY(read_merges(model, file));
    PERCHERON_TRY(read_added(root, file));
    return file;
}

}  // namespace percheron
