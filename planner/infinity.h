#pragma once

#include <limits>

namespace het::planner {

// Seconds of what cannot be.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace het::planner
