#include "text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "text/jinja_lexer.h"

namespace percheron::jinja {
namespace {

using Kind = Expression::Kind;

constexpr int max_syntax_depth = 150;

class Parser {
  public:
    explicit Parser(std::string_view source) : tokens_(tokens_of(source)) {}

    Block parse() {
        Block block = parse_block({});
        if (now().kind != Token::Kind::end) fail("this tag closes nothing that is open");
        return block;
    }

  private:
    // Counts nesting so that no template can exhaust the stack.
    struct Nested {
        explicit Nested(Parser& parser) : parser(parser) {
            if (++parser.depth_ > max_syntax_depth) parser.fail("this is nested too deeply");
        }
        ~Nested() { --parser.depth_; }
        Nested(const Nested&) = delete;
        Nested& operator=(const Nested&) = delete;
        Parser& parser;
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

    // ---- statements -------------------------------------------------------------------------

    // Statements up to a tag whose word is among `ends`; that tag's `{%` and word stay.
    Block parse_block(std::initializer_list<std::string_view> ends) {
        const Nested nested(*this);
        Block block;
        while (now().kind != Token::Kind::end) {
            chain_ = 0;
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

    // ---- expressions ------------------------------------------------------------------------

    ExpressionPointer leaf(Kind kind) const {
        auto expression = std::make_unique<Expression>();
        expression->kind = kind;
        expression->line = now().line;
        return expression;
    }
    ExpressionPointer constant(Value value) const {
        auto expression = leaf(Kind::constant);
        expression->value = std::move(value);
        return expression;
    }
    template <class... Operands>
    ExpressionPointer node(Kind kind, std::string name, Operands... operands) const {
        auto expression = leaf(kind);
        expression->name = std::move(name);
        (expression->operands.push_back(std::move(operands)), ...);
        return expression;
    }

    // Values with commas between them are a list.
    ExpressionPointer parse_tuple(bool with_condition = true) {
        const auto parse_item = [&] { return with_condition ? parse_expression() : parse_or(); };
        ExpressionPointer first = parse_item();
        if (!is_symbol(",")) return first;
        auto list = node(Kind::list, "tuple", std::move(first));
        while (take_symbol(",")) {
            if (now().kind == Token::Kind::block_end || now().kind == Token::Kind::output_end)
                break;
            list->operands.push_back(parse_item());
        }
        return list;
    }

    ExpressionPointer parse_expression() {
        const Nested nested(*this);
        ExpressionPointer value = parse_or();
        while (take_word("if")) {
            ExpressionPointer condition = parse_or();
            ExpressionPointer otherwise;
            if (take_word("else")) otherwise = parse_expression();
            value = node(Kind::conditional, "", std::move(value), std::move(condition),
                         std::move(otherwise));
        }
        return value;
    }

    ExpressionPointer parse_or() {
        ExpressionPointer left = parse_and();
        while (take_word("or"))
            left = joined(Kind::logical_or, "", std::move(left), parse_and());
        return left;
    }

    ExpressionPointer parse_and() {
        ExpressionPointer left = parse_not();
        while (take_word("and"))
            left = joined(Kind::logical_and, "", std::move(left), parse_not());
        return left;
    }

    // Chains of one operator nest to the left: their length counts as depth when they are run.
    ExpressionPointer joined(Kind kind, std::string name, ExpressionPointer left,
                             ExpressionPointer right) {
        if (++chain_ > max_chain) fail("this expression is too long");
        return node(kind, std::move(name), std::move(left), std::move(right));
    }

    ExpressionPointer parse_not() {
        const Nested nested(*this);
        if (is_word("not") && !(ahead(1).kind == Token::Kind::name && ahead(1).text == "in")) {
            ++at_;
            return node(Kind::logical_not, "", parse_not());
        }
        return parse_compare();
    }

    ExpressionPointer parse_compare() {
        ExpressionPointer first = parse_sum();
        ExpressionPointer compare;
        while (true) {
            std::string symbol;
            for (const std::string_view known : {"==", "!=", "<=", ">=", "<", ">"}) {
                if (is_symbol(known)) symbol = known;
            }
            if (!symbol.empty()) {
                ++at_;
            } else if (is_word("not") && ahead(1).text == "in") {
                at_ += 2;
                symbol = "not in";
            } else if (take_word("in")) {
                symbol = "in";
            } else {
                break;
            }
            if (compare == nullptr) compare = node(Kind::compare, "", std::move(first));
            compare->names.push_back(symbol);
            compare->operands.push_back(parse_sum());
        }
        return compare == nullptr ? std::move(first) : std::move(compare);
    }

    ExpressionPointer parse_sum() {
        ExpressionPointer left = parse_concatenation();
        while (is_symbol("+") || is_symbol("-")) {
            const std::string symbol = tokens_[at_++].text;
            left = joined(Kind::binary, symbol, std::move(left), parse_concatenation());
        }
        return left;
    }

    ExpressionPointer parse_concatenation() {
        ExpressionPointer first = parse_product();
        if (!is_symbol("~")) return first;
        auto parts = node(Kind::concatenate, "", std::move(first));
        while (take_symbol("~"))
            parts->operands.push_back(parse_product());
        return parts;
    }

    ExpressionPointer parse_product() {
        ExpressionPointer left = parse_unary(true);
        while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
            const std::string symbol = tokens_[at_++].text;
            left = joined(Kind::binary, symbol, std::move(left), parse_unary(true));
        }
        return left;
    }

    ExpressionPointer parse_unary(bool with_filters) {
        const Nested nested(*this);
        ExpressionPointer value;
        if (take_symbol("-")) {
            value = node(Kind::negative, "", parse_unary(false));
        } else if (take_symbol("+")) {
            value = node(Kind::positive, "", parse_unary(false));
        } else {
            value = parse_primary();
        }
        value = parse_postfix(std::move(value));
        if (take_symbol("**")) {
            value = node(Kind::binary, "**", std::move(value), parse_unary(false));
        }
        return with_filters ? parse_filters_and_tests(std::move(value)) : std::move(value);
    }

    ExpressionPointer parse_primary() {
        const Token& token = now();
        switch (token.kind) {
            case Token::Kind::name:
                return parse_name();
            case Token::Kind::string: {
                std::string text;
                while (now().kind == Token::Kind::string)
                    text += tokens_[at_++].text;
                return constant(Value::text(text));
            }
            case Token::Kind::integer:
            case Token::Kind::number:
                return parse_number();
            case Token::Kind::symbol:
                if (token.text == "(") return parse_brackets();
                if (token.text == "[") return parse_list();
                if (token.text == "{") return parse_dict();
                break;
            default:
                break;
        }
        fail("expected a value");
    }

    ExpressionPointer parse_name() {
        std::string name = tokens_[at_++].text;
        if (name == "true" || name == "True") return constant(Value(true));
        if (name == "false" || name == "False") return constant(Value(false));
        if (name == "none" || name == "None") return constant(Value(Value::None{}));
        return node(Kind::name, std::move(name));
    }

    ExpressionPointer parse_number() {
        const Token& token = tokens_[at_++];
        const char* begin = token.text.data();
        const char* end = begin + token.text.size();
        if (token.kind == Token::Kind::integer) {
            std::int64_t value = 0;
            if (std::from_chars(begin, end, value).ec != std::errc()) fail("a number is too large");
            return constant(Value(value));
        }
        double value = 0;
        if (std::from_chars(begin, end, value).ec != std::errc()) fail("a number is too large");
        return constant(Value(value));
    }

    ExpressionPointer parse_brackets() {
        need_symbol("(");
        if (take_symbol(")")) return node(Kind::list, "tuple");
        ExpressionPointer first = parse_expression();
        if (is_symbol(",")) {
            first = node(Kind::list, "tuple", std::move(first));
            while (take_symbol(",")) {
                if (is_symbol(")")) break;
                first->operands.push_back(parse_expression());
            }
        }
        need_symbol(")");
        return first;
    }

    ExpressionPointer parse_list() {
        need_symbol("[");
        auto list = node(Kind::list, "");
        while (!is_symbol("]")) {
            list->operands.push_back(parse_expression());
            if (!take_symbol(",")) break;
        }
        need_symbol("]");
        return list;
    }

    ExpressionPointer parse_dict() {
        need_symbol("{");
        auto dict = node(Kind::dict, "");
        while (!is_symbol("}")) {
            dict->operands.push_back(parse_expression());
            need_symbol(":");
            dict->operands.push_back(parse_expression());
            if (!take_symbol(",")) break;
        }
        need_symbol("}");
        return dict;
    }

    ExpressionPointer parse_postfix(ExpressionPointer value) {
        while (true) {
            if (is_symbol(".") || is_symbol("[") || is_symbol("(")) {
                if (++chain_ > max_chain) fail("this expression is too long");
            }
            if (take_symbol(".")) {
                if (now().kind == Token::Kind::integer) {
                    value = node(Kind::subscript, "", std::move(value), parse_number());
                } else {
                    value = node(Kind::attribute, need_name(), std::move(value));
                }
            } else if (take_symbol("[")) {
                value = parse_subscript(std::move(value));
            } else if (is_symbol("(")) {
                auto call = node(Kind::call, "", std::move(value));
                parse_arguments(*call);
                value = std::move(call);
            } else {
                return value;
            }
        }
    }

    ExpressionPointer parse_subscript(ExpressionPointer value) {
        ExpressionPointer parts[3];
        int part = 0;
        bool sliced = false;
        while (!is_symbol("]")) {
            if (take_symbol(":")) {
                sliced = true;
                if (++part > 2) fail("a slice has at most three parts");
                continue;
            }
            if (parts[part] != nullptr) fail("expected ]");
            parts[part] = parse_expression();
        }
        need_symbol("]");
        if (sliced) {
            return node(Kind::slice, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
                        std::move(parts[2]));
        }
        if (parts[0] == nullptr) fail("expected an index");
        return node(Kind::subscript, "", std::move(value), std::move(parts[0]));
    }

    // `(a, b, name=c)` into operands and named.
    void parse_arguments(Expression& of) {
        need_symbol("(");
        while (!is_symbol(")")) {
            const bool named = now().kind == Token::Kind::name &&
                               ahead(1).kind == Token::Kind::symbol && ahead(1).text == "=";
            if (named) {
                std::string name = need_name();
                ++at_;
                of.named.emplace_back(std::move(name), parse_expression());
            } else {
                if (!of.named.empty()) fail("an unnamed argument follows a named one");
                of.operands.push_back(parse_expression());
            }
            if (!take_symbol(",")) break;
        }
        need_symbol(")");
    }

    std::string need_dotted_name() {
        std::string name = need_name();
        while (take_symbol("."))
            name += "." + need_name();
        return name;
    }

    ExpressionPointer parse_filter(ExpressionPointer value) {
        if (++chain_ > max_chain) fail("this expression is too long");
        auto filter = node(Kind::filter, need_dotted_name(), std::move(value));
        if (is_symbol("(")) parse_arguments(*filter);
        return filter;
    }

    ExpressionPointer parse_filters(ExpressionPointer value) {
        while (take_symbol("|"))
            value = parse_filter(std::move(value));
        return value;
    }

    ExpressionPointer parse_filters_and_tests(ExpressionPointer value) {
        while (true) {
            if (take_symbol("|")) {
                value = parse_filter(std::move(value));
            } else if (take_word("is")) {
                value = parse_test(std::move(value));
            } else if (is_symbol("(")) {
                value = parse_postfix(std::move(value));
            } else {
                return value;
            }
        }
    }

    ExpressionPointer parse_test(ExpressionPointer value) {
        if (++chain_ > max_chain) fail("this expression is too long");
        const bool negated = take_word("not");
        auto test = node(Kind::test, need_dotted_name(), std::move(value));
        if (is_symbol("(")) {
            parse_arguments(*test);
        } else if (begins_test_argument()) {
            test->operands.push_back(parse_postfix(parse_primary()));
        }
        return negated ? node(Kind::logical_not, "", std::move(test)) : std::move(test);
    }

    // `x is divisibleby 3`: one argument may stand without brackets.
    bool begins_test_argument() const {
        switch (now().kind) {
            case Token::Kind::string:
            case Token::Kind::integer:
            case Token::Kind::number:
                return true;
            case Token::Kind::symbol:
                return now().text == "[" || now().text == "{";
            case Token::Kind::name:
                for (const std::string_view word : {"else", "or", "and", "is", "if", "in", "not"}) {
                    if (now().text == word) return false;
                }
                return true;
            default:
                return false;
        }
    }

    // Chains nest to the left; no statement may be deeper than the stack can walk.
    static constexpr int max_chain = 500;

    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    int depth_ = 0;
    int loops_ = 0;
    int chain_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) {
    return Parser(source).parse();
}

}  // namespace percheron::jinja
