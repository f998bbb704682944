#include "lua/interrupt.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

#include <unistd.h>

namespace het::lua {
namespace {

// Signal handlers can reach nothing else: lock-free atomics with static storage.
std::atomic<bool> pending{false};   // nobody has taken it
std::atomic<bool> ending{false};    // the run was asked to end, whether or not that was taken
std::atomic<bool> training{false};  // a run is
std::atomic<int64_t> last{0};       // when the last interrupt that counts came, in milliseconds
std::atomic<Executor*> running{nullptr};

constexpr int kExitCode = 130;
constexpr int64_t kOneMilliseconds = 500;

void on_interrupt(int) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
  const bool again = now - last.load() < kOneMilliseconds;
  if (!again) last = now;
  const bool earlier = pending.exchange(true) || ending.load();
  if (earlier && !again) _exit(kExitCode);
  if (training.load()) ending = true;
  if (Executor* executor = running.load()) executor->request_stop();
}

void handle(int signal, void (*handler)(int), int flags = SA_RESTART) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void install_interrupt_handler() { handle(SIGINT, &on_interrupt); }

void run_trains(bool trains) {
  training = trains;
  ending = trains && pending.load();
  handle(SIGTERM, trains ? &on_interrupt : SIG_DFL);
}

bool run_is_training() { return training.load(); }
bool interrupt_pending() { return pending.load(); }
bool take_interrupt() { return pending.exchange(false); }

InterruptibleRead::InterruptibleRead() { handle(SIGINT, &on_interrupt, 0); }
InterruptibleRead::~InterruptibleRead() { handle(SIGINT, &on_interrupt); }

InterruptScope::InterruptScope(Executor& executor) {
  running = &executor;
  if (pending) executor.request_stop();
}
InterruptScope::~InterruptScope() { running = nullptr; }

}  // namespace het::lua
