// Assignment problems (planner/assignment) as Lua solves them: a file in, what was found as a table and as
// JSON out.
#include <algorithm>
#include <chrono>

#include "core/base/parallel.h"
#include "core/io/json.h"
#include "lua/interrupt.h"
#include "lua/objects.h"
#include "planner/assignment/solve.h"

namespace het::lua {
namespace {

using planner::assignment::AssignmentProblem;
using planner::assignment::AssignmentResult;
using planner::assignment::to_text;

// While one lives, SIGINT and SIGTERM ask the search to end with what it has.
class EndsEarly {
 public:
  EndsEarly() { run_trains(true); }
  ~EndsEarly() { run_trains(false); }
  EndsEarly(const EndsEarly&) = delete;
  EndsEarly& operator=(const EndsEarly&) = delete;
};

std::string list_of(const std::vector<int>& choice) { return fmt::format("[{}]", fmt::join(choice, ", ")); }

// Costs have more digits than a JSON number of ours keeps: they are written by hand.
std::string json_of(const AssignmentProblem& problem, const AssignmentResult& result, double seconds,
                    bool interrupted) {
  std::string text =
      fmt::format("{{\"name\": {}, \"nodes\": {}, \"edges\": {}, \"feasible\": {}", dump(Json(problem.name)),
                  problem.nodes.size(), problem.edges.size(), result.feasible);
  if (result.feasible)
    text += fmt::format(
        ", \"not_allowed\": {}, \"cost\": {}, \"gap\": {:.9g}, \"peak_usage\": {}, \"peak_time\": {}",
        result.not_allowed, to_text(result.cost), result.gap(), to_text(result.peak_usage), result.peak_time);
  else
    text += fmt::format(", \"why_not\": {}", dump(Json(result.why_not)));
  if (result.has_bound) text += fmt::format(", \"bound\": {}", to_text(result.bound));
  if (problem.usage_limit) text += fmt::format(", \"usage_limit\": {}", *problem.usage_limit);
  return text + fmt::format(", \"optimal\": {}, \"seconds\": {:.3f}, \"interrupted\": {}, \"solution\": {}}}",
                            result.optimal, seconds, interrupted, list_of(result.choice));
}

// {path, seconds, seed} -> table, JSON, the choice as the contest's programs print it. The seconds include
// reading.
int solve_assignment(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const auto begun = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  const Path path = field<Path>(L, 1, "path").value_or(Path(""));
  const double seconds = field<double>(L, 1, "seconds").value_or(60);
  constexpr double kMostSeconds = 1e6;
  if (!(seconds > 0 && seconds <= kMostSeconds))
    fail_usage("seconds = {} is not a time above 0 and up to 1000000", seconds);
  const EndsEarly ends_early;
  const AssignmentProblem problem = planner::assignment::read_instance(path);
  planner::assignment::SolveOptions options;
  // What is left is for the last step of the search, and for writing.
  constexpr double kMostMargin = 2, kMarginShare = 0.03;
  options.seconds = std::max(0.01, seconds - elapsed() - std::min(kMostMargin, 0.1 + kMarginShare * seconds));
  options.seed = static_cast<uint64_t>(std::max(0.0, field<double>(L, 1, "seed").value_or(1)));
  // Each thread may have 240 MB of tables.
  constexpr int kMostThreads = 8;
  options.threads = std::min(thread_count(), kMostThreads);
  options.stop = [] { return interrupt_pending(); };
  const AssignmentResult result = planner::assignment::solve(problem, options);
  const bool interrupted = take_interrupt();

  lua_newtable(L);
  set_field(L, "name", problem.name);
  set_field(L, "nodes", static_cast<double>(problem.nodes.size()));
  set_field(L, "edges", static_cast<double>(problem.edges.size()));
  set_field(L, "feasible", result.feasible);
  set_field(L, "optimal", result.optimal);
  set_field(L, "why_not", result.why_not);
  set_field(L, "cost", to_text(result.cost));
  set_field(L, "not_allowed", static_cast<double>(result.not_allowed));
  if (result.has_bound) set_field(L, "bound", to_text(result.bound));
  set_field(L, "gap", result.gap());
  set_field(L, "peak_usage", to_text(result.peak_usage));
  set_field(L, "peak_time", static_cast<double>(result.peak_time));
  if (problem.usage_limit) set_field(L, "usage_limit", std::to_string(*problem.usage_limit));
  set_field(L, "variables", static_cast<double>(result.variables));
  set_field(L, "rows", static_cast<double>(result.rows));
  set_field(L, "seconds", elapsed());
  set_field(L, "interrupted", interrupted);
  Convert<std::string>::push(L, json_of(problem, result, elapsed(), interrupted));
  Convert<std::string>::push(L, list_of(result.choice));
  return 3;
}

}  // namespace

void add_assignment(lua_State* L) {
  set_functions(L, "native.", {bind<&solve_assignment>("solve_assignment")});
}

}  // namespace het::lua
