// What a template can call, and the state of a loop it can ask about.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace percheron::jinja {

struct Statement;
struct Scope;

struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;

    // The argument at `index` or called `name`; nullptr if absent.
    const Value* find(std::size_t index, std::string_view name) const;
    // The same; Failure if absent.
    const Value& need(std::size_t index, std::string_view name, std::string_view of) const;
    bool flag(std::size_t index, std::string_view name, bool otherwise) const;
};

struct Callable {
    enum class Kind { global, method, macro };
    Kind kind = Kind::global;
    std::string name;
    Value object;                      // of a method
    const Statement* macro = nullptr;  // lives as long as the template
    std::shared_ptr<Scope> scope;      // where the macro was defined
};

struct LoopState {
    std::vector<Value> items;
    std::size_t index = 0;
    std::optional<std::vector<Value>> last_changed;

    // Undefined for names that a loop does not have.
    Value attribute(const std::string& name) const;
};

}  // namespace percheron::jinja
