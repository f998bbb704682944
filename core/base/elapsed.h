// Seconds of the clock that never goes back.
#pragma once

#include <chrono>

namespace het {

inline double seconds_of(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}
inline double seconds_since(std::chrono::steady_clock::time_point then) {
  return seconds_of(std::chrono::steady_clock::now() - then);
}
// Since a moment that is the same for all processes of a machine.
inline double steady_seconds() { return seconds_of(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace het
