// From which source each slice that ranks lack of a version is taken: a min-max flow, rounded to whole rows.
// Plain data. Part of plan_recovery.
#pragma once

#include <string>

#include "planner/migrate/recovery.h"
#include "planner/migrate/sourced.h"

namespace het::planner {

struct SourcedMoves {
  MovesByTensor moves;
  double seconds = 0;        // of the busiest limit by these moves
  double bound_seconds = 0;  // of the flow
  std::string busiest;       // limit, in words: "reading the disk of rank 3"; empty when nothing takes time
};

// `needed` has nothing missing. Each source of a group gets its share of the flow within a row or 1/64 of the
// group (at most 1 MiB) all along the tensors, so that rounds of some of them are as even as the whole. What
// that makes longer than the flow is then made shorter row by row, where another source helps.
SourcedMoves choose_sources(const SourceTable& sources, const SourcedVersion& needed,
                            const RecoveryOptions& options);

}  // namespace het::planner
