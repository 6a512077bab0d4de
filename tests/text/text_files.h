// The embedded model's text files and the goldens, as the text room's tests read them.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace percheron {

inline std::string source_path(const std::string& path) {
    return std::string(PERCHERON_SOURCE_DIR) + "/" + path;
}

inline std::string content_of(const std::string& path) {
    std::ifstream stream(source_path(path), std::ios::binary);
    EXPECT_TRUE(stream.good()) << path;
    std::ostringstream content;
    content << stream.rdbuf();
    return content.str();
}

inline nlohmann::ordered_json json_of(const std::string& path) {
    return nlohmann::ordered_json::parse(content_of(path));
}

inline const Tokenizer& nano_tokenizer() {
    static const Tokenizer tokenizer =
        Tokenizer::load(source_path("models/nano/tokenizer.json")).value();
    return tokenizer;
}

inline std::vector<int> numbers(const std::vector<TokenId>& ids) {
    std::vector<int> values;
    for (const TokenId id : ids)
        values.push_back(to_int(id));
    return values;
}

}  // namespace percheron
