// Texts that a grammar allows, drawn at random over the tokens of nano.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "percheron/token_constraint.h"

#include "grammar/grammar_compiler.h"
#include "text/tokenizer.h"

namespace percheron::grammar::testing {

inline const Tokenizer& nano_tokenizer() {
    static const Tokenizer tokenizer =
        Tokenizer::load(PERCHERON_SOURCE_DIR "/models/nano/tokenizer.json").value();
    return tokenizer;
}

inline std::vector<TokenId> nano_stops() {
    std::vector<TokenId> stops;
    for (const char* name : {"<|endoftext|>", "<|user|>", "<|observation|>"})
        stops.push_back(nano_tokenizer().added_token(name).value());
    return stops;
}

inline GrammarCompilerOptions nano_options() {
    GrammarCompilerOptions options;
    options.vocabulary = nano_tokenizer().size();
    options.stop_tokens = nano_stops();
    options.token_seconds = 60;  // a sanitizer takes twenty times as long
    return options;
}

struct RandomText {
    std::vector<TokenId> ids;  // without the stop id
    std::string text;
    bool ended = false;  // by a stop id; false: it would not end
    std::string fault;
};

// Ends are preferred once the text is long: what closes something, else what is short.
inline RandomText random_text(const OutputGrammar& grammar, std::mt19937& random) {
    const Tokenizer& tokenizer = nano_tokenizer();
    const std::vector<TokenId> stops = nano_stops();
    const auto constraint = grammar.start();
    std::vector<std::uint32_t> mask((tokenizer.size() + 31) / 32);
    RandomText result;
    const std::size_t patience = random() % 60;
    while (result.ids.size() < 2000) {
        if (const Status filled = constraint->fill(mask); !filled.ok()) {
            result.fault = filled.error().message();
            return result;
        }
        std::vector<TokenId> allowed;
        std::vector<TokenId> closing;
        bool may_end = false;
        for (std::uint32_t v = 0; v < tokenizer.size(); ++v) {
            if ((mask[v / 32] >> v % 32 & 1u) == 0) continue;
            const auto id = TokenId(static_cast<int>(v));
            if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
                may_end = true;
                continue;
            }
            allowed.push_back(id);
            const std::string_view bytes = tokenizer.bytes_of(id);
            if (tokenizer.is_added(id) || bytes == "\"" || bytes == "}" || bytes == "]" ||
                bytes == "0") {
                closing.push_back(id);
            }
        }
        const bool impatient = result.ids.size() > patience;
        if (may_end && (allowed.empty() || impatient || random() % 4 == 0)) {
            result.ended = true;
            return result;
        }
        if (allowed.empty()) {
            result.fault = "nothing is allowed after: " + result.text;
            return result;
        }
        const std::vector<TokenId>& from = impatient && !closing.empty() ? closing : allowed;
        const TokenId id = from[random() % from.size()];
        if (!constraint->accept(id)) {
            result.fault = "an allowed token was refused after: " + result.text;
            return result;
        }
        result.ids.push_back(id);
        result.text += tokenizer.bytes_of(id);
    }
    return result;
}

}  // namespace percheron::grammar::testing
