#include "text/jinja_interpreter.h"

#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"
#include "text/jinja_text.h"

namespace percheron::jinja {

// Names assigned in a block; outer ones are seen through the parent.
struct Scope {
    std::shared_ptr<Scope> parent;
    std::vector<std::pair<std::string, Value>> names;

    Value* find(std::string_view name) {
        for (auto& [key, value] : names) {
            if (key == name) return &value;
        }
        return parent == nullptr ? nullptr : parent->find(name);
    }
    void set(const std::string& name, Value value) {
        for (auto& [key, present] : names) {
            if (key == name) {
                present = std::move(value);
                return;
            }
        }
        names.emplace_back(name, std::move(value));
    }
};

namespace {

using Kind = Expression::Kind;
using ScopePointer = std::shared_ptr<Scope>;

constexpr int max_run_depth = 1200;
constexpr int max_macro_depth = 60;

enum class Flow { on, leave, next };

class Interpreter {
  public:
    Interpreter(const RunLimits& limits, std::time_t now)
        : budget_(limits.steps, limits.text_bytes), now_(now) {}

    ~Interpreter() {
        // Macros hold the scope they were defined in, which holds them; namespaces may hold
        // themselves.  Emptying both lets everything go.
        for (const ScopePointer& scope : scopes_with_macros_)
            scope->names.clear();
        for (const auto& space : namespaces_)
            space.lock() ? space.lock()->attributes.clear() : void();
    }
    Interpreter(const Interpreter&) = delete;
    Interpreter& operator=(const Interpreter&) = delete;

    MarkedText run(const Block& block, std::vector<std::pair<std::string, Value>> variables) {
        auto outermost = std::make_shared<Scope>();
        outermost->names = std::move(variables);
        execute(block, outermost);
        return std::move(output_);
    }

  private:
    struct Depth {
        explicit Depth(int& depth) : depth(depth) {
            if (++depth > max_run_depth) throw Failure("the template nests too deeply");
        }
        ~Depth() { --depth; }
        Depth(const Depth&) = delete;
        Depth& operator=(const Depth&) = delete;
        int& depth;
    };

    static ScopePointer inside(const ScopePointer& parent) {
        auto scope = std::make_shared<Scope>();
        scope->parent = parent;
        return scope;
    }

    // ---- statements -------------------------------------------------------------------------

    Flow execute(const Block& block, const ScopePointer& scope) {
        const Depth depth(depth_);
        for (const StatementPointer& statement : block) {
            const Flow flow = execute(*statement, scope);
            if (flow != Flow::on) return flow;
        }
        return Flow::on;
    }

    Flow execute(const Statement& statement, const ScopePointer& scope) {
        budget_.charge(1);
        switch (statement.kind) {
            case Statement::Kind::text:
                print(*statement.value.as_text());
                return Flow::on;
            case Statement::Kind::output: {
                const Value value = evaluate(*statement.expression, scope);
                if (const MarkedText* text = value.as_text()) {
                    print(*text);
                } else {
                    print(value.str(budget_));
                }
                return Flow::on;
            }
            case Statement::Kind::set:
                assign(statement, evaluate(*statement.expression, scope), scope);
                return Flow::on;
            case Statement::Kind::set_block:
            case Statement::Kind::filter:
                filter_block(statement, scope);
                return Flow::on;
            case Statement::Kind::condition:
                return execute(evaluate(*statement.expression, scope).truth() ? statement.body
                                                                              : statement.otherwise,
                               scope);
            case Statement::Kind::loop:
                return loop(statement, scope);
            case Statement::Kind::macro:
                define(statement, scope);
                return Flow::on;
            case Statement::Kind::leave:
                return Flow::leave;
            case Statement::Kind::next:
                return Flow::next;
        }
        return Flow::on;
    }

    void print(const MarkedText& text) {
        budget_.charge_bytes(text.size());
        budget_.check_bytes(output_.size() + text.size());
        output_.append(text);
    }

    void assign(const Statement& statement, Value value, const ScopePointer& scope) {
        if (!statement.attribute.empty()) {
            Value* target = scope->find(statement.targets[0]);
            Namespace* space = target == nullptr ? nullptr : target->as_namespace();
            if (space == nullptr) {
                throw Failure("`" + statement.targets[0] +
                              "` is no namespace, so it cannot be changed");
            }
            if (Value* present = space->find(statement.attribute)) {
                *present = std::move(value);
            } else {
                space->attributes.emplace_back(statement.attribute, std::move(value));
            }
            return;
        }
        bind(statement.targets, value, scope);
    }

    void bind(const std::vector<std::string>& targets, const Value& value,
              const ScopePointer& scope) {
        if (targets.size() == 1) return scope->set(targets[0], value);
        const List items = items_of(value, budget_);
        if (items.size() != targets.size()) {
            throw Failure(std::to_string(items.size()) + " values cannot be given to " +
                          std::to_string(targets.size()) + " names");
        }
        for (std::size_t i = 0; i < items.size(); ++i)
            scope->set(targets[i], items[i]);
    }

    // The text that `block` prints.
    MarkedText text_of(const Block& block, const ScopePointer& scope) {
        MarkedText outer = std::exchange(output_, {});
        execute(block, scope);
        return std::exchange(output_, std::move(outer));
    }

    void filter_block(const Statement& statement, const ScopePointer& scope) {
        Value text(text_of(statement.body, inside(scope)));
        std::swap(captured_, text);
        Value filtered = evaluate(*statement.expression, scope);
        std::swap(captured_, text);
        if (statement.kind == Statement::Kind::filter) {
            print(filtered.str(budget_));
        } else {
            assign(statement, std::move(filtered), scope);
        }
    }

    Flow loop(const Statement& statement, const ScopePointer& scope) {
        List items = items_of(evaluate(*statement.expression, scope), budget_);
        if (statement.filter != nullptr) {
            List kept;
            for (Value& item : items) {
                const ScopePointer inner = inside(scope);
                bind(statement.targets, item, inner);
                if (evaluate(*statement.filter, inner).truth()) kept.push_back(std::move(item));
            }
            items = std::move(kept);
        }
        if (items.empty()) return execute(statement.otherwise, inside(scope));
        auto state = std::make_shared<LoopState>();
        state->items = std::move(items);
        ScopePointer inner;
        for (; state->index < state->items.size(); ++state->index) {
            budget_.charge(1);
            if (inner == nullptr || inner.use_count() > 1) {
                inner = inside(scope);
            } else {
                inner->names.clear();
            }
            bind(statement.targets, state->items[state->index], inner);
            inner->set("loop", Value(state));
            if (execute(statement.body, inner) == Flow::leave) break;
        }
        return Flow::on;
    }

    void define(const Statement& statement, const ScopePointer& scope) {
        auto macro = std::make_shared<Callable>();
        macro->kind = Callable::Kind::macro;
        macro->name = statement.name;
        macro->macro = &statement;
        macro->scope = scope;
        scopes_with_macros_.push_back(scope);
        scope->set(statement.name, Value(std::shared_ptr<const Callable>(std::move(macro))));
    }

    Value call_macro(const Callable& macro, const Arguments& arguments) {
        const Statement& statement = *macro.macro;
        if (++macro_depth_ > max_macro_depth) throw Failure("macros call each other too deeply");
        const ScopePointer scope = inside(macro.scope);
        if (arguments.positional.size() > statement.targets.size()) {
            throw Failure("the macro `" + macro.name + "` takes at most " +
                          std::to_string(statement.targets.size()) + " arguments");
        }
        for (const auto& [name, value] : arguments.named) {
            if (std::find(statement.targets.begin(), statement.targets.end(), name) ==
                statement.targets.end()) {
                throw Failure("the macro `" + macro.name + "` has no argument `" + name + "`");
            }
        }
        for (std::size_t i = 0; i < statement.targets.size(); ++i) {
            const std::string& name = statement.targets[i];
            if (const Value* given = arguments.find(i, name)) {
                scope->set(name, *given);
            } else if (statement.defaults[i] != nullptr) {
                scope->set(name, evaluate(*statement.defaults[i], scope));
            } else {
                scope->set(name, Value::Undefined{&name});
            }
        }
        Value text(text_of(statement.body, scope));
        --macro_depth_;
        return text;
    }

    // ---- expressions ------------------------------------------------------------------------

    Value evaluate(const Expression& expression, const ScopePointer& scope) {
        budget_.charge(1);
        const Depth depth(depth_);
        const auto operand = [&](std::size_t i) {
            return evaluate(*expression.operands[i], scope);
        };
        switch (expression.kind) {
            case Kind::constant:
                return expression.value;
            case Kind::captured:
                return captured_;
            case Kind::name:
                return named(expression.name, scope);
            case Kind::list: {
                List list;
                list.reserve(expression.operands.size());
                for (const auto& item : expression.operands)
                    list.push_back(evaluate(*item, scope));
                return expression.name == "tuple" ? Value::tuple(std::move(list))
                                                  : Value(std::move(list));
            }
            case Kind::dict: {
                Dict dict;
                for (std::size_t i = 0; i < expression.operands.size(); i += 2) {
                    dict.set(operand(i), operand(i + 1));
                }
                return Value(std::move(dict));
            }
            case Kind::attribute:
                return attribute_of(operand(0), expression.name);
            case Kind::subscript:
                return item_of(operand(0), operand(1));
            case Kind::slice:
                return slice(expression, scope);
            case Kind::call:
                return call(expression, scope);
            case Kind::filter:
                return apply_filter(expression.name, operand(0), arguments_of(expression, scope),
                                    budget_);
            case Kind::test:
                return Value(apply_test(expression.name, operand(0),
                                        arguments_of(expression, scope), budget_));
            case Kind::negative:
                return negative(operand(0));
            case Kind::positive:
                return operand(0);
            case Kind::logical_not:
                return Value(!operand(0).truth());
            case Kind::logical_and: {
                Value left = operand(0);
                return left.truth() ? operand(1) : left;
            }
            case Kind::logical_or: {
                Value left = operand(0);
                return left.truth() ? left : operand(1);
            }
            case Kind::binary:
                return calculate(expression.name, operand(0), operand(1), budget_);
            case Kind::concatenate:
                return concatenate(expression, scope);
            case Kind::compare:
                return compare(expression, scope);
            case Kind::conditional:
                if (operand(1).truth()) return operand(0);
                return expression.operands[2] == nullptr ? Value() : operand(2);
        }
        return {};
    }

    Value named(const std::string& name, const ScopePointer& scope) {
        if (const Value* value = scope->find(name)) return *value;
        if (!is_global(name)) return Value::Undefined{&name};
        auto callable = std::make_shared<Callable>();
        callable->name = name;
        return Value(std::shared_ptr<const Callable>(std::move(callable)));
    }

    Value slice(const Expression& expression, const ScopePointer& scope) {
        const Value object = evaluate(*expression.operands[0], scope);
        const auto bound = [&](std::size_t i) -> std::optional<std::int64_t> {
            if (expression.operands[i] == nullptr) return std::nullopt;
            const Value value = evaluate(*expression.operands[i], scope);
            if (value.is_none()) return std::nullopt;
            return value.integer();
        };
        const auto begin = bound(1);
        const auto end = bound(2);
        const std::int64_t step = bound(3).value_or(1);
        if (const MarkedText* text = object.as_text()) {
            budget_.charge_bytes(text->size());
            return Value(slice_characters(*text, begin, end, step));
        }
        if (const List* list = object.as_list()) {
            List part;
            const auto indices = slice_indices(list->size(), begin, end, step);
            budget_.charge(indices.size() / 4);
            part.reserve(indices.size());
            for (const std::size_t i : indices)
                part.push_back((*list)[i]);
            return object.is_tuple() ? Value::tuple(std::move(part)) : Value(std::move(part));
        }
        if (object.is_undefined()) return {};
        throw Failure("a " + std::string(object.kind()) + " cannot be sliced");
    }

    Arguments arguments_of(const Expression& expression, const ScopePointer& scope) {
        Arguments arguments;
        for (std::size_t i = 1; i < expression.operands.size(); ++i) {
            arguments.positional.push_back(evaluate(*expression.operands[i], scope));
        }
        for (const auto& [name, value] : expression.named) {
            arguments.named.emplace_back(name, evaluate(*value, scope));
        }
        return arguments;
    }

    Value call(const Expression& expression, const ScopePointer& scope) {
        const Expression& callee = *expression.operands[0];
        if (callee.kind == Kind::attribute) {
            const Value object = evaluate(*callee.operands[0], scope);
            if (object.as_loop() != nullptr || has_method(object, callee.name)) {
                return call_method(object, callee.name, arguments_of(expression, scope), budget_);
            }
            return call(attribute_of(object, callee.name), callee.name, expression, scope);
        }
        return call(evaluate(callee, scope), callee.name, expression, scope);
    }

    Value call(const Value& callee, const std::string& written, const Expression& expression,
               const ScopePointer& scope) {
        const Callable* callable = callee.as_callable();
        if (callable == nullptr) {
            throw Failure(
                "`" + written + "` is " +
                (callee.is_undefined() ? "undefined" : "a " + std::string(callee.kind())) +
                " and cannot be called");
        }
        const Arguments arguments = arguments_of(expression, scope);
        switch (callable->kind) {
            case Callable::Kind::macro:
                return call_macro(*callable, arguments);
            case Callable::Kind::method:
                return call_method(callable->object, callable->name, arguments, budget_);
            case Callable::Kind::global:
                break;
        }
        Value result = call_global(callable->name, arguments, now_, budget_);
        if (const auto* space = result.get_if<std::shared_ptr<Namespace>>()) {
            namespaces_.push_back(*space);
        }
        return result;
    }

    Value concatenate(const Expression& expression, const ScopePointer& scope) {
        MarkedText joined;
        for (const auto& part : expression.operands) {
            const MarkedText text = evaluate(*part, scope).str(budget_);
            budget_.check_bytes(joined.size() + text.size());
            joined.append(text);
        }
        return Value(std::move(joined));
    }

    Value compare(const Expression& expression, const ScopePointer& scope) {
        Value left = evaluate(*expression.operands[0], scope);
        for (std::size_t i = 0; i < expression.names.size(); ++i) {
            Value right = evaluate(*expression.operands[i + 1], scope);
            if (!holds(expression.names[i], left, right, budget_)) return Value(false);
            left = std::move(right);
        }
        return Value(true);
    }

    Budget budget_;
    std::time_t now_;
    MarkedText output_;
    Value captured_;
    std::vector<ScopePointer> scopes_with_macros_;
    std::vector<std::weak_ptr<Namespace>> namespaces_;
    int depth_ = 0;
    int macro_depth_ = 0;
};

}  // namespace

MarkedText run_template(const Block& block, std::vector<std::pair<std::string, Value>> variables,
                        const RunLimits& limits, std::time_t now) {
    Interpreter interpreter(limits, now);
    return interpreter.run(block, std::move(variables));
}

}  // namespace percheron::jinja
