#include "text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "text/jinja_expression_parser.h"

namespace percheron::jinja {
namespace {

class Parser : private ExpressionParser {
  public:
    explicit Parser(std::string_view source) : ExpressionParser(tokens_of(source)) {}

    Block parse() {
        Block block = parse_block({});
        if (now().kind != Token::Kind::end) fail("this tag closes nothing that is open");
        return block;
    }

  private:
    // Statements up to a tag whose word is among `ends`; that tag's `{%` and word stay.
    Block parse_block(std::initializer_list<std::string_view> ends) {
        const Nested nested(*this);
        Block block;
        while (now().kind != Token::Kind::end) {
            begin_statement();
            if (now().kind == Token::Kind::text) {
                auto statement = make(Statement::Kind::text);
                statement->value = Value::text(tokens_[at_++].text);
                block.push_back(std::move(statement));
            } else if (now().kind == Token::Kind::output_begin) {
                ++at_;
                auto statement = make(Statement::Kind::output);
                statement->expression = parse_tuple();
                if (now().kind != Token::Kind::output_end) fail("expected }}");
                ++at_;
                block.push_back(std::move(statement));
            } else {
                const std::string& word = ahead(1).text;
                if (std::find(ends.begin(), ends.end(), word) != ends.end()) return block;
                ++at_;
                parse_tag(block);
            }
        }
        if (ends.size() != 0) fail("expected " + std::string(*(ends.end() - 1)));
        return block;
    }

    StatementPointer make(Statement::Kind kind) const {
        auto statement = std::make_unique<Statement>();
        statement->kind = kind;
        statement->line = now().line;
        return statement;
    }

    // Past the `{%` of a closing tag: its word and its end.
    void need_end(std::string_view word) {
        ++at_;
        need_word(word);
        need_block_end();
    }

    void parse_tag(Block& block) {
        const std::string word = need_name();
        if (word == "set") return block.push_back(parse_set());
        if (word == "if") return block.push_back(parse_condition());
        if (word == "for") return block.push_back(parse_loop());
        if (word == "macro") return block.push_back(parse_macro());
        if (word == "filter") return block.push_back(parse_filter_block());
        if (word == "break" || word == "continue") {
            auto statement = make(word == "break" ? Statement::Kind::leave : Statement::Kind::next);
            if (loops_ == 0) fail(word + " stands outside a loop");
            need_block_end();
            return block.push_back(std::move(statement));
        }
        if (word == "generation") {  // marks what training learns; prints its body
            need_block_end();
            Block body = parse_block({"endgeneration"});
            need_end("endgeneration");
            std::move(body.begin(), body.end(), std::back_inserter(block));
            return;
        }
        fail("the tag `" + word + "` is not part of this template language");
    }

    StatementPointer parse_set() {
        auto statement = make(Statement::Kind::set);
        statement->targets.push_back(need_name());
        if (take_symbol(".")) {
            statement->attribute = need_name();
        } else {
            while (take_symbol(",")) {
                if (is_symbol("=")) break;
                statement->targets.push_back(need_name());
            }
        }
        if (take_symbol("=")) {
            statement->expression = parse_tuple();
            need_block_end();
            return statement;
        }
        statement->kind = Statement::Kind::set_block;
        statement->expression = parse_filters(leaf(Kind::captured));
        need_block_end();
        statement->body = parse_block({"endset"});
        need_end("endset");
        return statement;
    }

    StatementPointer parse_condition() {
        auto statement = make(Statement::Kind::condition);
        statement->expression = parse_tuple();
        need_block_end();
        statement->body = parse_block({"elif", "else", "endif"});
        ++at_;
        if (take_word("elif")) {
            // A long chain is a list in the source but nests here.
            const Nested nested(*this);
            statement->otherwise.push_back(parse_condition());
            return statement;
        }
        if (take_word("else")) {
            need_block_end();
            statement->otherwise = parse_block({"endif"});
            ++at_;
        }
        need_word("endif");
        need_block_end();
        return statement;
    }

    StatementPointer parse_loop() {
        auto statement = make(Statement::Kind::loop);
        const bool bracketed = take_symbol("(");
        do {
            if (is_word("in")) break;
            statement->targets.push_back(need_name());
        } while (take_symbol(","));
        if (bracketed) need_symbol(")");
        need_word("in");
        statement->expression = parse_tuple(false);
        if (take_word("if")) statement->filter = parse_expression();
        if (is_word("recursive")) fail("recursive loops are not part of this template language");
        need_block_end();
        ++loops_;
        statement->body = parse_block({"else", "endfor"});
        --loops_;
        ++at_;
        if (take_word("else")) {
            need_block_end();
            statement->otherwise = parse_block({"endfor"});
            ++at_;
        }
        need_word("endfor");
        need_block_end();
        return statement;
    }

    StatementPointer parse_macro() {
        auto statement = make(Statement::Kind::macro);
        statement->name = need_name();
        need_symbol("(");
        while (!is_symbol(")")) {
            statement->targets.push_back(need_name());
            statement->defaults.push_back(take_symbol("=") ? parse_expression() : nullptr);
            if (!take_symbol(",")) break;
        }
        need_symbol(")");
        need_block_end();
        const int outer_loops = std::exchange(loops_, 0);
        statement->body = parse_block({"endmacro"});
        loops_ = outer_loops;
        ++at_;
        need_word("endmacro");
        if (now().kind == Token::Kind::name) ++at_;  // the macro's name may be repeated
        need_block_end();
        return statement;
    }

    StatementPointer parse_filter_block() {
        auto statement = make(Statement::Kind::filter);
        statement->expression = parse_filter(leaf(Kind::captured));
        statement->expression = parse_filters(std::move(statement->expression));
        need_block_end();
        statement->body = parse_block({"endfilter"});
        need_end("endfilter");
        return statement;
    }

    int loops_ = 0;  // open around the statement, within its macro
};

}  // namespace

Block parse_template(std::string_view source) {
    return Parser(source).parse();
}

}  // namespace percheron::jinja
