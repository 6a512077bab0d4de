// What a tokenizer.json says, checked and with the byte alphabet undone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "text/byte_pairs.h"

namespace percheron {

struct TokenizerFile {
    struct Added {
        std::string string;
        std::int32_t id = 0;
        bool special = false;
    };
    std::string split_pattern;
    bool ignore_merges = false;
    std::vector<BytePairs::Entry> vocabulary;
    std::vector<BytePairs::Merge> merges;
    std::vector<Added> added;
};

// Errors: corrupt (a field is missing or of a wrong kind), unsupported (a normalizer, another model
// or pre-tokenizer, or added tokens that swallow blanks).
Result<TokenizerFile> read_tokenizer_file(std::string_view json);

}  // namespace percheron
