// Ctrl-C: the one place where a signal handler meets the program. The first interrupt asks the running step
// to stop and is remembered until somebody takes it; a second one before that ends the process at once.
#pragma once

#include "core/program/executor.h"

namespace het::lua {

void install_interrupt_handler();
bool take_interrupt();  // true once after an interrupt

// While one lives, an interrupt also stops this executor's step.
class InterruptScope {
 public:
  explicit InterruptScope(Executor& executor);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

}  // namespace het::lua
