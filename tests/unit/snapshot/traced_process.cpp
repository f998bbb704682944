#include "tests/unit/snapshot/traced_process.h"

#include <cerrno>
#include <csignal>
#include <map>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"

namespace het::testing {

#ifdef __x86_64__

namespace {

bool is_file(pid_t process, unsigned long long descriptor) {
  struct stat about {};
  const std::string path = fmt::format("/proc/{}/fd/{}", process, static_cast<int>(descriptor));
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

// Empty: the call changes no file.
std::string name_of_change(pid_t process, const user_regs_struct& registers) {
  switch (registers.orig_rax) {
    case SYS_creat: return "create";
    case SYS_mmap: {  // what is written to the memory is no call
      const bool shares = (registers.r10 & MAP_SHARED) != 0 && (registers.rdx & PROT_WRITE) != 0;
      return shares && is_file(process, registers.r8) ? "map" : "";
    }
    case SYS_write:
    case SYS_writev:
    case SYS_pwritev:
    case SYS_pwritev2:
    case SYS_sendfile: return is_file(process, registers.rdi) ? "write" : "";
    case SYS_copy_file_range:
    case SYS_splice: return is_file(process, registers.rdx) ? "write" : "";
    case SYS_truncate: return "allocate";
    case SYS_msync:
    case SYS_sync_file_range:
    case SYS_sync:
    case SYS_syncfs: return "flush";
    case SYS_link:
    case SYS_linkat:
    case SYS_symlink:
    case SYS_symlinkat: return "link";
    case SYS_mkdir:
    case SYS_mkdirat: return "folder";
    case SYS_io_uring_setup: fail_environment("what a process writes with io_uring cannot be counted");
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
      const std::string name = thread.inside ? name_of_change(child, registers) : "";
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

int64_t run_stepped(const std::function<void()>& body, const std::function<void()>& look) {
  const pid_t child = fork();
  if (child == 0) be_traced(body);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
    fail_environment("a process could not be traced: its status is {}", status);
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL);
  ptrace(PTRACE_CONT, child, nullptr, 0);
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
    fail_environment("a process did not come to be stepped: its status is {}", status);
  for (int64_t steps = 0;; ++steps) {
    ptrace(PTRACE_SINGLESTEP, child, nullptr, 0);
    if (waitpid(child, &status, 0) != child) fail_environment("a traced process was lost: errno {}", errno);
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      HET_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, status);
      return steps;
    }
    look();
  }
}

#else

bool can_trace() { return false; }

int64_t run_stepped(const std::function<void()>&, const std::function<void()>&) {
  fail_environment("instructions are stepped through on x86-64 only");
}

TracedOutcome run_traced(const std::function<void()>&, const std::function<int(int, const std::string&)>&) {
  fail_environment("system calls are counted on x86-64 only");
}

#endif

}  // namespace het::testing
