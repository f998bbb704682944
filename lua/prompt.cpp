#include "lua/prompt.h"

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>

#include <histedit.h>
#include <unistd.h>

#include "core/base/visible.h"
#include "core/cluster/environment.h"
#include "core/io/utf8.h"
#include "core/run/cluster.h"
#include "lua/interrupt.h"
#include "lua/objects.h"

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

// A compiled loop would never look at a hook: interpreted code of the prompt does. A run that trains looks
// for interrupts itself, between its steps; its functions of the session, such as on_step, end here.
void interrupt_hook(lua_State* L, lua_Debug* ar) {
  if (run_is_training()) {
    if (interrupt_pending() && is_recipe_code(L, ar)) raise_interrupted(L);
  } else if (take_interrupt()) {
    luaL_error(L, "interrupted");
  }
}

// While one lives Ctrl-C ends the Lua code that runs. It does not live while a line is read: an error would
// unwind libedit.
class Interruptible {
 public:
  explicit Interruptible(lua_State* L) : L_(L) { lua_sethook(L, &interrupt_hook, LUA_MASKCOUNT, 1000); }
  ~Interruptible() { lua_sethook(L_, nullptr, 0, 0); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  lua_State* L_;
};

// Reads lines: through libedit on a terminal, plainly otherwise.
class Reader {
 public:
  Reader(lua_State* L, bool terminal) : L_(L), terminal_(terminal) {
    if (!terminal) return;
    setlocale(LC_CTYPE, "C.UTF-8");  // libedit drops what the locale does not know
    path_ = history_path();
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!path_.empty()) history(history_, &event, H_LOAD, path_.c_str());
    edit_ = el_init("hetrun", stdin, stdout, stderr);
    el_set(edit_, EL_CLIENTDATA, static_cast<void*>(this));
    el_set(edit_, EL_PROMPT, &prompt_text);
    el_set(edit_, EL_GETCFN, &next_character);
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
    if (!terminal_) {
      const InterruptibleRead scope;
      return static_cast<bool>(std::getline(std::cin, line));
    }
    el_set(edit_, EL_PREP_TERM, 1);  // before the prompt is seen: a Ctrl-D that came between would be lost
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
  static Reader& of(EditLine* line) {
    void* reader = nullptr;
    el_get(line, EL_CLIENTDATA, &reader);
    return *static_cast<Reader*>(reader);
  }
  static const char* prompt_text(EditLine* line) { return of(line).continued_ ? kContinued : kPrompt; }

  // A character for libedit; 0 at the end, -1 on Ctrl-C. libedit's own reader looks for that only while it
  // waits: one that came between two characters would end the line after. The terminal drops what was typed
  // before Ctrl-C, so a character that is read when it came belongs to the next line.
  static int next_character(EditLine* line, wchar_t* character) {
    std::optional<wchar_t>& next = of(line).next_;
    if (!next) {
      const int status = read_character(next.emplace());
      if (status != 1) {
        next.reset();
        return status;
      }
    }
    if (interrupt_pending()) return -1;
    *character = *next;
    next.reset();
    return 1;
  }

  // From the terminal, as UTF-8; bytes that are none are dropped.
  static int read_character(wchar_t& character) {
    const InterruptibleRead scope;
    std::string bytes;
    while (true) {
      char byte = 0;
      const ssize_t count = interrupt_pending() ? -1 : ::read(STDIN_FILENO, &byte, 1);
      if (count == 0) return 0;
      if (count < 0) {
        if (!interrupt_pending() && errno == EINTR) continue;
        return -1;
      }
      const bool follows = (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
      if (!follows || bytes.size() > 3) bytes.clear();
      bytes += byte;
      const Decoded decoded = decode_utf8(bytes, 0);
      if (decoded.bytes == 0) continue;
      character = static_cast<wchar_t>(decoded.code_point);
      return 1;
    }
  }

  static unsigned char complete(EditLine* line, int) {
    const LineInfo* info = el_line(line);
    const std::string before(info->buffer, info->cursor);
    Completions offered;
    try {
      offered = completions(of(line).L_, before);
    } catch (const Error&) {  // of a value's own metatable: nothing can be offered
    }
    const auto& [found, word] = offered;
    if (found.empty()) return CC_REFRESH_BEEP;
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
    for (const std::string& name : found) std::cout << visible(name) << "  ";
    std::cout << '\n' << std::flush;
    return CC_REDISPLAY;
  }

  lua_State* L_;
  bool continued_ = false, interrupted_ = false;
  bool terminal_;
  std::optional<wchar_t> next_;  // read, not yet handed to libedit
  std::string path_;
  ::History* history_ = nullptr;
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

namespace {

// Push a function of lua/het/prompt.lua.
void push_prompt_function(lua_State* L, const char* name) {
  lua_getglobal(L, "require");
  lua_pushstring(L, "het.prompt");
  call(L, 1, 1);
  lua_getfield(L, -1, name);
  lua_remove(L, -2);
}

}  // namespace

Completions completions(lua_State* L, const std::string& text) {
  push_prompt_function(L, "completions");
  Convert<std::string>::push(L, text);
  call(L, 1, 2);
  Completions offered{Convert<std::vector<std::string>>::get(L, lua_gettop(L) - 1),
                      Convert<std::string>::get(L, lua_gettop(L))};
  lua_pop(L, 2);
  return offered;
}

namespace {

// Runs complete chunks.
class Session {
 public:
  Session(State& state, const char* name) : state_(state), L_(state.get()), name_(name) {}

  // Run a chunk that begins at this line; what it printed is out. The error, if there was one.
  std::optional<Error> run(const std::string& chunk, int line) {
    std::optional<Error> problem;
    try {
      const Interruptible scope(L_);
      if (chunk.starts_with("?")) {
        push_prompt_function(L_, "explain");
        Convert<std::string>::push(L_, chunk.substr(1));
      } else {
        push_prompt_function(L_, "evaluate");
        if (!compile(L_, chunk, name_, line)) throw_lua_error(L_);
      }
      call(L_, 1, 0);
    } catch (const Error& error) {
      problem = error;
    }
    std::cout.flush();
    lua_settop(L_, 0);
    run_trains(false);  // it may have ended with an error
    return problem;
  }

 private:
  State& state_;
  lua_State* L_;
  const char* name_;
};

// The ranks of a prompt over several: rank 0 reads lines, and all of them run each.
class Ranks {
 public:
  explicit Ranks(lua_State* L) : L_(L) {
    if (read_launched_rank(process_environment()).world_size.value_or(1) <= 1) return;
    call_mesh("session", 1);
    cluster_ = check_object<ClusterHandle>(L, lua_gettop(L));
    lua_settop(L, 0);
    cluster_->groups();  // all have come
  }

  static constexpr size_t kMostBytes = 1'000'000;  // of a chunk; a store keeps little more under one key

  int size() const { return cluster_ == nullptr ? 1 : cluster_->size(); }
  bool is_first() const { return cluster_ == nullptr || cluster_->rank() == 0; }

  // `line`: at which the chunk begins.
  void send_line(const std::string& chunk, int line) {
    cluster_->give_line(++number_, fmt::format("{}\n{}", line, chunk));
  }

  // Wait for the next chunk of rank 0; false: there are no more. An interrupt after which no chunk comes is
  // dropped; one that comes with the chunk is for the chunk, though this rank may not have seen it yet.
  bool receive_line(std::string& chunk, int& line) {
    constexpr std::chrono::milliseconds kLook{200};
    ++number_;
    for (;;) {
      const bool interrupted = interrupt_pending();
      const auto text = cluster_->take_line(number_, kLook);
      if (!text) {
        if (interrupted) take_interrupt();
        continue;
      }
      if (text->empty()) return false;
      const size_t end = text->find('\n');
      line = std::atoi(text->c_str());
      chunk = text->substr(end + 1);
      return true;
    }
  }

  // What the ranks have to say of a chunk: once, without a rank, where they say the same. All call it.
  struct Problem {
    std::string rank;  // "[rank 1] ", or nothing
    std::string text;
  };
  std::vector<Problem> problems(const std::optional<Error>& own, int line) {
    const auto texts = cluster_->agreement()->at_end(fmt::format("the end of line {}", line),
                                                     own ? std::string(own->what()) : "");
    const bool same =
        std::all_of(texts.begin(), texts.end(), [&](const auto& text) { return text == texts[0]; });
    std::vector<Problem> found;
    for (size_t rank = 0; rank < (same ? 1 : texts.size()); ++rank)
      if (!texts[rank].empty()) found.push_back({same ? "" : fmt::format("[rank {}] ", rank), texts[rank]});
    return found;
  }

  // There are no more lines.
  void end() {
    if (cluster_ == nullptr) return;
    if (is_first()) cluster_->give_line(++number_, "");
    call_mesh("leave", 0);
  }

 private:
  void call_mesh(const char* function, int results) {
    lua_getglobal(L_, "require");
    lua_pushstring(L_, "het.mesh");
    call(L_, 1, 1);
    lua_getfield(L_, -1, function);
    call(L_, 0, results);
  }

  lua_State* L_;
  ClusterHandle cluster_;  // null: this process is alone
  int64_t number_ = 0;     // of the last chunk
};

// A rank other than the first: reads nothing, and what it prints is not seen.
int follow(Session& session, Ranks& ranks) {
  std::string chunk;
  int line = 1;
  while (ranks.receive_line(chunk, line)) {
    const auto problem = session.run(chunk, line);
    take_interrupt();  // now: behind problems() rank 0 may have given the next chunk, and be interrupted in
                       // it
    if (problem && problem->kind() == ErrorKind::peer) throw Error(*problem);
    ranks.problems(problem, line);
  }
  ranks.end();
  return 0;
}

}  // namespace

int run_prompt(State& state, const Settings& settings) {
  lua_State* L = state.get();
  state.call_program("prompt", {settings.trust ? "trust" : ""});
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const char* name = terminal ? "=prompt" : "=stdin";
  Session session(state, name);
  Ranks ranks(L);
  if (!ranks.is_first()) return follow(session, ranks);
  if (terminal && !settings.quiet)
    std::cout << fmt::format(
        "hetrun {}: Lua with het, nn, optim, data and op{}. ?name explains, Tab completes, Ctrl-D leaves.\n",
        HET_VERSION, ranks.size() > 1 ? fmt::format(", on {} ranks", ranks.size()) : "");
  Reader reader(L, terminal);
  std::string chunk, line;
  int lines = 0, first = 1;  // of a script that is piped in: lines read, and where the chunk began
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
    const bool shared = ranks.size() > 1 && !question;
    const int begins = terminal ? 1 : first;
    if (shared && chunk.size() > Ranks::kMostBytes) {
      std::cerr << fmt::format(
          "stdin:{}: {} characters are too many for one line of several ranks; {} at most\n", first,
          chunk.size(), Ranks::kMostBytes);
      if (code == 0) code = static_cast<int>(ErrorKind::usage);
      chunk.clear();
      continue;
    }
    if (shared) ranks.send_line(chunk, begins);
    const auto problem = session.run(chunk, begins);
    const bool lost = shared && problem && problem->kind() == ErrorKind::peer;  // another rank
    std::vector<Ranks::Problem> found;
    if (shared && !lost)
      found = ranks.problems(problem, begins);
    else if (problem)
      found.push_back({"", problem->what()});
    for (const auto& [rank, text] : found) {
      const bool placed = terminal || text.starts_with("stdin:");
      std::cerr << rank << visible(placed ? text : fmt::format("stdin:{}: {}", first, text)) << '\n';
    }
    if (lost) return static_cast<int>(ErrorKind::peer);
    if (!found.empty() && !terminal && code == 0)
      code = static_cast<int>(problem ? problem->kind() : ErrorKind::usage);
    take_interrupt();
    chunk.clear();
  }
  if (!chunk.empty()) {  // the input ended in the middle of a chunk: say what is missing
    if (!compile(L, chunk, name, terminal ? 1 : first)) std::cerr << visible(lua_tostring(L, -1)) << '\n';
    lua_settop(L, 0);
    code = static_cast<int>(ErrorKind::usage);
  } else if (terminal) {
    std::cout << '\n';
  }
  ranks.end();
  return code;
}

}  // namespace het::lua
