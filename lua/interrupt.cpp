#include "lua/interrupt.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <list>

#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/base/visible.h"
#include "lua/bind.h"

namespace het::lua {
namespace {

// What an interrupt says, made ahead: handlers of signals allocate nothing.
struct Sentences {
  std::string control_c, sigterm, sighup, limit, leave, leave_unread;
};

// Signal handlers can reach nothing else: lock-free atomics with static storage.
std::atomic<bool> pending{false};   // not yet taken
std::atomic<bool> ending{false};    // the run was asked to end, whether or not that was taken
std::atomic<bool> training{false};  // a run is
std::atomic<bool> trained{false};   // a run was or is
std::atomic<bool> measuring{false};
std::atomic<bool> may_leave{
    false};                      // SIGTERM or SIGHUP has this rank leave the run, which goes on without it
std::atomic<int> leave{0};       // the first that came
std::atomic<bool> grace{false};  // the timer runs for an interrupt, and not for the limit of time
std::atomic<int64_t> last{0};    // when the last interrupt that counts came, in milliseconds
std::atomic<Executor*> running{nullptr};
std::atomic<lua_State*> interrupted_lua{nullptr};
std::atomic<const Sentences*> sentences{nullptr};
std::atomic<bool> on_terminal{false};
bool without_hangup = false;  // as nohup starts programs
pthread_t lua_thread;         // set before the first handler is

constexpr int kExitCode = 130;
constexpr int64_t kOneMilliseconds = 500;
constexpr unsigned kGraceSeconds = 1;
constexpr int kHookInstructions = 100;

// Lua's state may be touched by the thread that runs it alone. Other threads pass a signal on.
bool passed_on(int signal) {
  if (pthread_equal(pthread_self(), lua_thread) != 0) return false;
  pthread_kill(lua_thread, signal);
  return true;
}

bool nothing_is_lost() { return !training.load() && !trained.load() && !measuring.load(); }

void say(const std::string& sentence) {
  // On a terminal the cursor may stand after ^C or a line of progress.
  if (on_terminal && ::write(STDERR_FILENO, "\n", 1) < 0) return;
  [[maybe_unused]] const ssize_t said = ::write(STDERR_FILENO, sentence.data(), sentence.size());
}

// Errors that a recipe's pcall takes are raised again in the next instruction: `while true do pcall(f) end`
// would be back in f by a later one. In the library, which ends by itself, nothing is raised.
void recipe_hook(lua_State* L, lua_Debug* ar) {
  if (!is_recipe_code(L, ar)) return;
  lua_sethook(L, &recipe_hook, LUA_MASKCOUNT, 1);
  raise_interrupted(L);
}

// An interrupt that counts has come.
void begin_to_end(const std::string Sentences::*sentence) {
  if (training.load()) ending = true;
  if (Executor* executor = running.load()) executor->request_stop();
  lua_State* L = interrupted_lua.load();
  if (L == nullptr) return;
  lua_sethook(L, &recipe_hook, LUA_MASKCOUNT, kHookInstructions);
  if (const Sentences* known = sentences.load()) say(known->*sentence);
  if (!nothing_is_lost()) return;
  grace = true;
  alarm(kGraceSeconds);
}

void on_interrupt(int signal) {
  if (passed_on(signal)) return;
  const int error = errno;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
  const bool again = now - last.load() < kOneMilliseconds;
  if (!again) last = now;
  if ((signal == SIGTERM || signal == SIGHUP) && may_leave.load()) {
    int none = 0;
    const bool first = leave.compare_exchange_strong(none, signal);
    if (const Sentences* known = sentences.load(); first && known != nullptr)
      say(signal == SIGTERM ? known->leave : known->leave_unread);
    errno = error;
    if (first || again || signal == SIGHUP) return;
  }
  const bool earlier = pending.exchange(true) || ending.load();
  if (earlier && !again && signal != SIGHUP) _exit(kExitCode);  // a closed terminal asks once
  if (!earlier)
    begin_to_end(signal == SIGTERM  ? &Sentences::sigterm
                 : signal == SIGHUP ? &Sentences::sighup
                                    : &Sentences::control_c);
  errno = error;
}

void on_alarm(int signal) {
  if (passed_on(signal)) return;
  const int error = errno;
  if (grace.exchange(false)) {
    if (nothing_is_lost()) _exit(kExitCode);
  } else if (!pending.exchange(true) && !ending.load()) {
    begin_to_end(&Sentences::limit);
  }
  errno = error;
}

void handle(int signal, void (*handler)(int), int flags = SA_RESTART) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  // One at a time: each looks at what the other leaves.
  for (const int other : {SIGINT, SIGTERM, SIGHUP, SIGALRM}) sigaddset(&action.sa_mask, other);
  sigaction(signal, &action, nullptr);
}

// Of the thread that runs Lua. What handlers may be reading stays where it is.
std::string place_words, limit_words;
std::list<Sentences> made;

void make_sentences() {
  const std::string ends = fmt::format("ending at the next safe point{}; ", place_words);
  made.push_back(
      {"hetrun: Ctrl-C: " + ends + "again ends at once\n",
       "hetrun: SIGTERM: " + ends + "again ends at once\n",
       "hetrun: SIGHUP: the terminal, or who read the output, is gone: " + ends + "SIGTERM ends at once\n",
       fmt::format("hetrun: the limit of {} (--limit-time) is over: {}Ctrl-C ends at once\n", limit_words,
                   ends),
       "SIGTERM: leaving the run after the next step; again ends the run\n",
       "SIGHUP: the terminal, or who read the output, is gone: leaving the run after the next step; SIGTERM "
       "ends the "
       "run\n"});
  sentences = &made.back();
}

}  // namespace

void install_interrupt_handler() {
  lua_thread = pthread_self();
  on_terminal = isatty(STDERR_FILENO) != 0;
  make_sentences();
  struct sigaction hangup {};
  without_hangup = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
  handle(SIGINT, &on_interrupt);
  handle(SIGALRM, &on_alarm);
}

void interrupt_recipes_of(lua_State* L) { interrupted_lua = L; }

void name_recipe(const std::string& path) {
  place_words = path.empty() ? "" : " of " + visible(path);
  make_sentences();
}

void set_keeps_measurements(bool keeps) { measuring = keeps; }

void limit_time(std::chrono::duration<double> limit, const std::string& words) {
  limit_words = visible(words);
  make_sentences();
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(limit).count();
  itimerval timer{};
  timer.it_value.tv_sec = microseconds / 1'000'000;
  timer.it_value.tv_usec = microseconds % 1'000'000;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void run_trains(bool trains) {
  training = trains;
  if (trains) trained = true;
  ending = trains && pending.load();
  handle(SIGTERM, trains ? &on_interrupt : SIG_DFL);
  if (!without_hangup) handle(SIGHUP, trains ? &on_interrupt : SIG_DFL);
  std::signal(SIGPIPE, trains ? SIG_IGN : SIG_DFL);  // a write says it
  // A recipe that started its run itself ends where it goes on.
  lua_State* L = interrupted_lua.load();
  if (L != nullptr && lua_gethook(L) == &recipe_hook) lua_sethook(L, &recipe_hook, LUA_MASKCOUNT, 1);
}

void end_unread() {
  if (!pending.load() && !ending.load() && !asked_to_leave()) ::raise(without_hangup ? SIGTERM : SIGHUP);
}

void let_sigterm_leave(bool leaves) { may_leave = leaves; }
bool asked_to_leave() { return leave.load() != 0; }
const char* asked_to_leave_by() { return leave.load() == SIGHUP ? "SIGHUP" : "SIGTERM"; }

bool run_is_training() { return training.load(); }
bool interrupt_pending() { return pending.load(); }
bool take_interrupt() { return pending.exchange(false); }

bool is_recipe_code(lua_State* L, lua_Debug* ar) {
  // The library's functions have the globals that LuaJIT made; what a recipe may reach has separate tables.
  lua_getinfo(L, "f", ar);
  lua_getfenv(L, -1);
  const bool library = lua_rawequal(L, -1, LUA_GLOBALSINDEX) != 0;
  lua_pop(L, 2);
  return !library;
}

void raise_interrupted(lua_State* L) {
  detail::push_error(L, Error(ErrorKind::usage, "interrupted"), "interrupted");
  lua_error(L);
  std::abort();  // lua_error does not return
}

InterruptibleRead::InterruptibleRead() { handle(SIGINT, &on_interrupt, 0); }
InterruptibleRead::~InterruptibleRead() { handle(SIGINT, &on_interrupt); }

InterruptScope::InterruptScope(Executor& executor) {
  running = &executor;
  if (pending) executor.request_stop();
}
InterruptScope::~InterruptScope() { running = nullptr; }

}  // namespace het::lua
