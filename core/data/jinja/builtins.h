// The filters, tests, methods and functions of chat templates that are known here.
#pragma once

#include <string>
#include <string_view>

#include "core/data/jinja/value.h"

namespace het::jinja {

// All throw Error(usage) for names that are unknown, and for values that do not fit.

// value | name(arguments)
Value filtered(std::string_view name, const Value& value, const Arguments& arguments);
// value is name(arguments)
bool tested(std::string_view name, const Value& value, const Arguments& arguments);
// value.name(arguments)
Value called(std::string_view name, const Value& value, const Arguments& arguments);

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

// range, namespace, dict, raise_exception: by name; undefined for other names. There is no strftime_now: what
// a run trains on must not depend on the day.
Value function_named(std::string_view name);

}  // namespace het::jinja
