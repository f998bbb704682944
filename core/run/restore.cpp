#include "core/run/restore.h"

#include <algorithm>
#include <set>
#include <string>

#include "core/base/error.h"

namespace het {
namespace {

std::string who(size_t rank) { return fmt::format("rank {}", rank); }

// All slices that some rank needs, each once.
std::vector<Inventory::Need> all_of(std::span<const std::vector<StatePart>> needs) {
  std::vector<Inventory::Need> all;
  for (const std::vector<StatePart>& of_rank : needs)
    for (const StatePart& part : of_rank) {
      const auto is_same = [&](const Inventory::Need& need) {
        return need.name == part.name && need.slice == part.slice;
      };
      if (std::none_of(all.begin(), all.end(), is_same)) all.push_back({part.name, part.slice});
    }
  return all;
}

}  // namespace

Restored restore(Communicator& group, StateStore& state, Executor* executor,
                 const std::vector<StatePart>& needs, const MovePlanner& plan_moves, int64_t generation) {
  const auto state_texts =
      all_gather_text(group, to_text(member_state_of(state, executor)), "what members have of the state");
  const auto need_texts = all_gather_text(group, to_text(needs), "what members need of the state");
  std::vector<MemberState> members;
  std::vector<std::vector<StatePart>> all_needs;
  for (size_t r = 0; r < state_texts.size(); ++r) {
    members.push_back(parse_member_state(state_texts[r], who(r)));
    all_needs.push_back(parse_parts(need_texts[r], who(r)));
  }
  const Settlement settled = settle(members, all_of(all_needs));
  if (!settled.missing.empty())
    fail(ErrorKind::environment, "no member of the run has {} of the state after step {}",
         show(settled.missing), settled.version.step);
  Restored restored;
  restored.version = settled.version;
  restored.finished =
      std::binary_search(settled.finish.begin(), settled.finish.end(), group.rank()) && executor != nullptr;
  if (restored.finished) {  // in the generation that decided it
    executor->finish(*settled.decision);
    HET_REQUIRE(state.version() == settled.version, state.version().step, settled.version.step);
  }
  const MigrationPlan moves = plan_moves(settled.inventory, settled.version, all_needs);
  restored.moved_bytes = moved_bytes(moves);
  migrate(group, moves, needs, state);
  state.begin_generation(generation);
  for (const StatePart& need : needs)  // none may have initial values now
    HET_REQUIRE(state.has(need.name), need.name);
  return restored;
}

std::shared_ptr<StateStore> gather_state(Communicator& group, const std::shared_ptr<StateStore>& state,
                                         const std::shared_ptr<Device>& host, const MovePlanner& plan_moves) {
  Inventory inventory;
  const auto texts = all_gather_text(group, to_text(parts_of(*state)), "the names of the state");
  std::set<std::string> whole;  // tensors that rank 0 has whole, in one piece
  for (size_t r = 0; r < texts.size(); ++r)
    for (const StatePart& part : parse_parts(texts[r], who(r))) {
      inventory.add(part.name, part.tensor, static_cast<int>(r), part.slice);
      if (r == 0 && part.slice == TensorSlice::whole(part.tensor.type.shape)) whole.insert(part.name);
    }
  std::vector<std::vector<StatePart>> needs(texts.size());
  for (const auto& [name, tensor] : inventory.tensors())
    needs[0].push_back({name, tensor, TensorSlice::whole(tensor.type.shape)});
  const bool receives = group.rank() == 0;
  if (whole.size() == inventory.tensors().size()) return receives ? state : nullptr;
  const MigrationPlan moves = plan_moves(inventory, {}, needs);
  const auto gathered = receives ? std::make_shared<StateStore>(host, 0) : nullptr;
  gather(group, moves, needs[static_cast<size_t>(group.rank())], *state, gathered.get());
  return gathered;
}

}  // namespace het
