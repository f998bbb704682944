// The interactive prompt: lines of Lua in an environment that has `het`, with completion, history, multi-line
// input and documentation by `?name`. Not a terminal: lines are read and their results printed, for scripts.
#pragma once

#include "lua/state.h"

namespace het::lua {

int run_prompt(State& state, const Settings& settings);

// Is `chunk` the beginning of something longer (an open block, string or parenthesis)?
bool is_incomplete(lua_State* L, const std::string& chunk);

// Words that could follow `text`: names of globals, fields after a dot, methods after a colon.
std::vector<std::string> completions(lua_State* L, const std::string& text);

}  // namespace het::lua
