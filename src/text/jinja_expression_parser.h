// Expressions, by precedence from the loosest: conditional, or, and, not, comparisons, + -, ~, * /
// // %, signs, **, then attributes, items and calls, then filters and tests.
#pragma once

#include <charconv>
#include <string>
#include <utility>

#include "text/jinja_syntax.h"
#include "text/jinja_token_reader.h"

namespace percheron::jinja {

class ExpressionParser : protected TokenReader {
  protected:
    using Kind = Expression::Kind;

    explicit ExpressionParser(std::vector<Token> tokens) : TokenReader(std::move(tokens)) {}

    // A new statement begins.
    void begin_statement() { chain_ = 0; }

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

  private:
    // Chains nest to the left; no statement may be deeper than the stack can walk.
    static constexpr int max_chain = 500;

    int chain_ = 0;
};

}  // namespace percheron::jinja
