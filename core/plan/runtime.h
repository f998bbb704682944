// How the ranks of a plan wait for each other. By default nothing waits before it must: receives are posted
// ahead, sends are awaited late, gradients are summed beside the backward pass. The modes here run a plan as
// other frameworks do, to measure what that costs and to predict their runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/plan/plan.h"

namespace het {

struct Runtime {
  // A rank that sends to another stage waits until the message has arrived, and a rank receives only when it
  // needs the message, as the pipeline engine of DeepSpeed does: before a unit come the messages that the
  // unit before it made and those that it needs, one after the other.
  bool blocking = false;
  // Gradients are summed after a rank's last backward pass, not beside it.
  bool late_reduction = false;
  bool operator==(const Runtime&) const = default;
};

// "blocking,late-reduction", either or none of them; throws Error(usage) for other words.
Runtime runtime_of(std::string_view words);
// The same words; "overlapping" when there are none.
std::string name_of(const Runtime& runtime);

// Why a schedule cannot be run so, each a sentence. Ranks that block need a schedule in which neighbouring
// stages send and receive in the same order: gpipe, and 1f1b without extra warm-up.
std::vector<std::string> problems_of(const Runtime& runtime, Schedule schedule, int warmup);

}  // namespace het
