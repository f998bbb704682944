// The Lua state of the program: LuaJIT with the engine bound as `het.native`, the `het` library from inside
// the binary, and the sandbox in which recipes run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lua/gpus.h"
#include "lua/objects.h"

namespace het::lua {

// A file of the het library, compiled into the binary (lua/embed.py writes the table).
struct Module {
  const char* name;  // "het.nn.attention"
  const char* text;
  size_t bytes;
};
const std::vector<Module>& embedded_modules();

// What the command line says; recipes and the het library read it as native.settings and native.arguments.
struct Settings {
  bool quiet = false, json = false, trust = false, help = false;
  std::string metrics;  // JSONL file; empty: none
  std::string trace;    // file for a Chrome trace of one step; empty: none
  std::string device = "cpu";
  int threads = 0;          // 0: all cores
  bool elastic = false;     // the run goes on when ranks are lost or come
  int least = 0, most = 0;  // ranks that it needs and takes; least 0: 1; most 0: as many as are started
  int workers = 0;          // processes to start on this machine; 0: this one alone
  bool respawn = false;     // of these, those that are lost are started again
  std::string chaos;        // seed of the faults that these have, as written; empty: none
  std::string
      listen;  // "10.0.0.7:7777": where the launcher serves the store of an elastic run; empty: here alone
  std::string join;  // such a place: this machine's ranks join the run that is there
  // Of several ranks, as written; empty: as the environment says, or by default.
  std::string rendezvous, interface, secret_file, timeout, warn_after;
  std::string zone;                                  // what this machine fails with; empty: not known
  std::optional<double> price;                       // of this machine for an hour
  std::string limit_memory;                          // such as 8GiB; empty: by default
  std::vector<std::string> allow_read, allow_write;  // paths that a recipe may reach
  bool resume = false, overwrite = false;            // as het.train's fields
  double limit_seconds = 0;                          // 0: none
  std::string limit_time;                            // as written
  std::vector<std::string> arguments;                // --name=value words for the recipe
  // Of each of them which of the words that are no options follows it, from 1: perhaps the value of `--name
  // value`. "": none does.
  std::vector<std::string> followers;
};

// Owns the lua_State. Used from one thread.
class State {
 public:
  State(const Settings& settings, Gpus gpus);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  lua_State* get() const { return L_; }

  // Call function `name` of module `het.program` with string arguments; errors of Lua come out as Error.
  // Returns the number it returns (an exit code), 0 for nil.
  int call_program(const std::string& name, const std::vector<std::string>& arguments);

  // Load and run the recipe `path` in the sandbox (or with everything, when settings.trust) and hand what it
  // returns to het.program.recipe. Returns the exit code.
  int run_recipe(const std::string& path);

 private:
  Host host_;
  lua_State* L_ = nullptr;
};

// The Lua code was interrupted.
class Interrupted : public Error {
 public:
  Interrupted() : Error(ErrorKind::usage, "interrupted") {}
};

// The other ranks have ended the run, and this process is not needed: no mistake either.
class RunEnded : public Error {
 public:
  explicit RunEnded(std::string sentence) : Error(ErrorKind::peer, std::move(sentence)) {}
};

// Throw the Lua value on top of the stack, and pop it, as an Error: error tables keep their kind, strings are
// the user's mistakes, and what an interrupt raised is Interrupted.
[[noreturn]] void throw_lua_error(lua_State* L);

// lua_pcall with errors as Errors.
void call(lua_State* L, int arguments, int results);

}  // namespace het::lua
