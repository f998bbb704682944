// What would make a step of a plan shorter: the same plan with one thing changed, simulated. Links twice as
// fast, by the machines that they join; the slowest stages faster; other micro-batches; no recompute. Changes
// that lack memory are among them, with how much. Plain data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/policy.h"

namespace het::planner {

struct WhatIf {
  enum class Kind { link, all_links, inside, slowest_stages, microbatch, batch, recompute };
  Kind kind = Kind::link;
  std::string words;        // "the link between a1 and b1 twice as fast"
  double step_seconds = 0;  // with it
  double gain = 0;          // of the seconds for a sample, as a share: 0.1 is a tenth less
  double lacks_bytes = 0;   // that a device lacks for it: it cannot be done as things are
  std::string from, to;     // the machines that a link joins, or the machine that it is inside
  double bandwidth = 0;     // of the link as it is, bytes a second
};
std::string_view name_of(WhatIf::Kind kind);

// What the slowest stages take then, as a share: those that take longer than this share of the longest, so
// that none of the others becomes the slowest.
inline constexpr double kFasterStages = 0.9;

// All that gains kGains or more, what gains most first; what lacks memory among them. Simulates the plan once
// for each change: links between each two kinds of machines that the plan uses, up to kMostPairs of them.
inline constexpr double kGains = 0.01;
inline constexpr int kMostPairs = 64;
std::vector<WhatIf> what_helps(const Request& request, const Planned& planned);

// "the link between a and b twice as fast: 9.1 s (-12.0 %)"; of more memory: "..., which lacks 3 GiB".
std::string to_text(const WhatIf& what);

}  // namespace het::planner
