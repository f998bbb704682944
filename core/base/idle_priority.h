// A thread that gives way to all others.
#pragma once

#include <sched.h>

namespace het {

// From here on this thread gets a core only while no other thread wants it (SCHED_IDLE), nearly: a busy
// machine leaves it a few thousandths of one. It cannot go back. Nothing happens where the system refuses.
inline void take_idle_priority() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_IDLE, &none);
}

}  // namespace het
