// Tokens one after the other, for the parsers to ask for and take.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_lexer.h"
#include "text/jinja_value.h"

namespace percheron::jinja {

class TokenReader {
  protected:
    explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    // Counts nesting so that no template can exhaust the stack.
    struct Nested {
        explicit Nested(TokenReader& reader) : reader(reader) {
            if (++reader.depth_ > max_syntax_depth) reader.fail("this is nested too deeply");
        }
        ~Nested() { --reader.depth_; }
        Nested(const Nested&) = delete;
        Nested& operator=(const Nested&) = delete;
        TokenReader& reader;
    };

    [[noreturn]] void fail(const std::string& what) const {
        throw Failure("line " + std::to_string(now().line) + ": " + what);
    }
    const Token& now() const { return tokens_[at_]; }
    const Token& ahead(std::size_t count) const {
        return tokens_[std::min(at_ + count, tokens_.size() - 1)];
    }
    bool is_symbol(std::string_view symbol) const {
        return now().kind == Token::Kind::symbol && now().text == symbol;
    }
    bool is_word(std::string_view word) const {
        return now().kind == Token::Kind::name && now().text == word;
    }
    bool take_symbol(std::string_view symbol) {
        if (!is_symbol(symbol)) return false;
        ++at_;
        return true;
    }
    bool take_word(std::string_view word) {
        if (!is_word(word)) return false;
        ++at_;
        return true;
    }
    void need_symbol(std::string_view symbol) {
        if (!take_symbol(symbol)) fail("expected " + std::string(symbol));
    }
    void need_word(std::string_view word) {
        if (!take_word(word)) fail("expected " + std::string(word));
    }
    std::string need_name() {
        if (now().kind != Token::Kind::name) fail("expected a name");
        return tokens_[at_++].text;
    }
    void need_block_end() {
        if (now().kind != Token::Kind::block_end) fail("expected the end of the tag");
        ++at_;
    }

    std::vector<Token> tokens_;
    std::size_t at_ = 0;

  private:
    static constexpr int max_syntax_depth = 150;

    int depth_ = 0;
};

}  // namespace percheron::jinja
