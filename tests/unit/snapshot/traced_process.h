// A process whose system calls that change files are counted, by ptrace: before any of them it can be killed,
// or the call be made to fail.
#pragma once

#include <functional>
#include <string>

namespace het::testing {

struct TracedOutcome {
  int calls =
      0;  // that change files: created, mapped to be written, allocated, written, flushed, renamed, removed
  bool killed = false;  // before the call asked for
  bool failed = false;  // `body` threw an Error
};

bool can_trace();  // whether this machine lets a process trace its children

// Runs `body` in a child process. `before(call, name)` is called before each call that changes files,
// counted from 0, while the process stands still; it returns 0 to let it go on, kKill, or the errno that the
// call fails with.
inline constexpr int kKill = -1;
TracedOutcome run_traced(const std::function<void()>& body,
                         const std::function<int(int call, const std::string& name)>& before);

// Runs `body` in a child process of one thread. From when it raises SIGSTOP on, `look` is called after
// each of its instructions, while it stands still: what it sees of files and shared memory is what a SIGKILL
// there leaves. Returns how many.
int64_t run_stepped(const std::function<void()>& body, const std::function<void()>& look);

}  // namespace het::testing
