// Which instruction sets this processor can run: asked by the program, and by a build that is for one machine
// alone.
#pragma once

#include <string_view>

#include <sys/syscall.h>
#include <unistd.h>

namespace het::cpu {

#if defined(__x86_64__)
// Tiles are state that Linux keeps for a process once it has asked (Documentation/arch/x86/xstate.rst).
inline bool grants_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}
#endif

inline bool supported(std::string_view set) {
  if (set == "generic") return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                  __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt") &&
                  __builtin_cpu_supports("movbe");
  if (set == "v3") return v3;
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (set == "v4") return v4;
  const bool v4_bf16 = v4 && __builtin_cpu_supports("avx512bf16");
  if (set == "v4_bf16" || set == "v4_dot") return v4_bf16;
  if (set == "v4_amx")
    return v4_bf16 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
           grants_tiles();
#endif
  return false;
}

}  // namespace het::cpu
