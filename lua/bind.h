// The binder between Lua and the engine. An ordinary C++ function becomes a Lua function by
// `bind<&function>("name")`: its arguments are checked and converted by their types, its result is pushed,
// and an Error that leaves it becomes a Lua error table {kind, message, context}. Objects of the engine are
// userdata that hold a C++ value and destroy it when Lua collects them.
//
// Lua errors are C++ exceptions under LuaJIT on x86-64: destructors run, and nothing here catches (...).
#pragma once

#include <cmath>
#include <cstdint>
#include <lua.hpp>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/graph/attributes.h"
#include "core/tensor/shape.h"

namespace het::lua {

// The name of a class of userdata, also of its metatable. Specialised for each class that Lua sees.
template <typename T>
struct ClassName;
#define HET_LUA_CLASS(type, text)              \
  template <>                                  \
  struct het::lua::ClassName<type> {           \
    static constexpr const char* value = text; \
  }

// `index` < 0: of a value that is no argument but stands in one.
[[noreturn]] void wrong_argument(lua_State* L, int index, std::string_view wanted);

// --- objects

template <typename T>
T* to_object(lua_State* L, int index) {  // nullptr when the value is not one
  void* memory = lua_touserdata(L, index);
  if (memory == nullptr || !lua_getmetatable(L, index)) return nullptr;
  luaL_getmetatable(L, ClassName<T>::value);
  const bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same ? static_cast<T*>(memory) : nullptr;
}

template <typename T>
T& check_object(lua_State* L, int index) {
  if (T* object = to_object<T>(L, index)) return *object;
  wrong_argument(L, index, ClassName<T>::value);
}

template <typename T>
T& push_object(lua_State* L, T value) {
  void* memory = lua_newuserdata(L, sizeof(T));
  T* object = new (memory) T(std::move(value));
  luaL_getmetatable(L, ClassName<T>::value);
  lua_setmetatable(L, -2);
  return *object;
}

// --- values

template <typename T, typename = void>
struct Convert {  // a class of userdata
  static T& get(lua_State* L, int index) { return check_object<T>(L, index); }
  static int push(lua_State* L, T value) {
    push_object<T>(L, std::move(value));
    return 1;
  }
};
template <>
struct Convert<bool> {
  static bool get(lua_State* L, int index) { return lua_toboolean(L, index) != 0; }
  static int push(lua_State* L, bool value) {
    lua_pushboolean(L, value);
    return 1;
  }
};
// A number of Lua as an integer of type T, if it is one.
template <typename T>
std::optional<T> integer_of(double value) {
  const auto whole = whole_number(value);
  if (!whole || !std::in_range<T>(*whole)) return std::nullopt;
  return static_cast<T>(*whole);
}
template <typename T>
constexpr std::string_view integer_wanted() {
  return sizeof(T) < 8 ? "a whole number below 2^31" : "a whole number of at most 2^53";
}
template <typename T>
struct Convert<T, std::enable_if_t<std::is_arithmetic_v<T> && !std::is_same_v<T, bool>>> {
  static T get(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TNUMBER) wrong_argument(L, index, "a number");
    const double value = lua_tonumber(L, index);
    if constexpr (std::is_integral_v<T>) {
      if (const auto whole = integer_of<T>(value)) return *whole;
      wrong_argument(L, index, integer_wanted<T>());
    } else {
      return static_cast<T>(value);
    }
  }
  static int push(lua_State* L, T value) {
    lua_pushnumber(L, static_cast<double>(value));
    return 1;
  }
};
template <>
struct Convert<std::string> {
  static std::string get(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TSTRING) wrong_argument(L, index, "a string");
    size_t length = 0;
    const char* text = lua_tolstring(L, index, &length);
    return {text, length};
  }
  static int push(lua_State* L, const std::string& value) {
    lua_pushlstring(L, value.data(), value.size());
    return 1;
  }
};
template <>
struct Convert<DType> {
  static DType get(lua_State* L, int index);  // throws Error(usage) naming the nearest dtype
  static int push(lua_State* L, DType value) {
    return Convert<std::string>::push(L, std::string(name_of(value)));
  }
};
template <typename T>
struct Convert<std::vector<T>> {
  static std::vector<T> get(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TTABLE) wrong_argument(L, index, "a list");
    std::vector<T> values;
    const int list = index < 0 ? lua_gettop(L) + 1 + index : index;
    const int count = static_cast<int>(lua_objlen(L, list));
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, list, i);
      // Named is the list, whose place in the call is known.
      if constexpr (std::is_integral_v<T>) {
        if (lua_type(L, -1) != LUA_TNUMBER || !integer_of<T>(lua_tonumber(L, -1)))
          wrong_argument(L, index,
                         sizeof(T) < 8 ? "a list of whole numbers below 2^31"
                                       : "a list of whole numbers of at most 2^53");
      } else if constexpr (std::is_arithmetic_v<T>) {
        if (lua_type(L, -1) != LUA_TNUMBER) wrong_argument(L, index, "a list of numbers");
      } else if constexpr (std::is_same_v<T, std::string>) {
        if (lua_type(L, -1) != LUA_TSTRING) wrong_argument(L, index, "a list of strings");
      }
      values.push_back(Convert<T>::get(L, lua_gettop(L)));
      lua_pop(L, 1);
    }
    return values;
  }
  static int push(lua_State* L, const std::vector<T>& values) {
    lua_createtable(L, static_cast<int>(values.size()), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      Convert<T>::push(L, values[i]);
      lua_rawseti(L, -2, static_cast<int>(i) + 1);
    }
    return 1;
  }
};
template <typename T>
struct Convert<std::optional<T>> {
  static std::optional<T> get(lua_State* L, int index) {
    if (lua_isnoneornil(L, index)) return std::nullopt;
    return Convert<T>::get(L, index);
  }
  static int push(lua_State* L, const std::optional<T>& value) {
    if (value) return Convert<T>::push(L, *value);
    lua_pushnil(L);
    return 1;
  }
};
template <>
struct Convert<Attributes> {
  static Attributes get(lua_State* L, int index);  // from a table; an absent one is empty
};

// --- functions

namespace detail {

// Push {kind, message, context} with a __tostring for `error`.
void push_error(lua_State* L, const Error& error, std::string_view kind = {});  // default: the error's
void push_unexpected(lua_State* L, const std::exception& problem);

template <typename R, typename... Args, size_t... I>
int invoke(lua_State* L, R (*function)(Args...), std::index_sequence<I...>) {
  if constexpr (sizeof...(Args) == 1 && (std::is_same_v<Args, lua_State*> && ...)) {
    return function(L);
  } else {
    // Braces evaluate left to right, so that the first wrong argument is the one named.
    std::tuple<decltype(Convert<std::decay_t<Args>>::get(L, 0))...> arguments{
        Convert<std::decay_t<Args>>::get(L, static_cast<int>(I) + 1)...};
    if constexpr (std::is_void_v<R>) {
      function(std::get<I>(arguments)...);
      return 0;
    } else {
      return Convert<std::decay_t<R>>::push(L, function(std::get<I>(arguments)...));
    }
  }
}

// Every bound function runs inside this: an escaped C++ exception would lose its text.
template <auto function, typename R, typename... Args>
int trampoline(lua_State* L, R (*)(Args...)) {
  try {
    return invoke(L, function, std::index_sequence_for<Args...>());
  } catch (const Error& error) {
    lua_settop(L, 0);  // room for the error, however deep the function was in tables
    push_error(L, error);
  } catch (const std::bad_alloc&) {
    lua_settop(L, 0);
    push_error(L, out_of_memory());
  } catch (const std::exception& error) {
    lua_settop(L, 0);
    push_unexpected(L, error);
  }
  return lua_error(L);
}

template <auto function>
int enter(lua_State* L) {
  return trampoline<function>(L, function);
}

}  // namespace detail

struct Function {
  const char* name;
  lua_CFunction call;
};
// `function`: pointer to a free function of convertible arguments, or `int f(lua_State*)` that does its own.
template <auto function>
constexpr Function bind(const char* name) {
  return {name, &detail::enter<function>};
}

// Add functions to the table on top of the stack. `owner` ("native", "graph") names them in errors.
void set_functions(lua_State* L, const char* owner, std::initializer_list<Function> functions);

// Make the metatable of T: methods, metamethods (names beginning with "__"), destruction. `index`, when
// given, is asked first for fields: it pushes a value and returns 1, or returns 0 and the methods are looked
// up.
using IndexFunction = int (*)(lua_State*);
void make_class(lua_State* L, const char* name, std::initializer_list<Function> functions,
                IndexFunction index, lua_CFunction destroy);
template <typename T>
void make_class(lua_State* L, std::initializer_list<Function> functions, IndexFunction index = nullptr) {
  make_class(L, ClassName<T>::value, functions, index, [](lua_State* state) {
    if (T* object = to_object<T>(state, 1)) {
      object->~T();
      // With --trust, debug.getmetatable gives recipes __gc: what was destroyed is of no class from here on.
      lua_pushnil(state);
      lua_setmetatable(state, 1);
    }
    return 0;
  });
}

// A field of the table at `index`, or nothing.
template <typename T>
std::optional<T> field(lua_State* L, int index, const char* name) {
  if (!lua_istable(L, index))
    fail_usage("a table with '{}' is needed, not a {}", name, lua_typename(L, lua_type(L, index)));
  lua_getfield(L, index, name);
  auto value = with_context([&] { return std::string("field '") + name + "'"; },
                            [&] { return Convert<std::optional<T>>::get(L, -1); });
  lua_pop(L, 1);
  return value;
}

// Of a list at `index` of a call, how many entries it has.
int list_size(lua_State* L, int index);

// The number at `index`, a whole one, as the seed of a stream of random numbers.
uint64_t seed_at(lua_State* L, int index);

void set_field(lua_State* L, const char* name, const std::string& value);
void set_field(lua_State* L, const char* name, double value);
void set_field(lua_State* L, const char* name, bool value);
template <typename T>
void set_list(lua_State* L, const char* name, const std::vector<T>& value) {
  Convert<std::vector<T>>::push(L, value);
  lua_setfield(L, -2, name);
}

}  // namespace het::lua
