// Values of the template language: Python's, as far as chat templates see them.
//
// Strings remember which of their bytes came from outside (MarkedText).  Values are cheap to copy:
// what is large is shared and never changed, except namespaces.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/status.h"
#include "text/marked_text.h"

namespace percheron::jinja {

// Thrown while a template runs and turned into an Error at the room's edge; never leaves it.
class Failure : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

class Value;
struct Dict;
struct Namespace;
struct Callable;
struct LoopState;

using List = std::vector<Value>;

// What one run may use up.  Everything a template does is charged here, so that no input makes it
// run for ever or fill the memory.
class Budget {
  public:
    Budget(std::uint64_t steps, std::size_t text_bytes) : steps_(steps), text_bytes_(text_bytes) {}

    void charge(std::uint64_t steps);
    // A text of this many bytes is about to be made: checks the size and charges for the copy.
    void charge_bytes(std::size_t bytes);
    void check_bytes(std::size_t bytes) const;

  private:
    std::uint64_t steps_;
    std::size_t text_bytes_;
};

inline constexpr int max_value_depth = 200;

class Value {
  public:
    struct Undefined {
        const std::string* name = nullptr;  // for the message; lives as long as the template
    };
    struct None {};
    struct BigInteger {  // beyond 64 bits: only printed and compared
        std::shared_ptr<const std::string> digits;
    };
    using TextPointer = std::shared_ptr<const MarkedText>;

    Value() = default;
    Value(Undefined undefined) : content_(undefined) {}
    Value(None none) : content_(none) {}
    Value(bool value) : content_(value) {}
    Value(std::int64_t value) : content_(value) {}
    Value(double value) : content_(value) {}
    Value(BigInteger value) : content_(std::move(value)) {}
    Value(MarkedText text) : content_(std::make_shared<const MarkedText>(std::move(text))) {}
    Value(List list);
    static Value tuple(List list);  // a list that Python would print in round brackets
    Value(Dict dict);
    Value(std::shared_ptr<Namespace> space) : content_(std::move(space)) {}
    Value(std::shared_ptr<const Callable> callable) : content_(std::move(callable)) {}
    Value(std::shared_ptr<LoopState> loop) : content_(std::move(loop)) {}
    template <class T>
    Value(T*) = delete;  // a pointer is not a boolean

    static Value text(std::string_view bytes, TextOrigin origin = TextOrigin::from_template) {
        return Value(MarkedText(std::string(bytes), origin));
    }

    template <class T>
    const T* get_if() const {
        return std::get_if<T>(&content_);
    }
    bool is_undefined() const { return get_if<Undefined>() != nullptr; }
    bool is_none() const { return get_if<None>() != nullptr; }
    bool is_number() const;  // booleans too, as in Python
    bool is_integer() const;
    // nullptr unless the value is of that kind.
    const MarkedText* as_text() const;
    const List* as_list() const;
    const Dict* as_dict() const;
    Namespace* as_namespace() const;
    const Callable* as_callable() const;
    LoopState* as_loop() const;

    bool is_tuple() const { return tuple_; }
    bool truth() const;
    double number() const;          // of a number
    std::int64_t integer() const;   // Failure unless a whole number of 64 bits
    std::string_view kind() const;  // for messages: "string", "list", ...
    int depth() const;

    bool equals(const Value& other) const;
    // Failure if the two kinds have no order.
    bool less_than(const Value& other) const;

    // Python's str(): what `{{ value }}` prints.
    MarkedText str(Budget& budget) const;
    // Python's repr().
    void append_repr(MarkedText& out, Budget& budget) const;

  private:
    std::variant<Undefined, None, bool, std::int64_t, double, BigInteger, TextPointer,
                 std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                 std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
                 std::shared_ptr<LoopState>>
        content_ = Undefined{};
    int depth_ = 0;
    bool tuple_ = false;
};

// Keeps insertion order.
struct Dict {
    std::vector<std::pair<Value, Value>> entries;

    const Value* find(std::string_view key) const;
    const Value* find(const Value& key) const;
    void set(Value key, Value value);

  private:
    std::unordered_map<std::string, std::size_t> text_keys_;
};

struct Namespace {
    std::vector<std::pair<std::string, Value>> attributes;

    Value* find(std::string_view name);
};

// The value of parsed JSON, its texts marked with `origin`.
// Errors: invalid_argument beyond max_value_depth.
Result<Value> value_of_json(const nlohmann::ordered_json& json, TextOrigin origin);
// Parses JSON itself, so that whole numbers of any length keep their digits.
Result<Value> value_of_json_text(std::string_view json, TextOrigin origin);

struct JsonStyle {
    bool ensure_ascii = false;
    bool sort_keys = false;
    int indent = -1;  // below 0: one line
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};
// Python's json.dumps().  Failure for values that JSON lacks.
MarkedText json_of(const Value& value, const JsonStyle& style, Budget& budget);

// Python's repr() of a float.
std::string float_repr(double value);

}  // namespace percheron::jinja
