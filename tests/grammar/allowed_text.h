// Whether a grammar allows a text as a whole, told through the masks a sampler would see.
#pragma once

#include <string_view>
#include <vector>

#include "grammar/random_text.h"

namespace percheron::grammar::testing {

// `single_bytes`: a token a byte, else the tokenizer's own tokens.
inline bool allows(const OutputGrammar& grammar, std::string_view text, bool single_bytes = false) {
    const Tokenizer& tokenizer = nano_tokenizer();
    std::vector<TokenId> ids;
    if (single_bytes) {
        for (const char byte : text)
            ids.push_back(tokenizer.byte_token(static_cast<std::uint8_t>(byte)));
    } else {
        ids = tokenizer.encode(text);
    }
    const auto constraint = grammar.start();
    std::vector<std::uint32_t> mask((tokenizer.size() + 31) / 32);
    const auto is_set = [&](TokenId id) {
        const auto v = static_cast<std::uint32_t>(to_int(id));
        return (mask[v / 32] >> v % 32 & 1u) != 0;
    };
    for (const TokenId id : ids) {
        if (!constraint->fill(mask).ok()) return false;
        const bool by_mask = is_set(id);
        if (constraint->accept(id) != by_mask) throw std::logic_error("mask and accept disagree");
        if (!by_mask) return false;
    }
    if (!constraint->fill(mask).ok()) return false;
    return is_set(nano_stops().front());
}

inline GrammarCompiler& nano_compiler() {
    static GrammarCompiler compiler(nano_tokenizer(), nano_options());
    return compiler;
}

}  // namespace percheron::grammar::testing
