// Ctrl-C (SIGINT), and SIGTERM while a run trains: the one place where signal handlers meet the program. The
// first interrupt asks the running step to stop and is remembered; a second one before the run has ended, or
// before somebody took the first where no run trains, ends the process at once. Signals of the same half
// second are one: a process group and a launcher may both deliver it.
#pragma once

#include "core/program/executor.h"

namespace het::lua {

void install_interrupt_handler();
// A run begins to train or has ended. While it trains SIGTERM is an interrupt; else it ends the process.
void run_trains(bool trains);
bool run_is_training();
bool take_interrupt();     // true once after an interrupt
bool interrupt_pending();  // there is one that nobody took

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
