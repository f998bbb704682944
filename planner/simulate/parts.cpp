#include "planner/simulate/parts.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"

namespace het::planner {

double StepParts::total() const {
  double sum = 0;
  for (const StepPart& part : step_parts()) sum += this->*part.seconds;
  return sum;
}

const std::array<StepPart, 10>& step_parts() {
  static constexpr std::array<StepPart, 10> kParts = {{
      {"compute", "compute", &StepParts::compute},
      {"recompute", "recompute", &StepParts::again},
      {"tensor", "tensor-parallel collectives", &StepParts::tensor},
      {"transfers", "transfers between stages", &StepParts::transfers},
      {"bubble", "bubble", &StepParts::bubble},
      {"gradients", "exchange of gradients", &StepParts::gradients},
      {"norms", "exchange of norms and losses", &StepParts::norms},
      {"update", "update", &StepParts::update},
      {"gather", "gathering of weights", &StepParts::gather},
      {"waiting", "waiting for others", &StepParts::waiting},
  }};
  return kParts;
}

std::vector<std::string_view> what_binds(const StepParts& slowest) {
  const double step = slowest.total();
  std::vector<const StepPart*> large;
  for (const StepPart& part : step_parts()) {
    const bool computes = part.seconds == &StepParts::compute;
    if (slowest.*part.seconds >= (computes ? kComputeBinds : kBinds) * step) large.push_back(&part);
  }
  std::stable_sort(large.begin(), large.end(), [&](const StepPart* a, const StepPart* b) {
    return slowest.*a->seconds > slowest.*b->seconds;
  });
  std::vector<std::string_view> names;
  for (const StepPart* part : large) names.emplace_back(part->name);
  return names;
}

std::string to_text(const StepParts& parts, std::string_view name) {
  const auto& all = step_parts();
  const auto part =
      std::find_if(all.begin(), all.end(), [&](const StepPart& each) { return each.name == name; });
  HET_REQUIRE(part != all.end(), name);
  return fmt::format("{} ({:.0f} %)", part->words, 100 * parts.*part->seconds / parts.total());
}

std::string to_text(const StepParts& parts) {
  const double step = parts.total();
  std::string text;
  for (const StepPart& part : step_parts())
    if (const double share = parts.*part.seconds / step; share >= 0.0005)
      text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", part.words, 100 * share);
  return text;
}

}  // namespace het::planner
