#include "lua/state.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "core/base/parallel.h"
#include "core/io/file.h"
#include "kernels/cpu/device.h"
#include "kernels/reference/device.h"
#include "lua/interrupt.h"
#include "lua/kernel_choice.h"

namespace het::lua {
namespace {

const char kHostKey = 0;  // registry: Host*

// require "het.x": from HETRUN_LUA_PATH when it is set (to work on the library), else from inside the binary.
int load_module(lua_State* L) {
  const std::string name = Convert<std::string>::get(L, 1);
  if (name != "het" && !name.starts_with("het.")) {
    lua_pushnil(L);
    return 1;
  }
  if (const char* folder = std::getenv("HETRUN_LUA_PATH")) {
    std::string path = name;
    std::replace(path.begin(), path.end(), '.', '/');
    for (const std::string& candidate :
         {fmt::format("{}/{}.lua", folder, path), fmt::format("{}/{}/init.lua", folder, path)})
      if (std::filesystem::exists(candidate)) {
        if (luaL_loadfile(L, candidate.c_str()) != 0) throw_lua_error(L);
        return 1;
      }
  }
  for (const Module& module : embedded_modules())
    if (name == module.name) {
      if (luaL_loadbuffer(L, module.text, module.bytes, fmt::format("@{}", name).c_str()) != 0)
        throw_lua_error(L);
      return 1;
    }
  Convert<std::string>::push(L, fmt::format("\n\tno module '{}' in the het library", name));
  return 1;
}

// Ranks of this run on this machine, as torchrun, our own launcher or Open MPI say; 1 when none does.
int ranks_here() {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    if (const char* text = std::getenv(name)) return std::clamp(std::atoi(text), 1, 4096);
  return 1;
}

}  // namespace

Host& host_of(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kHostKey));
  lua_rawget(L, LUA_REGISTRYINDEX);
  auto* host = static_cast<Host*>(lua_touserdata(L, -1));
  lua_pop(L, 1);
  HET_REQUIRE(host != nullptr);
  return *host;
}

void set_host(lua_State* L, Host* host) {
  lua_pushlightuserdata(L, const_cast<char*>(&kHostKey));
  lua_pushlightuserdata(L, host);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

void throw_lua_error(lua_State* L) {
  std::string message = "unknown error";
  ErrorKind kind = ErrorKind::usage;
  std::vector<std::string> context;
  if (lua_istable(L, -1)) {
    const int index = lua_gettop(L);
    const auto sentence = field<std::string>(L, index, "sentence");
    message = sentence ? *sentence : field<std::string>(L, index, "message").value_or(message);
    const std::string named = field<std::string>(L, index, "kind").value_or("usage");
    if (named == "interrupted") {
      lua_pop(L, 1);
      throw Interrupted();
    }
    if (named == "ended") {
      lua_pop(L, 1);
      throw RunEnded(message);
    }
    for (const ErrorKind known : {ErrorKind::bug, ErrorKind::environment, ErrorKind::peer})
      if (name_of(known) == named) kind = known;
    if (sentence) context = field<std::vector<std::string>>(L, index, "context").value_or(context);
  } else if (const char* text = lua_tostring(L, -1)) {
    message = text;
    if (message == "not enough memory") kind = ErrorKind::environment;  // LuaJIT's own
  }
  lua_pop(L, 1);
  Error error(kind, message);
  for (std::string& where : context) error.add_context(std::move(where));
  throw error;
}

void call(lua_State* L, int arguments, int results) {
  if (lua_pcall(L, arguments, results, 0) != 0) throw_lua_error(L);
}

State::State(const Settings& settings, Gpus gpus) {
  host_.gpus = std::move(gpus);
  if (settings.threads > 0) set_thread_count(settings.threads);
  host_.cpu = make_cpu_device(chosen_instruction_set(), ranks_here());
  host_.reference = make_reference_device();
  host_.eager = std::make_unique<Eager>(host_.cpu);

  L_ = luaL_newstate();
  if (L_ == nullptr) fail_environment("cannot start LuaJIT: not enough memory");
  luaL_openlibs(L_);
  set_host(L_, &host_);

  lua_newtable(L_);  // native
  add_files(L_);
  add_graph(L_);
  add_tensor(L_);
  add_device(L_);
  add_program(L_);
  add_data(L_);
  add_system(L_);
  add_cluster(L_);
  add_planner(L_);
  add_hap(L_);
  add_assignment(L_);
  add_profile(L_);
  add_mesh(L_);
  add_snapshot(L_);
  add_recovery(L_);
  add_control(L_);
  lua_newtable(L_);
  set_field(L_, "quiet", settings.quiet);
  set_field(L_, "json", settings.json);
  set_field(L_, "trust", settings.trust);
  set_field(L_, "help", settings.help);
  set_field(L_, "resume", settings.resume);
  set_field(L_, "elastic", settings.elastic);
  if (settings.least > 0) set_field(L_, "least", static_cast<double>(settings.least));
  if (settings.most > 0) set_field(L_, "most", static_cast<double>(settings.most));
  set_field(L_, "overwrite", settings.overwrite);
  set_field(L_, "metrics", settings.metrics);
  set_field(L_, "trace", settings.trace);
  set_field(L_, "device", settings.device);
  const auto set_if_said = [this](const char* name, const std::string& value) {
    if (!value.empty()) set_field(L_, name, value);
  };
  set_if_said("rendezvous", settings.rendezvous);
  set_if_said("interface", settings.interface);
  set_if_said("secret_file", settings.secret_file);
  set_if_said("timeout", settings.timeout);
  set_if_said("warn_after", settings.warn_after);
  set_if_said("zone", settings.zone);
  if (settings.price) set_field(L_, "price", *settings.price);
  set_field(L_, "limit_memory", settings.limit_memory);
  set_list(L_, "allow_read", settings.allow_read);
  set_list(L_, "allow_write", settings.allow_write);
  lua_setfield(L_, -2, "settings");
  set_list(L_, "arguments", settings.arguments);  // the commands take theirs out
  set_list(L_, "words", settings.arguments);
  set_list(L_, "followers", settings.followers);

  lua_getglobal(L_, "package");
  lua_getfield(L_, -1, "loaded");
  lua_pushvalue(L_, -3);
  lua_setfield(L_, -2, "het.native");
  lua_pop(L_, 1);
  // The het library comes before anything on package.path.
  lua_getfield(L_, -1, "loaders");
  const int loaders = lua_gettop(L_);
  for (int i = static_cast<int>(lua_objlen(L_, loaders)); i >= 2; --i) {
    lua_rawgeti(L_, loaders, i);
    lua_rawseti(L_, loaders, i + 1);
  }
  lua_pushstring(L_, "require");
  lua_pushcclosure(L_, bind<&load_module>("require").call, 1);
  lua_rawseti(L_, loaders, 2);
  lua_settop(L_, 0);
}

State::~State() {
  interrupt_recipes_of(nullptr);
  if (L_ != nullptr) lua_close(L_);
}

int State::call_program(const std::string& name, const std::vector<std::string>& arguments) {
  lua_getglobal(L_, "require");
  lua_pushstring(L_, "het.program");
  call(L_, 1, 1);
  lua_getfield(L_, -1, name.c_str());
  lua_remove(L_, -2);
  for (const std::string& argument : arguments) Convert<std::string>::push(L_, argument);
  call(L_, static_cast<int>(arguments.size()), 1);
  const int code = lua_isnil(L_, -1) ? 0 : static_cast<int>(lua_tonumber(L_, -1));
  lua_pop(L_, 1);
  return code;
}

int State::run_recipe(const std::string& path) { return call_program("recipe", {path}); }

}  // namespace het::lua
