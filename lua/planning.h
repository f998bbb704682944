// What the bindings of the planners share.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "core/plan/plan.h"
#include "lua/objects.h"
#include "planner/cluster/cluster.h"
#include "planner/simulate/parts.h"
#include "planner/simulate/sensitivity.h"

namespace het::planner {
struct Request;   // planner/request.h
struct Planned;   // planner/policy.h
struct Fallback;  // planner/fallback.h
}  // namespace het::planner

namespace het::lua {

inline constexpr int kMostTensor = 8;  // devices that share a layer in what is measured and planned

// How a search for a plan is to go on: it looks at this between candidates.
struct SearchPace {
  std::atomic<bool> given_up = false;
  std::atomic<bool> gentle = false;  // beside work that matters more: it leaves a core most of the time

  bool goes_on();  // waits, where it is to be gentle. For one thread.

 private:
  std::chrono::steady_clock::time_point since_{};
};

// What a separate thread finds, mostly a plan. Dropping it ends the search for a plan, and waits for the
// thread.
struct Planning {
  std::shared_ptr<SearchPace> pace = std::make_shared<SearchPace>();
  std::future<Json> answer;

  Planning() = default;
  ~Planning() { pace->given_up = true; }
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;
};

// The cluster that the table at `index` describes; Error(usage) names what is wrong in it.
planner::Cluster cluster_at(lua_State* L, int index);

// As pages and --json have them. A cluster: its nodes, and the link of all zones without one of their own.
Json plan_json(const Plan& plan);
// Of a plan whose fullest device lacks so many bytes.
void add_lack(Json& answer, double bytes);
Json parts_json(const planner::StepParts& parts);  // seconds by the names of the parts
Json cluster_json(const planner::Cluster& cluster);
// The answer to a request: its report as text and data, the plan as data and as Lua, the events of a step.
Json answer_json(const planner::Request& request, const planner::Planned& planned, const Graph& graph,
                 bool events);
// A loss that was planned for: what is lost, and the plan without it or why there is none.
Json fallback_json(const planner::Fallback& fallback);

}  // namespace het::lua
