// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace percheron::jinja {

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

struct Expression {
    enum class Kind {
        constant,   // value
        captured,   // the text of the block that is being filtered
        name,       // name
        list,       // operands
        dict,       // operands: key, value, key, value, ...
        attribute,  // operands[0].name
        subscript,  // operands[0][operands[1]]
        slice,      // operands[0][operands[1]:operands[2]:operands[3]], absent ones null
        call,       // operands[0](operands[1..], named...)
        filter,     // operands[0] | name(operands[1..], named...)
        test,       // operands[0] is name(operands[1..])
        negative,   // -operands[0]
        positive,   // +operands[0]
        logical_not,
        logical_and,
        logical_or,
        binary,       // operands[0] name operands[1], name one of + - * / // % **
        concatenate,  // operands joined as strings
        compare,      // operands[0] names[0] operands[1] names[1] operands[2] ...
        conditional,  // operands[0] if operands[1] else operands[2] (null: undefined)
    };
    Kind kind = Kind::constant;
    int line = 0;
    Value value;
    std::string name;
    std::vector<std::string> names;
    std::vector<ExpressionPointer> operands;
    std::vector<std::pair<std::string, ExpressionPointer>> named;
};

struct Statement;
using StatementPointer = std::unique_ptr<Statement>;
using Block = std::vector<StatementPointer>;

struct Statement {
    enum class Kind {
        text,       // value: a text of the template
        output,     // expression
        set,        // targets (or names[0].names[1]) = expression
        set_block,  // targets[0] = the text of body, through the filters of `expression`
        condition,  // if expression body; else otherwise
        loop,       // for targets in expression (if filter) body; else otherwise
        macro,      // names[0](targets = defaults) body
        filter,     // the text of body through the filters of `expression`
        leave,      // break
        next,       // continue
    };
    Kind kind = Kind::text;
    int line = 0;
    Value value;
    ExpressionPointer expression;
    ExpressionPointer filter;
    std::vector<std::string> targets;
    std::string attribute;                    // of targets[0], when a namespace is set
    std::string name;                         // of a macro
    std::vector<ExpressionPointer> defaults;  // of a macro, null where there is none
    Block body;
    Block otherwise;
};

}  // namespace percheron::jinja
