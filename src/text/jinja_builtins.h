// Filters, tests, methods and global functions of the template language.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "text/jinja_callable.h"
#include "text/jinja_value.h"

namespace percheron::jinja {

// All throw Failure: for unknown names, wrong kinds, missing arguments.

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments,
                   Budget& budget);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments,
                Budget& budget);

bool has_method(const Value& object, std::string_view name);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments,
                  Budget& budget);

// `object.name` and `object[key]`; undefined where there is nothing.  `name` must live as long as
// the result.
Value attribute_of(const Value& object, const std::string& name);
Value item_of(const Value& object, const Value& key);

// What a `for` walks over.
List items_of(const Value& value, Budget& budget);
// `needle in haystack`
bool contains(const Value& haystack, const Value& needle, Budget& budget);
std::size_t length_of(const Value& value);

bool is_global(std::string_view name);
Value call_global(const std::string& name, const Arguments& arguments, std::time_t now,
                  Budget& budget);

}  // namespace percheron::jinja
