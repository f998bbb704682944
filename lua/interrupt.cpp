#include "lua/interrupt.h"

#include <csignal>

#include <unistd.h>

namespace het::lua {
namespace {

// Signal handlers can reach nothing else: lock-free atomics with static storage.
std::atomic<bool> pending{false};
std::atomic<Executor*> running{nullptr};

void on_interrupt(int) {
  if (pending.exchange(true)) _exit(130);
  if (Executor* executor = running.load()) executor->request_stop();
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = &on_interrupt;
  sigaction(SIGINT, &action, nullptr);
}

bool take_interrupt() { return pending.exchange(false); }

InterruptScope::InterruptScope(Executor& executor) {
  running = &executor;
  if (pending) executor.request_stop();
}
InterruptScope::~InterruptScope() { running = nullptr; }

}  // namespace het::lua
