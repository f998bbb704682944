// The second wall around recipes, held up by the kernel: when the first (the sandbox of
// lua/het/sandbox/init.lua, and RecipeFiles) has a hole, the process still can neither open the person's
// files nor start programs nor reach the network, unless it has ranks to talk to. Landlock limits paths and
// TCP, a seccomp filter refuses system calls that no run needs. Neither can be taken back, and both hold for
// all threads that are started later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace het::lua {

// What the kernel offers.
struct KernelWalls {
  int landlock = 0;  // version of Landlock's interface; 0: none (below 5.13, or switched off)
  bool seccomp = false, openat2 = false;
};
KernelWalls kernel_walls();

struct Confinement {
  bool network = false;  // may talk to other ranks
  bool gpu = false;      // drivers open devices, sockets and shared memory of their own
  // Folders of the library itself, such as its caches.
  std::vector<std::string> reads, writes;
};

// Put up what walls the kernel offers. The process has one thread. Throws Error(environment) where the kernel
// offers a wall and then refuses it.
void confine(const Confinement& wanted);

// The process gets no more private memory than this: an allocation beyond it fails as on a full machine. Not
// with the address sanitizer, whose shadow memory is larger than any limit.
void limit_memory(int64_t bytes);

}  // namespace het::lua
