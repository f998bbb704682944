#include "core/plan/runtime.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace het {

Runtime runtime_of(std::string_view words) {
  Runtime runtime;
  while (!words.empty()) {
    const size_t comma = words.find(',');
    const std::string_view word = words.substr(0, comma);
    words = comma == std::string_view::npos ? std::string_view{} : words.substr(comma + 1);
    if (word == "blocking")
      runtime.blocking = true;
    else if (word == "late-reduction")
      runtime.late_reduction = true;
    else if (word != "overlapping" && !word.empty())
      fail_usage("runtime '{}' is not one of overlapping, blocking, late-reduction", word);
  }
  return runtime;
}

std::string name_of(const Runtime& runtime) {
  if (!runtime.blocking && !runtime.late_reduction) return "overlapping";
  return fmt::format("{}{}{}", runtime.blocking ? "blocking" : "",
                     runtime.blocking && runtime.late_reduction ? "," : "",
                     runtime.late_reduction ? "late-reduction" : "");
}

std::vector<std::string> problems_of(const Runtime& runtime, Schedule schedule, int warmup) {
  std::vector<std::string> problems;
  if (!runtime.blocking) return problems;
  if (schedule != Schedule::one_f_one_b && schedule != Schedule::gpipe)
    problems.push_back(fmt::format(
        "runtime 'blocking' runs the schedules 1f1b and gpipe; with {} two stages would wait for each other",
        name_of(schedule)));
  else if (schedule == Schedule::one_f_one_b && warmup > 0)
    problems.push_back(fmt::format(
        "runtime 'blocking' runs 1f1b with warmup = 0; with {} two stages would wait for each other",
        warmup));
  return problems;
}

}  // namespace het
