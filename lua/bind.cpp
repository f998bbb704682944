#include "lua/bind.h"

#include <cmath>

#include "core/base/nearest.h"

namespace het::lua {
namespace {

constexpr const char* kErrorClass = "het.error";
constexpr const char* kErrorKinds = "het.error.kinds";  // kept by lua/het/errors.lua: error -> its kind

// Upvalue 1 of every bound function is its full name.
std::string current_function(lua_State* L) {
  const char* name = lua_tostring(L, lua_upvalueindex(1));
  return name == nullptr ? "function" : name;
}

int error_to_string(lua_State* L) {
  lua_getfield(L, 1, "message");  // which a recipe may have changed
  if (lua_type(L, -1) != LUA_TSTRING) lua_pushliteral(L, "an error without a message");
  return 1;
}

// __index of a class with an index function (upvalue 1: lightuserdata of it, upvalue 2: methods): fields
// first, then methods.
int index_object(lua_State* L) {
  try {
    const auto function = reinterpret_cast<IndexFunction>(lua_touserdata(L, lua_upvalueindex(1)));
    const int found = function(L);
    if (found != 0) return found;
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(2));
    return 1;
  } catch (const Error& error) {
    lua_settop(L, 0);
    detail::push_error(L, error);
  } catch (const std::exception& error) {
    lua_settop(L, 0);
    detail::push_unexpected(L, error);
  }
  return lua_error(L);
}

// "*" of "value:__mul"; empty of what is no operator.
std::string_view symbol_of(std::string_view function) {
  constexpr std::pair<std::string_view, std::string_view> kSymbols[] = {
      {"__add", "+"}, {"__sub", "-"}, {"__mul", "*"}, {"__div", "/"}, {"__unm", "-"}};
  for (const auto& [name, symbol] : kSymbols)
    if (function.ends_with(name)) return symbol;
  return {};
}

}  // namespace

void wrong_argument(lua_State* L, int index, std::string_view wanted) {
  // Methods get their object as argument 1: it is not counted.
  const std::string function = current_function(L);
  const bool method = function.find(':') != std::string::npos;
  std::string given = lua_typename(L, lua_type(L, index));
  if (index > lua_gettop(L)) given = "nothing";
  if (lua_type(L, index) == LUA_TNUMBER) given = fmt::format("{}", lua_tonumber(L, index));
  if (const std::string_view symbol = symbol_of(function); !symbol.empty())
    fail_usage("'{}' cannot compute with {}; a {} is needed", symbol, given, wanted);
  if (index < 0) fail_usage("{}: {} is needed, not {}", function, wanted, given);
  if (method && index == 1) fail_usage("{}: call it on {} with a colon", function, wanted);
  fail_usage("{}: argument {} must be {}, it is {}", function, method ? index - 1 : index, wanted, given);
}

DType Convert<DType>::get(lua_State* L, int index) {
  const std::string name = Convert<std::string>::get(L, index);
  if (const auto dtype = dtype_named(name)) return *dtype;
  const std::string nearest = nearest_name(name, dtype_names());
  fail_usage("'{}' is not a dtype{}; there are {}", name,
             nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
             fmt::join(dtype_names(), ", "));
}

Attributes Convert<Attributes>::get(lua_State* L, int index) {
  Attributes attributes;
  if (lua_isnoneornil(L, index)) return attributes;
  if (lua_type(L, index) != LUA_TTABLE) wrong_argument(L, index, "a table of attributes");
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    if (lua_type(L, -2) != LUA_TSTRING) fail_usage("{}: attributes have names", current_function(L));
    const std::string name = Convert<std::string>::get(L, lua_gettop(L) - 1);
    const auto number = [](double v) -> Attribute {
      const auto whole = whole_number(v);
      return whole ? Attribute(*whole) : Attribute(v);
    };
    switch (lua_type(L, -1)) {
      case LUA_TBOOLEAN: attributes.set(name, lua_toboolean(L, -1) != 0); break;
      case LUA_TNUMBER: attributes.set(name, number(lua_tonumber(L, -1))); break;
      case LUA_TSTRING: attributes.set(name, Convert<std::string>::get(L, lua_gettop(L))); break;
      case LUA_TTABLE: {
        const auto values = Convert<std::vector<double>>::get(L, lua_gettop(L));
        std::vector<int64_t> whole;
        for (const double v : values)
          if (const auto integer = whole_number(v)) whole.push_back(*integer);
        if (whole.size() == values.size())
          attributes.set(name, whole);
        else
          attributes.set(name, values);
        break;
      }
      default:
        fail_usage(
            "{}: attribute '{}' is a {}; booleans, numbers, strings and lists of numbers are understood",
            current_function(L), name, lua_typename(L, lua_type(L, -1)));
    }
    lua_pop(L, 1);
  }
  return attributes;
}

void detail::push_error(lua_State* L, const Error& error, std::string_view kind) {
  if (kind.empty()) kind = name_of(error.kind());
  lua_createtable(L, 0, 4);
  set_field(L, "kind", std::string(kind));
  std::string message = error.sentence();
  for (const std::string& context : error.context()) message += " (in " + context + ")";
  set_field(L, "message", message);
  set_field(L, "sentence", error.sentence());
  set_list(L, "context", error.context());
  if (luaL_newmetatable(L, kErrorClass) != 0) {
    lua_pushcfunction(L, &error_to_string);
    lua_setfield(L, -2, "__tostring");
    lua_pushstring(L, "error");
    lua_setfield(L, -2, "__metatable");  // recipes catch errors, and see the name
  }
  lua_setmetatable(L, -2);
  lua_getfield(L, LUA_REGISTRYINDEX, kErrorKinds);
  if (lua_istable(L, -1)) {  // not before het.errors is loaded
    lua_pushvalue(L, -2);
    lua_pushlstring(L, kind.data(), kind.size());
    lua_rawset(L, -3);
  }
  lua_pop(L, 1);
}

void detail::push_unexpected(lua_State* L, const std::exception& problem) {
  if (dynamic_cast<const std::bad_alloc*>(&problem) != nullptr)
    return push_error(L, Error(ErrorKind::environment, "not enough memory"));
  if (const auto* system = dynamic_cast<const std::system_error*>(&problem))  // no thread, no memory
    return push_error(L,
                      Error(ErrorKind::environment, fmt::format("the system refuses: {}", system->what())));
  push_error(L, Error(ErrorKind::bug, fmt::format("unexpected failure: {}", problem.what())));
}

void set_functions(lua_State* L, const char* owner, std::initializer_list<Function> functions) {
  for (const Function& function : functions) {
    lua_pushfstring(L, "%s%s", owner, function.name);
    lua_pushcclosure(L, function.call, 1);
    lua_setfield(L, -2, function.name);
  }
}

void make_class(lua_State* L, const char* name, std::initializer_list<Function> functions,
                IndexFunction index, lua_CFunction destroy) {
  luaL_newmetatable(L, name);
  const std::string owner = std::string(name) + ":";
  lua_newtable(L);  // methods
  for (const Function& function : functions) {
    lua_pushfstring(L, "%s%s", owner.c_str(), function.name);
    lua_pushcclosure(L, function.call, 1);
    const bool meta = std::string_view(function.name).starts_with("__");
    lua_setfield(L, meta ? -3 : -2, function.name);
  }
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "methods");  // for completion at the prompt
  if (index != nullptr) {
    lua_pushlightuserdata(L, reinterpret_cast<void*>(index));
    lua_pushvalue(L, -2);
    lua_pushcclosure(L, &index_object, 2);
    lua_setfield(L, -3, "__index");
    lua_pop(L, 1);
  } else {
    lua_setfield(L, -2, "__index");
  }
  lua_pushcfunction(L, destroy);
  lua_setfield(L, -2, "__gc");
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__metatable");  // recipes see the name, never the table
  lua_pop(L, 1);
}

int list_size(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TTABLE) wrong_argument(L, index, "a list");
  return static_cast<int>(lua_objlen(L, index));
}

uint64_t seed_at(lua_State* L, int index) { return static_cast<uint64_t>(Convert<int64_t>::get(L, index)); }

void set_field(lua_State* L, const char* name, const std::string& value) {
  lua_pushlstring(L, value.data(), value.size());
  lua_setfield(L, -2, name);
}
void set_field(lua_State* L, const char* name, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, name);
}
void set_field(lua_State* L, const char* name, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, name);
}

}  // namespace het::lua
