// The command line: which words are the program's, which the recipe's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lua/state.h"

namespace het::lua {

struct CommandLine {
  Settings settings;
  std::string command;                 // empty: the prompt; else a recipe's path or a word of `subcommands`
  std::vector<std::string> arguments;  // words after the command that are no options
  std::optional<int> exit_code;        // the answer has been printed (--help, --version)
};

// Words that are not recipes. Each is a function of lua/het/program/init.lua.
struct Subcommand {
  const char* name;
  const char* arguments;
  const char* sentence;
};
const std::vector<Subcommand>& subcommands();

// Throw Error(usage): hetrun has no such option, the nearest is named.
[[noreturn]] void fail_unknown_option(const std::string& name);
// Is one of hetrun's own options like this word?
bool resembles_option(const std::string& name);

// Throws Error(usage).
CommandLine parse_command_line(int argc, char** argv);

}  // namespace het::lua
