// What the bindings of the planners share.
#pragma once

#include <future>

#include "core/plan/plan.h"
#include "lua/objects.h"
#include "planner/cluster/cluster.h"

namespace het::lua {

// A plan that a separate thread searches for. Dropping it waits for the thread.
struct Planning {
  std::future<Json> answer;
};

// The cluster that the table at `index` describes; Error(usage) names what is wrong in it.
planner::Cluster cluster_at(lua_State* L, int index);

// As pages and --json have them. A cluster: its nodes, and the link of all zones without one of their own.
Json plan_json(const Plan& plan);
Json cluster_json(const planner::Cluster& cluster);

}  // namespace het::lua
