// Ctrl-C (SIGINT), SIGTERM while a run trains, and the end of --limit-time: the one place where signal
// handlers meet the program. The first interrupt asks the running step to stop and Lua code of recipes to
// end, says so, and is remembered; a second one before the run has ended, or before the first was taken
// where no run trains, ends the process at once. Signals of the same half second are one: a process group and
// a launcher may both deliver it.
//
// Recipe code ends by an error that a hook raises in it, again and again until it is out: pcall keeps none of
// them. No hook fires within a function of C, so where nothing has been trained an interrupt ends the process
// after a second whatever runs. While a run trains, what was trained is worth the wait: only a second
// interrupt ends it then.
#pragma once

#include <chrono>
#include <string>

#include "core/program/executor.h"

struct lua_State;
struct lua_Debug;

namespace het::lua {

void install_interrupt_handler();  // by the thread that runs Lua
// Interrupts end recipe code that runs in this state and in its coroutines; null: no longer. The prompt,
// which interrupts its lines itself, leaves it out.
void interrupt_recipes_of(lua_State* L);
// The recipe that the sentence names. Without one it says "the next safe point" alone.
void name_recipe(const std::string& path);
// Nothing is lost when the process ends (the default), or what it measures is.
void set_keeps_measurements(bool keeps);
// Interrupt the program after this time. `words` say how long that is.
void limit_time(std::chrono::duration<double> limit, const std::string& words);

// A run begins to train or has ended. While it trains SIGTERM and SIGHUP are interrupts, and so is output
// that no one reads (end_unread); else each ends the process.
void run_trains(bool trains);
bool run_is_training();
// Who read the output of the run is gone.
void end_unread();
// From here on a first SIGTERM, or SIGHUP, while a run trains asks this rank to leave it, and is no
// interrupt: of a run that goes on without this rank.
void let_sigterm_leave(bool leaves);
bool asked_to_leave();
const char* asked_to_leave_by();  // "SIGTERM" or "SIGHUP"
bool take_interrupt();            // true once after an interrupt
bool interrupt_pending();         // there is one that no thread took

// Does the function at `ar`, in which a hook fires, belong to a recipe or to the prompt, not to the het
// library?
bool is_recipe_code(lua_State* L, lua_Debug* ar);
// Raise the error by which an interrupt ends Lua code: {kind = "interrupted", message = ...}.
[[noreturn]] void raise_interrupted(lua_State* L);

// While one lives, an interrupt ends a read that waits (EINTR). Else what is read and written goes on: a line
// of progress, or a file, would be cut off.
class InterruptibleRead {
 public:
  InterruptibleRead();
  ~InterruptibleRead();
  InterruptibleRead(const InterruptibleRead&) = delete;
  InterruptibleRead& operator=(const InterruptibleRead&) = delete;
};

// While one lives, an interrupt also stops this executor's step.
class InterruptScope {
 public:
  explicit InterruptScope(Executor& executor);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

}  // namespace het::lua
