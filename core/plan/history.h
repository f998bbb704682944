// Which generations decided the steps that led to a state. A step that was trained again after a rollback is
// another version; what is not on a run's history is never mixed with what is.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/inventory.h"

namespace het {

// `generation` decided the steps from `first_step` on, up to the first one of the next era. `nonce`: a random
// number that its ranks have in common, so that generations of equal number differ: those of another
// run in the same place, or of one that began again. 0: not known.
struct Era {
  int64_t generation = 0, first_step = 0, nonce = 0;
  bool operator==(const Era&) const = default;
};

// Ascending by first step. The state before the first step is on every history.
using History = std::vector<Era>;

bool is_on(const History& history, Version version);
// The eras that led to `version`, which is on the history.
History up_to(const History& history, Version version);
// Adds a decided step, later than all of the history. `nonce`: of the generation that decided it.
void append(History& history, Version decided, int64_t nonce);

}  // namespace het
