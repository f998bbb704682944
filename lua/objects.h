// The objects of the engine as Lua holds them, and the functions that add each family to the native table.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/corpus.h"
#include "core/data/sampler.h"
#include "core/graph/graph.h"
#include "core/io/files.h"
#include "core/io/json.h"
#include "core/io/saving.h"
#include "core/io/stored.h"
#include "core/mesh/agreement.h"
#include "core/plan/plan.h"
#include "core/program/eager.h"
#include "core/program/executor.h"
#include "core/program/state.h"
#include "core/tensor/tensor.h"
#include "lua/bind.h"
#include "lua/gpus.h"
#include "lua/recipe_files.h"

namespace het {
class Snapshot;
class FolderClaim;
class StoreClaim;    // snapshot/store_claim.h
class RunSnapshots;  // snapshot/run_snapshots.h
class SnapshotTask;
class DeviceMesh;
struct DistributedTensor;
}  // namespace het

namespace het {
class Cluster;      // core/run/cluster.h
class RunMember;    // core/run/run_member.h
class NoticeWatch;  // core/cluster/notice.h
class RunControl;   // core/run/control.h
class ControlClient;
struct Link;  // core/comm/steps.h
}  // namespace het

namespace het::lua {

struct GraphObject {
  Graph graph;
  GraphBuilder builder{graph};
  // Recipes keep values beyond the description of their layers. What was planned or lowered stays as it is:
  // another thread may read it.
  bool finished = false;
  // While het.gradient calls a function: tensors that it uses beside its arguments become inputs, kept here.
  bool captures = false;
  std::vector<std::pair<ValueId, std::shared_ptr<const DistributedTensor>>> captured;

  GraphBuilder& open();  // to add to it; an error once it is finished
};
using GraphHandle = std::shared_ptr<GraphObject>;

struct ValueHandle {
  GraphHandle owner;
  ValueId id = kAbsent;
};

using DeviceHandle = std::shared_ptr<Device>;
using StateHandle = std::shared_ptr<StateStore>;
using StateCopyHandle = std::shared_ptr<StateCopy>;
using SavingHandle = std::shared_ptr<Saving>;
using ProgramHandle = std::shared_ptr<const Program>;
using ExecutorHandle = std::shared_ptr<Executor>;
using CorpusHandle = std::shared_ptr<const Corpus>;
using SamplerHandle = std::shared_ptr<Sampler>;
struct Planning;  // planning.h
using PlanningHandle = std::shared_ptr<Planning>;
using ClusterHandle = std::shared_ptr<Cluster>;
using MemberHandle = std::shared_ptr<RunMember>;
using NoticesHandle = std::shared_ptr<NoticeWatch>;
using SnapshotHandle = std::shared_ptr<const Snapshot>;
using SnapshotsHandle = std::shared_ptr<RunSnapshots>;
using ClaimHandle = std::shared_ptr<FolderClaim>;
using StoreClaimHandle = std::shared_ptr<StoreClaim>;
using SnapshotTaskHandle = std::shared_ptr<SnapshotTask>;
using ControlHandle = std::shared_ptr<RunControl>;
using AttachedHandle = std::shared_ptr<ControlClient>;
using TokenizerHandle = std::shared_ptr<const Tokenizer>;

// What one Lua state shares between its bound functions. Lives as long as the state.
struct Host {
  DeviceHandle cpu, reference;
  Gpus gpus;
  std::map<int, DeviceHandle> opened_gpus;
  std::unique_ptr<Eager> eager;
  std::shared_ptr<const DeviceMesh>
      alone;  // of this rank only: gradients of plain tensors; made on first use
  int64_t collect_at = int64_t{256} << 20;  // live tensor bytes at which Lua is asked to collect
  uint64_t draws = 0;                       // seeds of random tensors that name none
  std::shared_ptr<Files> files;             // who opens paths; null: the process itself
  std::shared_ptr<Files> prompt_files;      // who opens paths of io.open at the prompt; null: `files`
  std::shared_ptr<RecipeAccess> access;     // the same once a stranger's recipe runs
  std::optional<std::string> secret;        // of the run, read while it could be; or why it could not
  std::exception_ptr secret_problem;
};
Host& host_of(lua_State* L);
void set_host(lua_State* L, Host* host);

// Push the method `name` of the object whose __index runs; what it lacks is an error that names the operator
// or the nearest of its methods and `fields`. `what`: "a tensor".
int method_of(lua_State* L, std::string_view what, std::string_view name, std::vector<std::string> fields);

// The JSON value at `index`: the other way.
Json json_at(lua_State* L, int index);

// Push a JSON value as Lua has it: objects and arrays as tables, null as native.null.
void push_json(lua_State* L, const Json& json);

// Call visit(i, its index on the stack) for each entry of the list under `name` of the table at `index`.
template <typename Visit>
void each_in(lua_State* L, int index, const char* name, const Visit& visit) {
  lua_getfield(L, index, name);
  if (lua_istable(L, -1)) {
    const int list = lua_gettop(L), count = static_cast<int>(lua_objlen(L, list));
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, list, i);
      visit(i - 1, lua_gettop(L));
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
}

// A plan as lua/het/plan/init.lua keeps it. Stages that do not say how many layers they hold share out what
// the others of their pipeline leave of `layers`.
Plan plan_at(lua_State* L, int index, int layers);

// Push a tensor; when dropped ones may fill memory, have Lua collect first.
int push_tensor(lua_State* L, Tensor tensor);

// Each pushes nothing and adds its functions to the table on top of the stack (and makes its classes).
void add_files(lua_State* L);
void add_graph(lua_State* L);
void add_tensor(lua_State* L);
void add_device(lua_State* L);
void add_program(lua_State* L);
void add_data(lua_State* L);
void add_system(lua_State* L);
void add_cluster(lua_State* L);
void add_planner(lua_State* L);
void add_hap(lua_State* L);
void add_assignment(lua_State* L);
void add_profile(lua_State* L);
void add_mesh(lua_State* L);
void add_snapshot(lua_State* L);
void add_recovery(lua_State* L);
void add_control(lua_State* L);

// The run's secret: read while it could be, or that of the file under `secret_file` of the table at `index`,
// of HETRUN_SECRET_FILE or HETRUN_SECRET. Throws Error(usage).
std::string secret_of(lua_State* L, int index);

// Whether this machine goes, as its cloud or a SIGTERM says. From any thread. `notices` null: only SIGTERM
// counts.
bool has_notice(const NoticesHandle& notices);

// The object under `name` of the table at `index`; null where it is nil.
template <typename Handle>
Handle object_field(lua_State* L, int index, const char* name) {
  lua_getfield(L, index, name);
  Handle found = lua_isnil(L, -1) ? Handle() : check_object<Handle>(L, lua_gettop(L));
  lua_pop(L, 1);
  return found;
}

// The list `links` of the table at `index`: a {latency, bandwidth} for each rank from and then each rank to.
std::vector<Link> links_at(lua_State* L, int index);

}  // namespace het::lua

HET_LUA_CLASS(het::lua::GraphHandle, "graph");
HET_LUA_CLASS(het::lua::ValueHandle, "value");
HET_LUA_CLASS(het::Tensor, "tensor");
HET_LUA_CLASS(het::StoredTensor, "stored tensor");
HET_LUA_CLASS(het::lua::DeviceHandle, "device");
HET_LUA_CLASS(het::lua::StateHandle, "state");
HET_LUA_CLASS(het::lua::StateCopyHandle, "copy of a state");
HET_LUA_CLASS(het::lua::SavingHandle, "saving");
HET_LUA_CLASS(het::lua::ProgramHandle, "program");
HET_LUA_CLASS(het::lua::ExecutorHandle, "executor");
HET_LUA_CLASS(het::lua::CorpusHandle, "corpus");
HET_LUA_CLASS(het::lua::SamplerHandle, "sampler");
HET_LUA_CLASS(het::lua::TokenizerHandle, "tokenizer");
HET_LUA_CLASS(het::lua::ClusterHandle, "cluster");
HET_LUA_CLASS(het::lua::MemberHandle, "member");
HET_LUA_CLASS(het::lua::NoticesHandle, "notices");
HET_LUA_CLASS(het::lua::SnapshotHandle, "snapshot");
HET_LUA_CLASS(het::lua::SnapshotsHandle, "snapshots of a run");
HET_LUA_CLASS(het::lua::ClaimHandle, "claim on a folder");
HET_LUA_CLASS(het::lua::StoreClaimHandle, "claim on a store");
HET_LUA_CLASS(het::lua::SnapshotTaskHandle, "snapshot under way");
HET_LUA_CLASS(het::lua::ControlHandle, "control of a run");
HET_LUA_CLASS(het::lua::AttachedHandle, "attached run");
HET_LUA_CLASS(het::lua::PlanningHandle, "planning");

namespace het::lua {
template <>
struct Convert<Tensor> {
  static Tensor& get(lua_State* L, int index) { return check_object<Tensor>(L, index); }
  static int push(lua_State* L, Tensor value) { return push_tensor(L, std::move(value)); }
};
template <>
struct Convert<Path> {  // a text; opened by the host's files
  static Path get(lua_State* L, int index) { return {Convert<std::string>::get(L, index), host_of(L).files}; }
};
}  // namespace het::lua
