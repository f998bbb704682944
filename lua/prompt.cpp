#include "lua/prompt.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <histedit.h>
#include <unistd.h>

#include "lua/interrupt.h"

namespace het::lua {
namespace {

constexpr const char* kPrompt = "> ";
constexpr const char* kContinued = ">> ";
constexpr int kHistoryLines = 2000;

// $XDG_STATE_HOME/hetrun/history, by default under ~/.local/state; empty when there is no home.
std::string history_path() {
  std::filesystem::path base;
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != 0)
    base = state;
  else if (const char* home = std::getenv("HOME"))
    base = std::filesystem::path(home) / ".local" / "state";
  else
    return {};
  std::error_code problem;
  std::filesystem::create_directories(base / "hetrun", problem);
  return problem ? std::string() : (base / "hetrun" / "history").string();
}

// A compiled loop would never look at a hook: interpreted code of the prompt does.
void interrupt_hook(lua_State* L, lua_Debug*) {
  if (take_interrupt()) luaL_error(L, "interrupted");
}

const char* prompt_text(EditLine* line) {
  void* continued = nullptr;
  el_get(line, EL_CLIENTDATA, &continued);
  return *static_cast<bool*>(static_cast<void**>(continued)[1]) ? kContinued : kPrompt;
}

lua_State* completion_state(EditLine* line) {
  void* data = nullptr;
  el_get(line, EL_CLIENTDATA, &data);
  return static_cast<lua_State*>(static_cast<void**>(data)[0]);
}

unsigned char complete(EditLine* line, int) {
  const LineInfo* info = el_line(line);
  const std::string before(info->buffer, info->cursor);
  const auto found = completions(completion_state(line), before);
  if (found.empty()) return CC_REFRESH_BEEP;
  size_t start = before.size();
  while (start > 0 &&
         (std::isalnum(static_cast<unsigned char>(before[start - 1])) || before[start - 1] == '_'))
    --start;
  const std::string word = before.substr(start);
  std::string common = found[0];
  for (const std::string& name : found) {
    const auto differs = std::mismatch(common.begin(), common.end(), name.begin(), name.end());
    common.erase(differs.first, common.end());
  }
  if (common.size() > word.size()) {
    el_insertstr(line, common.substr(word.size()).c_str());
    return CC_REFRESH;
  }
  std::cout << '\n';
  for (const std::string& name : found) std::cout << name << "  ";
  std::cout << '\n' << std::flush;
  return CC_REDISPLAY;
}

// Reads lines: through libedit on a terminal, plainly otherwise.
class Reader {
 public:
  Reader(lua_State* L, bool terminal) : data_{L, &continued_}, terminal_(terminal) {
    if (!terminal) return;
    path_ = history_path();
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!path_.empty()) history(history_, &event, H_LOAD, path_.c_str());
    edit_ = el_init("hetrun", stdin, stdout, stderr);
    el_set(edit_, EL_CLIENTDATA, static_cast<void*>(data_));
    el_set(edit_, EL_PROMPT, &prompt_text);
    el_set(edit_, EL_SIGNAL, 0);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_ADDFN, "het-complete", "complete names", &complete);
    el_set(edit_, EL_BIND, "^I", "het-complete", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(edit_, nullptr);
  }
  ~Reader() {
    if (edit_ != nullptr) el_end(edit_);
    if (history_ != nullptr) history_end(history_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // False at the end of input. An interrupted line comes back empty.
  bool read(std::string& line, bool continued) {
    continued_ = continued;
    if (!terminal_) return static_cast<bool>(std::getline(std::cin, line));
    int count = 0;
    const char* text = el_gets(edit_, &count);
    if (text == nullptr || count <= 0) {
      if (!take_interrupt()) return false;
      interrupted_ = true;
      std::cout << "^C\n";
      line.clear();
      return true;
    }
    line.assign(text, static_cast<size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return true;
  }
  bool take_interrupted() { return std::exchange(interrupted_, false); }

  void remember(const std::string& chunk) {
    if (!terminal_) return;
    HistEvent event;
    history(history_, &event, H_ENTER, chunk.c_str());
    if (!path_.empty()) history(history_, &event, H_SAVE, path_.c_str());
  }

 private:
  bool continued_ = false, interrupted_ = false;
  void* data_[2];
  bool terminal_;
  std::string path_;
  History* history_ = nullptr;
  EditLine* edit_ = nullptr;
};

// Compile an expression, or failing that a statement; leaves the function on the stack, or the message, whose
// lines count from `line` of the source `name`.
bool compile(lua_State* L, const std::string& chunk, const char* name = "=prompt", int line = 1) {
  const std::string above(static_cast<size_t>(line - 1), '\n');
  const std::string expression = above + "return " + (chunk.starts_with("=") ? chunk.substr(1) : chunk);
  if (luaL_loadbufferx(L, expression.data(), expression.size(), name, "t") == 0) return true;
  lua_pop(L, 1);
  const std::string statement = above + chunk;
  return luaL_loadbufferx(L, statement.data(), statement.size(), name, "t") == 0;
}

}  // namespace

bool is_incomplete(lua_State* L, const std::string& chunk) {
  if (compile(L, chunk)) {
    lua_pop(L, 1);
    return false;
  }
  const std::string message = lua_tostring(L, -1) == nullptr ? "" : lua_tostring(L, -1);
  lua_pop(L, 1);
  return message.ends_with("near '<eof>'") || message.find("unfinished long") != std::string::npos;
}

std::vector<std::string> completions(lua_State* L, const std::string& text) {
  lua_getglobal(L, "require");
  lua_pushstring(L, "het.program");
  call(L, 1, 1);
  lua_getfield(L, -1, "completions");
  lua_remove(L, -2);
  Convert<std::string>::push(L, text);
  call(L, 1, 1);
  auto names = Convert<std::vector<std::string>>::get(L, lua_gettop(L));
  lua_pop(L, 1);
  return names;
}

int run_prompt(State& state, const Settings& settings) {
  lua_State* L = state.get();
  state.call_program("prompt", {settings.trust ? "trust" : ""});
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal && !settings.quiet)
    std::cout << "hetrun " << HET_VERSION
              << ": Lua with het, nn, optim, data and op. ?name explains, Tab completes, Ctrl-D leaves.\n";
  lua_sethook(L, &interrupt_hook, LUA_MASKCOUNT, 1000);
  Reader reader(L, terminal);
  std::string chunk, line;
  int lines = 0, first = 1;  // of a script that is piped in: lines read, and where the chunk began
  const char* name = terminal ? "=prompt" : "=stdin";
  int code = 0;
  while (reader.read(line, !chunk.empty())) {
    ++lines;
    if (chunk.empty()) first = lines;
    if (reader.take_interrupted()) {
      chunk.clear();
      continue;
    }
    chunk += chunk.empty() ? line : "\n" + line;
    if (chunk.find_first_not_of(" \t\n") == std::string::npos) {
      chunk.clear();
      continue;
    }
    const bool question = chunk.starts_with("?");
    if (!question && is_incomplete(L, chunk)) continue;
    reader.remember(chunk);
    try {
      if (question) {
        state.call_program("explain", {chunk.substr(1)});
      } else {
        lua_getglobal(L, "require");
        lua_pushstring(L, "het.program");
        call(L, 1, 1);
        lua_getfield(L, -1, "evaluate");
        lua_remove(L, -2);
        if (!compile(L, chunk, name, terminal ? 1 : first)) throw_lua_error(L);
        call(L, 1, 0);
      }
    } catch (const Error& error) {
      std::cout.flush();
      const std::string text = error.what();
      const bool placed = terminal || text.starts_with("stdin:");
      std::cerr << (placed ? text : fmt::format("stdin:{}: {}", first, text)) << '\n';
      if (!terminal && code == 0) code = static_cast<int>(error.kind());
    }
    lua_settop(L, 0);
    run_trains(false);  // it may have ended with an error
    take_interrupt();
    chunk.clear();
  }
  if (!chunk.empty()) {  // the input ended in the middle of a chunk: say what is missing
    if (!compile(L, chunk, name, terminal ? 1 : first)) std::cerr << lua_tostring(L, -1) << '\n';
    lua_settop(L, 0);
    return static_cast<int>(ErrorKind::usage);
  }
  if (terminal) std::cout << '\n';
  return code;
}

}  // namespace het::lua
