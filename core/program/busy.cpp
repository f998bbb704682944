#include "core/program/busy.h"

#include <algorithm>
#include <vector>

#include "core/base/median.h"

namespace het {

std::optional<Busy> measure_busy(Executor& executor) {
  constexpr double kSpell = 2e-3;  // seconds between two moments
  constexpr int kRuns = 3;
  const Executor::Repeats repeats = executor.repeats_for(kSpell);
  if (repeats.times.empty()) return std::nullopt;
  std::vector<std::vector<double>> seconds(repeats.times.size());
  Busy busy;
  for (int run = 0; run < kRuns; ++run) {
    const auto spans = executor.run_timed(repeats);
    busy.launches = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      seconds[i].push_back(spans[i].end - spans[i].begin);
      busy.launches += spans[i].launches;
    }
  }
  if (busy.launches == 0) return std::nullopt;
  for (std::vector<double>& of : seconds) busy.seconds += median(std::move(of));
  busy.seconds = std::max(0.0, busy.seconds - busy.launches * executor.state().device().launch_gap());
  return busy;
}

}  // namespace het
