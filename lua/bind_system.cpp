// The machine as Lua sees it: clocks, memory, terminal, files.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/elapsed.h"
#include "core/base/median.h"
#include "core/base/nearest.h"
#include "core/base/random.h"
#include "core/base/units.h"
#include "core/base/visible.h"
#include "core/net/proof.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/processor.h"
#include "lua/interrupt.h"
#include "lua/kernel_choice.h"
#include "lua/launch.h"
#include "lua/objects.h"

namespace het::lua {
namespace {

double peak_bytes() {  // of this process, resident
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}
double available(lua_State* L) { return static_cast<double>(host_of(L).cpu->available_bytes()); }
int memory_available(lua_State* L) { return Convert<double>::push(L, available(L)); }

FILE* stream_named(const std::string& name) {
  if (name == "stdout") return stdout;
  if (name == "stderr") return stderr;
  fail_usage("'{}' is not a stream; there are stdout and stderr", name);
}
void write_bytes(const std::string& stream, const std::string& text) {
  FILE* file = stream_named(stream);
  if (std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0) return;
  if ((errno == EPIPE || errno == EIO) && run_is_training()) return end_unread();
  fail_environment("cannot write to {}: {}", stream, std::strerror(errno));
}
// native.write(stream, text): whatever the text is made of, the terminal shows it and obeys nothing in it.
void write(std::string stream, std::string text) { write_bytes(stream, visible(text)); }
// native.write_control(stream, text): for the library's own control characters, which move the cursor.
void write_control(std::string stream, std::string text) { write_bytes(stream, text); }
std::string visible_text(std::string text) { return visible(text); }
bool is_terminal(std::optional<std::string> stream) {
  const std::string name = stream.value_or("stdout");
  return isatty(name == "stdin" ? STDIN_FILENO : fileno(stream_named(name))) != 0;
}
int terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string executable() { return std::filesystem::read_symlink("/proc/self/exe").string(); }
std::string processor() { return processor_name(); }

// The instruction set of the processor's kernels.
std::string used_set(lua_State* L) {
  const std::string model = host_of(L).cpu->model();  // "cpu v4"
  return model.substr(model.find(' ') + 1);
}

// Of the processor's kernels: the instruction set in use, then the others that it can run, best first.
int instruction_sets(lua_State* L) {
  std::vector<std::string> sets = cpu_instruction_sets();
  const auto used = std::ranges::find(sets, used_set(L));
  if (used != sets.end()) std::rotate(sets.begin(), used, used + 1);
  return Convert<std::vector<std::string>>::push(L, sets);
}

// native.product_speeds() -> list of {set, flops: list}, measured now, in the order of classes; classes:
// list; the set that the next start uses. Empty lists where nothing is to be chosen.
int product_speeds(lua_State* L) {
  const std::vector<ProductSpeed> speeds = remeasure_products();
  lua_newtable(L);
  for (size_t i = 0; i < speeds.size(); ++i) {
    lua_newtable(L);
    set_field(L, "set", speeds[i].set);
    Convert<std::vector<double>>::push(L, speeds[i].flops);
    lua_setfield(L, -2, "flops");
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
  lua_newtable(L);
  int count = 0;
  for (const std::string_view name : product_classes()) {
    Convert<std::string>::push(L, std::string(name));
    lua_rawseti(L, -2, ++count);
  }
  Convert<std::string>::push(L, fastest_set(speeds));
  return 3;
}

std::string version() { return HET_VERSION; }
bool interrupted() { return take_interrupt(); }
void kill_self() { std::raise(SIGKILL); }
void terminate_self() { std::raise(SIGTERM); }
void wait_for_file(std::string path) {
  while (::access(path.c_str(), F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

// native.undisturbed(f): f, but no hook runs meanwhile. An interrupt inside the handler of an error would be
// an error in error handling, and hide both.
int call_undisturbed(lua_State* L) {
  const lua_Hook hook = lua_gethook(L);
  const int mask = lua_gethookmask(L), count = lua_gethookcount(L);
  lua_sethook(L, nullptr, 0, 0);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  const int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  lua_sethook(L, hook, mask, count);
  return status == 0 ? lua_gettop(L) : lua_error(L);
}
int undisturbed(lua_State* L) {
  if (!lua_isfunction(L, 1)) wrong_argument(L, 1, "a function");
  lua_settop(L, 1);
  lua_pushcclosure(L, &call_undisturbed, 1);
  return 1;
}
void trains(bool on) { run_trains(on); }
void keeps_measurements(bool on) { set_keeps_measurements(on); }
void names_recipe(std::string path) { name_recipe(path); }

// A 53-bit hash of a name: the stream of a layer's random numbers.
double hash(std::string text) { return static_cast<double>(hash_of(text) >> 11); }

// Number i of a reproducible stream, uniform in [0, 1): for sampling tokens.
double random_uniform(int64_t seed, int64_t stream, int64_t index) {
  const auto words = philox(philox_key(static_cast<uint64_t>(seed), static_cast<uint64_t>(stream)),
                            static_cast<uint64_t>(index));
  return ((static_cast<uint64_t>(words[0]) << 21) ^ (words[1] >> 11)) * 0x1p-53;
}

std::string seconds_text(double seconds) { return show_seconds(seconds); }
std::optional<std::string> nearest(std::string word, std::vector<std::string> names) {
  std::string found = nearest_name(word, names);
  if (found.empty()) return std::nullopt;
  return found;
}
double median_of(std::vector<double> values) {
  if (values.empty()) fail_usage("the median of no values");
  return median(std::move(values));
}
int64_t bytes_from(std::string text) { return parse_bytes(text); }

// A whole number of 48 bits, another one in each process and call.
double random_number() {
  double number = 0;
  for (const char byte : random_bytes(6)) number = 256 * number + static_cast<unsigned char>(byte);
  return number;
}

// native.fail(kind, message): an error of the engine's kind, as C++ would raise it.
void raise(std::string kind, std::string message) {
  for (const ErrorKind known : {ErrorKind::usage, ErrorKind::environment, ErrorKind::peer})
    if (name_of(known) == kind) throw Error(known, std::move(message));
  throw Error(ErrorKind::bug, std::move(message));
}

}  // namespace

void add_system(lua_State* L) {
  set_functions(L, "native.",
                {bind<&steady_seconds>("clock"),
                 bind<&random_number>("random_number"),
                 bind<&peak_bytes>("memory_peak"),
                 bind<&memory_available>("memory_available"),
                 bind<&write>("write"),
                 bind<&write_control>("write_control"),
                 bind<&visible_text>("visible"),
                 bind<&is_terminal>("is_terminal"),
                 bind<&terminal_width>("terminal_width"),
                 bind<&executable>("executable"),
                 bind<&processor>("processor"),
                 bind<&instruction_sets>("instruction_sets"),
                 bind<&product_speeds>("product_speeds"),
                 bind<&version>("version"),
                 bind<&interrupted>("interrupted"),
                 bind<&kill_self>("kill_self"),
                 bind<&terminate_self>("terminate_self"),
                 bind<&wait_for_file>("wait_for_file"),
                 bind<&undisturbed>("undisturbed"),
                 bind<&trains>("run_trains"),
                 bind<&speak_for_run>("speak_for_run"),
                 bind<&be_silent>("be_silent"),
                 bind<&say_left>("say_left"),
                 bind<&bring_back>("bring_back"),
                 bind<&keeps_measurements>("keeps_measurements"),
                 bind<&names_recipe>("name_recipe"),
                 bind<&hash>("hash"),
                 bind<&random_uniform>("random"),
                 bind<&seconds_text>("show_seconds"),
                 bind<&nearest>("nearest"),
                 bind<&bytes_from>("parse_bytes"),
                 bind<&median_of>("median"),
                 bind<&raise>("fail")});
}

}  // namespace het::lua
