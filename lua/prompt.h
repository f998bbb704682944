// The interactive prompt: lines of Lua in an environment that has `het`, with completion, history, multi-line
// input and documentation by `?name`. Not a terminal: lines are read and their results printed, for scripts.
#pragma once

#include <string>
#include <vector>

#include "lua/state.h"

namespace het::lua {

int run_prompt(State& state, const Settings& settings);

// Is `chunk` the beginning of something longer (an open block, string or parenthesis)?
bool is_incomplete(lua_State* L, const std::string& chunk);

// What could complete the word at the end of `text`: names of globals, fields, methods, files in a string.
struct Completions {
  std::vector<std::string> names;  // each begins with the word
  std::string word;
};
Completions completions(lua_State* L, const std::string& text);

}  // namespace het::lua
