// Plans as recipes describe them.
#include <algorithm>

#include "core/base/parallel.h"
#include "lua/objects.h"

namespace het::lua {
namespace {

Schedule schedule_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Schedule each :
       {Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved, Schedule::split_backward}) {
    if (name_of(each) == name) return each;
    names.emplace_back(name_of(each));
  }
  fail_usage("'{}' is no schedule; there are {}", name, fmt::join(names, ", "));
}

constexpr int kMostInPlan = 1 << 20;  // of anything that is counted: sums and products of two stay small

// The field `tensor` of a plan or a stage where it is a list of shares; empty: it is a number, or absent.
void check_shares(const Shares& shares, std::string_view of) {
  if (shares.empty() || shares.size() > kMostInPlan)
    fail_usage("{} has {} shares; 1 to {} work", of, shares.size(), kMostInPlan);
  for (const int64_t share : shares)
    if (share > kMostInPlan) fail_usage("{} has the share {}; at most {} works", of, share, kMostInPlan);
}

Shares shares_at(lua_State* L, int index) {
  lua_getfield(L, index, "tensor");
  const bool is_list = lua_istable(L, -1);
  lua_pop(L, 1);
  if (!is_list) return {};
  Shares shares = field<Shares>(L, index, "tensor").value_or(Shares{});
  check_shares(shares, "tensor of a plan");
  return shares;
}

// Calls visit(pattern) for each entry of the table `name` of the one at `index`; its value is at the top.
template <class Visit>
void each_pattern(lua_State* L, int index, const char* name, Visit visit) {
  lua_getfield(L, index, name);
  const int entries = lua_gettop(L);
  if (!lua_isnil(L, entries) && !lua_istable(L, entries))
    fail_usage("sharding: `{}` is a {}; names with how they lie are needed", name, luaL_typename(L, entries));
  if (lua_istable(L, entries)) {
    lua_pushnil(L);
    while (lua_next(L, entries) != 0) {
      if (lua_type(L, -2) != LUA_TSTRING)
        fail_usage("sharding: `{}` has an entry without a name; it is as in {{ [\"blocks.*.weight\"] = 0 }}",
                   name);
      visit(std::string(lua_tostring(L, -2)));
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
}

std::vector<std::string> names_of(const std::vector<StageAxis>& axes) {
  std::vector<std::string> names;
  for (const StageAxis& axis : axes) names.push_back(axis.name);
  return names;
}

// How state or inputs lie, from the top of the stack: 0, "replicated", or { dim = 0, segments = { 16, 16 } }.
AxisSharding::Cut cut_at(lua_State* L, const char* name, const std::string& pattern) {
  AxisSharding::Cut cut{pattern, -1, {}};
  const int value = lua_gettop(L);
  const bool replicated =
      lua_type(L, value) == LUA_TSTRING && std::string_view(lua_tostring(L, value)) == "replicated";
  std::optional<int64_t> dim;
  if (lua_type(L, value) == LUA_TNUMBER) dim = Convert<int64_t>::get(L, value);
  if (lua_istable(L, value)) {
    dim = field<int64_t>(L, value, "dim");
    cut.segments = field<std::vector<int64_t>>(L, value, "segments").value_or(cut.segments);
  }
  if (!replicated && (!dim || *dim < 0))
    fail_usage(
        "sharding: {} of `{}` lies by a dimension from 0 on, \"replicated\", or {{ dim =, segments = }}",
        pattern, name);
  if (dim) cut.dim = *dim;
  return cut;
}

AxisSharding::Rule rule_at(lua_State* L, const char* name, const std::string& pattern) {
  if (lua_type(L, -1) != LUA_TSTRING)
    fail_usage("sharding: {} of `{}` runs by a rule, as errors list them", pattern, name);
  return {pattern, lua_tostring(L, -1)};
}

// The entries of `name` of the table at `index`. Of a mesh each has a table, with an entry for each axis.
template <class Entry>
void read_entries(lua_State* L, int index, const char* name, std::vector<StageAxis>& axes, bool is_mesh,
                  std::vector<Entry> AxisSharding::*entries,
                  Entry (*read)(lua_State*, const char*, const std::string&)) {
  const auto add = [&](StageAxis& axis, Entry entry) {
    if (!axis.sharding) axis.sharding.emplace();
    ((*axis.sharding).*entries).push_back(std::move(entry));
  };
  each_pattern(L, index, name, [&](const std::string& pattern) {
    if (!is_mesh) return add(axes[0], read(L, name, pattern));
    if (!lua_istable(L, -1))
      fail_usage("sharding: {} of `{}` has an entry for each axis of the mesh, as in {{ {} = 0 }}", pattern,
                 name, axes[0].name);
    const int of_axes = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, of_axes) != 0) {
      const std::string axis = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
      const auto found =
          std::find_if(axes.begin(), axes.end(), [&](const StageAxis& each) { return each.name == axis; });
      if (found == axes.end())
        fail_usage("sharding: {} of `{}` names an axis that the mesh does not have; it has {}", pattern, name,
                   fmt::join(names_of(axes), " and "));
      add(*found, read(L, name, pattern));
      lua_pop(L, 1);
    }
  });
  for (StageAxis& axis : axes)
    if (axis.sharding) std::sort(((*axis.sharding).*entries).begin(), ((*axis.sharding).*entries).end());
}

// The number of parts of a mesh axis, or their shares, at the top of the stack.
Shares parts_at(lua_State* L) {
  if (lua_type(L, -1) == LUA_TNUMBER) {
    const auto count = Convert<int64_t>::get(L, lua_gettop(L));
    if (count < 1 || count > kMostInPlan)
      fail_usage("an axis of a mesh has {} parts; 1 to {} work", count, kMostInPlan);
    return Shares(static_cast<size_t>(count), 1);
  }
  Shares shares = Convert<Shares>::get(L, lua_gettop(L));
  check_shares(shares, "an axis of a mesh");
  return shares;
}

std::vector<StageAxis> bounded(std::vector<StageAxis> axes) {
  if (axes.empty()) fail_usage("sharding: the mesh has no axis; one or two work");
  size_t devices = 1;
  for (const StageAxis& axis : axes) {
    devices *= axis.shares.size();
    if (devices > kMostInPlan) fail_usage("a mesh of a plan has more than {} devices", kMostInPlan);
  }
  return axes;
}

// { data = 2, model = { 3, 1 } }, axes in the order of their names, or { { "model", 2 }, { "data", 2 } }; at
// the top of the stack.
std::vector<StageAxis> axes_at(lua_State* L) {
  if (!lua_istable(L, -1))
    fail_usage("sharding: a mesh is axes and their sizes, as in {{ data = 2, model = 2 }}");
  const int at = lua_gettop(L), count = static_cast<int>(lua_objlen(L, at));
  std::vector<StageAxis> axes;
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, at, i);
    const int pair = lua_gettop(L);
    if (lua_istable(L, pair)) {
      lua_rawgeti(L, pair, 1);
      lua_rawgeti(L, pair, 2);
    }
    if (lua_gettop(L) == pair || lua_type(L, -2) != LUA_TSTRING)
      fail_usage("sharding: an axis of a mesh is a name and a size, as in {{ \"data\", 2 }}");
    axes.push_back({lua_tostring(L, -2), parts_at(L), {}});
    lua_settop(L, at);
  }
  if (!axes.empty()) return bounded(std::move(axes));
  lua_pushnil(L);
  while (lua_next(L, at) != 0) {
    if (lua_type(L, -2) != LUA_TSTRING)
      fail_usage("sharding: an axis of a mesh is a name and a size, as in {{ data = 2 }}");
    axes.push_back({lua_tostring(L, -2), parts_at(L), {}});
    lua_pop(L, 1);
  }
  std::sort(axes.begin(), axes.end(), [](const StageAxis& a, const StageAxis& b) { return a.name < b.name; });
  return bounded(std::move(axes));
}

// The field `sharding` of a plan or a stage.
std::optional<StageSharding> sharding_at(lua_State* L, int index) {
  lua_getfield(L, index, "sharding");
  std::optional<StageSharding> sharding;
  if (lua_istable(L, -1)) {
    const int at = lua_gettop(L);
    lua_getfield(L, at, "mesh");
    const bool is_mesh = !lua_isnil(L, -1);
    sharding = is_mesh ? StageSharding{axes_at(L)} : along_one_axis({});
    lua_pop(L, 1);
    read_entries(L, at, "state", sharding->axes, is_mesh, &AxisSharding::state, cut_at);
    read_entries(L, at, "inputs", sharding->axes, is_mesh, &AxisSharding::inputs, cut_at);
    read_entries(L, at, "nodes", sharding->axes, is_mesh, &AxisSharding::nodes, rule_at);
  }
  lua_pop(L, 1);
  return sharding;
}

}  // namespace

Plan plan_at(lua_State* L, int index, int layers) {
  Plan plan;
  const auto count = [L](int at, const char* name, int otherwise) {
    const int value = field<int>(L, at, name).value_or(otherwise);
    if (value > kMostInPlan) fail_usage("{} = {} of a plan is more than {}", name, value, kMostInPlan);
    return value;
  };
  plan.shares = shares_at(L, index);
  plan.tensor = plan.shares.empty() ? count(index, "tensor", 1) : static_cast<int>(plan.shares.size());
  plan.sharding = sharding_at(L, index);
  plan.sequence = field<bool>(L, index, "sequence").value_or(false);
  plan.microbatch = count(index, "microbatch", 1);
  plan.schedule = schedule_named(field<std::string>(L, index, "schedule").value_or("1f1b"));
  plan.chunks = count(index, "chunks", 1);
  plan.warmup = count(index, "warmup", 0);
  plan.sharded_optimizer = field<bool>(L, index, "sharded_optimizer").value_or(false);
  plan.unlike_devices = field<bool>(L, index, "unlike_devices").value_or(false);
  each_in(L, index, "pipelines", [&](int, int at) {
    Pipeline& pipeline = plan.pipelines.emplace_back();
    pipeline.microbatches = count(at, "microbatches", 1);
    each_in(L, at, "stages", [&](int, int stage_at) {
      Stage& stage = pipeline.stages.emplace_back();
      stage.layers = count(stage_at, "layers", -1);
      stage.shares = shares_at(L, stage_at);
      if (const int degree = stage.shares.empty() ? count(stage_at, "tensor", 0) : 0; degree > 0)
        stage.shares.assign(static_cast<size_t>(degree), 1);
      stage.sharding = sharding_at(L, stage_at);
      stage.recompute = field<bool>(L, stage_at, "recompute").value_or(false);
      stage.optimizer_share = count(stage_at, "optimizer_share", 1);
      stage.devices = field<std::vector<std::string>>(L, stage_at, "devices").value_or(stage.devices);
    });
    int64_t left = layers;
    int open = 0;
    for (const Stage& stage : pipeline.stages) stage.layers < 0 ? ++open : left -= stage.layers;
    if (left < -kMostInPlan) fail_usage("the stages of a pipeline hold more than {} layers", kMostInPlan);
    int first = 0, share = 0;
    for (Stage& stage : pipeline.stages) {
      if (stage.layers < 0) {
        const Range range = share_of(std::max<int64_t>(left, 0), open, share++);
        stage.layers = static_cast<int>(range.end - range.begin);
      }
      stage.first_layer = first;
      first += stage.layers;
    }
  });
  return plan;
}

}  // namespace het::lua
