#include "core/plan/history.h"

namespace het {

bool is_on(const History& history, Version version) {
  if (version.step == 0) return true;
  const Era* last = nullptr;
  for (const Era& era : history)
    if (era.first_step <= version.step) last = &era;
  return last != nullptr && last->generation == version.generation;
}

History up_to(const History& history, Version version) {
  History led;
  for (const Era& era : history)
    if (era.first_step <= version.step) led.push_back(era);
  return led;
}

void append(History& history, Version decided, int64_t nonce) {
  if (history.empty() || history.back().generation != decided.generation)
    history.push_back({decided.generation, decided.step, nonce});
}

}  // namespace het
