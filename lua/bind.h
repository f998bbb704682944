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
template <typename T>
struct Convert<T, std::enable_if_t<std::is_arithmetic_v<T> && !std::is_same_v<T, bool>>> {
  static T get(lua_State* L, int index) {
    if (lua_type(L, index) != LUA_TNUMBER) wrong_argument(L, index, "a number");
    const double value = lua_tonumber(L, index);
    if constexpr (std::is_integral_v<T>) {
      if (value != std::floor(value)) wrong_argument(L, index, "a whole number");
      if (!(std::abs(value) <= 0x1p53)) wrong_argument(L, index, "a whole number of at most 2^53");
    }
    return static_cast<T>(value);
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
    const int count = static_cast<int>(lua_objlen(L, index));
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, index, i);
      if constexpr (std::is_integral_v<T>) {  // of the list, whose place in the call is known
        const double value = lua_tonumber(L, -1);
        if (lua_type(L, -1) != LUA_TNUMBER || value != std::floor(value) || !(std::abs(value) <= 0x1p53))
          wrong_argument(L, index, "a list of whole numbers of at most 2^53");
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
void push_error(lua_State* L, const Error& error);
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
    push_error(L, error);
  } catch (const std::bad_alloc&) {
    push_error(L, out_of_memory());
  } catch (const std::exception& error) {
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
    static_cast<T*>(lua_touserdata(state, 1))->~T();
    return 0;
  });
}

// A field of the table at `index`, or nothing.
template <typename T>
std::optional<T> field(lua_State* L, int index, const char* name) {
  lua_getfield(L, index, name);
  auto value = with_context([&] { return std::string("field '") + name + "'"; },
                            [&] { return Convert<std::optional<T>>::get(L, lua_gettop(L)); });
  lua_pop(L, 1);
  return value;
}

void set_field(lua_State* L, const char* name, const std::string& value);
void set_field(lua_State* L, const char* name, double value);
void set_field(lua_State* L, const char* name, bool value);
template <typename T>
void set_list(lua_State* L, const char* name, const std::vector<T>& value) {
  Convert<std::vector<T>>::push(L, value);
  lua_setfield(L, -2, name);
}

}  // namespace het::lua
