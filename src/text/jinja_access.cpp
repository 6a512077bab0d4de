// Attributes, items, lengths and membership.
#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace percheron::jinja {
namespace {

Value method(const Value& object, const std::string& name) {
    auto callable = std::make_shared<Callable>();
    callable->kind = Callable::Kind::method;
    callable->name = name;
    callable->object = object;
    return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

}  // namespace

const Value* Arguments::find(std::size_t index, std::string_view name) const {
    if (index < positional.size()) return &positional[index];
    for (const auto& [key, value] : named) {
        if (key == name) return &value;
    }
    return nullptr;
}

const Value& Arguments::need(std::size_t index, std::string_view name, std::string_view of) const {
    const Value* value = find(index, name);
    if (value == nullptr)
        throw Failure(std::string(of) + ": the argument " + std::string(name) + " is missing");
    return *value;
}

bool Arguments::flag(std::size_t index, std::string_view name, bool otherwise) const {
    const Value* value = find(index, name);
    return value == nullptr ? otherwise : value->truth();
}

Value LoopState::attribute(const std::string& name) const {
    const auto number = [](std::size_t value) { return Value(static_cast<std::int64_t>(value)); };
    if (name == "index") return number(index + 1);
    if (name == "index0") return number(index);
    if (name == "revindex") return number(items.size() - index);
    if (name == "revindex0") return number(items.size() - index - 1);
    if (name == "first") return Value(index == 0);
    if (name == "last") return Value(index + 1 == items.size());
    if (name == "length") return number(items.size());
    if (name == "depth") return number(1);  // loops are never recursive
    if (name == "depth0") return number(0);
    if (name == "previtem" && index > 0) return items[index - 1];
    if (name == "nextitem" && index + 1 < items.size()) return items[index + 1];
    return {};
}

Value attribute_of(const Value& object, const std::string& name) {
    if (const auto* undefined = object.get_if<Value::Undefined>()) {
        throw Failure((undefined->name == nullptr ? "a value" : "`" + *undefined->name + "`") +
                      " is undefined, so it has no `" + name + "`");
    }
    if (Namespace* space = object.as_namespace()) {
        const Value* found = space->find(name);
        return found == nullptr ? Value(Value::Undefined{&name}) : *found;
    }
    if (LoopState* loop = object.as_loop()) {
        if (name == "cycle" || name == "changed") return method(object, name);
        return loop->attribute(name);
    }
    if (has_method(object, name)) return method(object, name);
    if (const Dict* dict = object.as_dict()) {
        if (const Value* found = dict->find(name)) return *found;
    }
    return Value::Undefined{&name};
}

Value item_of(const Value& object, const Value& key) {
    if (object.is_undefined()) return attribute_of(object, key.is_integer() ? "item" : "key");
    if (const Dict* dict = object.as_dict()) {
        if (const Value* found = dict->find(key)) return *found;
    }
    if (key.is_integer() && key.get_if<Value::BigInteger>() == nullptr) {
        const std::int64_t index = key.integer();
        const auto place = [&](std::size_t size) -> std::optional<std::size_t> {
            const std::int64_t at = index < 0 ? index + static_cast<std::int64_t>(size) : index;
            if (at < 0 || at >= static_cast<std::int64_t>(size)) return std::nullopt;
            return static_cast<std::size_t>(at);
        };
        if (const List* list = object.as_list()) {
            const auto at = place(list->size());
            return at ? (*list)[*at] : Value();
        }
        if (const MarkedText* text = object.as_text()) {
            const auto at = place(character_count(text->text()));
            if (!at) return {};
            const auto first = static_cast<std::int64_t>(*at);
            return Value(slice_characters(*text, first, first + 1, 1));
        }
    }
    if (const MarkedText* name = key.as_text()) {
        if (Namespace* space = object.as_namespace()) {
            const Value* found = space->find(name->text());
            return found == nullptr ? Value() : *found;
        }
        if (LoopState* loop = object.as_loop()) return loop->attribute(name->text());
        if (has_method(object, name->text())) return method(object, name->text());
    }
    return {};
}

List items_of(const Value& value, Budget& budget) {
    List items;
    if (value.is_undefined()) return items;
    if (const List* list = value.as_list()) {
        budget.charge(list->size() / 4);
        return *list;
    }
    if (const Dict* dict = value.as_dict()) {
        budget.charge(dict->entries.size());
        for (const auto& [key, item] : dict->entries)
            items.push_back(key);
        return items;
    }
    if (const MarkedText* text = value.as_text()) {
        budget.charge(text->size());
        for (MarkedText& character : characters_of(*text))
            items.emplace_back(std::move(character));
        return items;
    }
    throw Failure("a " + std::string(value.kind()) + " has no items to go through");
}

bool contains(const Value& haystack, const Value& needle, Budget& budget) {
    if (const MarkedText* text = haystack.as_text()) {
        const MarkedText* part = needle.as_text();
        if (part == nullptr) throw Failure("only a string can be in a string");
        budget.charge(text->size() / 64 + 1);
        return text->text().find(part->text()) != std::string::npos;
    }
    if (const Dict* dict = haystack.as_dict()) return dict->find(needle) != nullptr;
    if (const List* list = haystack.as_list()) {
        budget.charge(list->size());
        return std::any_of(list->begin(), list->end(),
                           [&](const Value& item) { return item.equals(needle); });
    }
    if (haystack.is_undefined()) return false;
    throw Failure("nothing can be in a " + std::string(haystack.kind()));
}

std::size_t length_of(const Value& value) {
    if (value.is_undefined()) return 0;
    if (const MarkedText* text = value.as_text()) return character_count(text->text());
    if (const List* list = value.as_list()) return list->size();
    if (const Dict* dict = value.as_dict()) return dict->entries.size();
    throw Failure("a " + std::string(value.kind()) + " has no length");
}

}  // namespace percheron::jinja
