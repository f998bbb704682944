#include "tests/unit/snapshot/traced_process.h"

#include <cerrno>
#include <csignal>
#include <map>

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"

namespace het::testing {

#ifdef __x86_64__

namespace {

// Empty: the call changes no file.
std::string name_of_change(const user_regs_struct& registers) {
  switch (registers.orig_rax) {
    case SYS_openat: return (registers.rdx & O_CREAT) != 0 ? "create" : "";
    case SYS_open: return (registers.rsi & O_CREAT) != 0 ? "create" : "";
    case SYS_fallocate: return "allocate";
    case SYS_ftruncate: return "allocate";
    case SYS_pwrite64: return "write";
    case SYS_fsync:
    case SYS_fdatasync: return "flush";
    case SYS_rename:
    case SYS_renameat:
    case SYS_renameat2: return "rename";
    case SYS_unlink:
    case SYS_unlinkat: return "remove";
    default: return "";
  }
}

[[noreturn]] void be_traced(const std::function<void()>& body) {
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  raise(SIGSTOP);
  try {
    body();
  } catch (const Error&) {
    _exit(1);
  } catch (...) {
    _exit(2);
  }
  _exit(0);
}

}  // namespace

bool can_trace() {
  try {
    return run_traced([] {}, [](int, const std::string&) { return 0; }).calls == 0;
  } catch (const Error&) {
    return false;
  }
}

TracedOutcome run_traced(const std::function<void()>& body,
                         const std::function<int(int call, const std::string& name)>& before) {
  const pid_t child = fork();
  if (child == 0) be_traced(body);
  int status = 0;
  if (waitpid(child, &status, __WALL) != child || !WIFSTOPPED(status))
    fail_environment("a process could not be traced: its status is {}", status);
  if (ptrace(PTRACE_SETOPTIONS, child, nullptr,
             PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) != 0)
    fail_environment("a process could not be traced");
  struct Thread {
    bool inside = false;  // of a system call
    int error = 0;        // with which that call is to end
  };
  std::map<pid_t, Thread> threads{{child, {}}};
  TracedOutcome outcome;
  ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  for (;;) {
    const pid_t at = waitpid(-1, &status, __WALL);
    if (at < 0) fail_environment("a traced process was lost: errno {}", errno);
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (at != child) {
        threads.erase(at);
        continue;
      }
      outcome.failed = WIFEXITED(status) && WEXITSTATUS(status) == 1;
      HET_REQUIRE(WIFSIGNALED(status) || WEXITSTATUS(status) < 2, status);
      return outcome;
    }
    Thread& thread = threads[at];
    int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {  // a system call begins or ends
      signal = 0;
      thread.inside = !thread.inside;
      user_regs_struct registers{};
      ptrace(PTRACE_GETREGS, at, nullptr, &registers);
      const std::string name = thread.inside ? name_of_change(registers) : "";
      if (!name.empty()) {
        const int fault = before(outcome.calls++, name);
        if (fault == kKill) {
          outcome.killed = true;
          kill(child, SIGKILL);
          while (waitpid(-1, &status, __WALL) != child || !WIFSIGNALED(status)) {  // its threads first
          }
          return outcome;
        }
        if (fault > 0) {
          thread.error = fault;
          registers.orig_rax = static_cast<unsigned long long>(-1);  // no such call
          ptrace(PTRACE_SETREGS, at, nullptr, &registers);
        }
      } else if (!thread.inside && thread.error != 0) {
        registers.rax = static_cast<unsigned long long>(-std::exchange(thread.error, 0));
        ptrace(PTRACE_SETREGS, at, nullptr, &registers);
      }
    } else if (signal == SIGTRAP || signal == SIGSTOP) {
      signal = 0;  // a thread that was made, and its first stop
    }
    ptrace(PTRACE_SYSCALL, at, nullptr, signal);
  }
}

#else

bool can_trace() { return false; }

TracedOutcome run_traced(const std::function<void()>&, const std::function<int(int, const std::string&)>&) {
  fail_environment("system calls are counted on x86-64 only");
}

#endif

}  // namespace het::testing
