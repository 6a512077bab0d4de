// What a request wants its answer to be, as rules: a format, forced or strict tool calls, or both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "grammar/schema_node.h"
#include "text/tokenizer.h"

namespace percheron::grammar {

struct OutputRequest {
    enum class Format {
        text,         // anything
        json_object,  // any JSON object
        json_schema,  // `schema`
        regex,        // all of the answer fits `text`
        choice,       // one of `choices`
        rules,        // `text` in EBNF, its start rule `root`
    };
    Format format = Format::text;
    Json schema;
    std::string text;
    std::vector<std::string> choices;
    std::string param;  // the request's field that says so, for errors

    enum class Calls {
        none,      // no tools are offered
        allowed,   // the model decides
        required,  // at least one
    };
    Calls calls = Calls::none;
    bool one_call = false;  // exactly one
    Json tools;             // the functions that may be called, as the request has them

    bool asks_for_anything() const;
};

struct OutputRules {
    std::string text;            // for GrammarCompiler; empty: anything goes
    std::optional<Error> error;  // says what to change, with a pointer into schemas
    std::string param;           // the field that the error is about
};

OutputRules write_rules(const OutputRequest& request, const Tokenizer& tokenizer);

}  // namespace percheron::grammar
