#include "planner/migrate/recovery.h"
#include <map>
#include "core/base/error.h"
#include "core/run/settle.h"
#include "planner/migrate/migrate.h"
namespace het::planner {
RecoveryPlanner recovery_planner() {
  return [](const RecoveryRequest& request) {
    RecoveryPlan plan;
    std::vector<Inventory::Need> all;
    for (const auto& needs : request.needs) for (const auto& need : needs) all.push_back({need.name, need.slice});
    const auto version = request.inventory.newest_with(all);
    if (!version) fail(ErrorKind::environment, "no tier has all of the state");
    plan.moves.version = *version;
    plan.steps_repeated = request.newest_step - version->step;
    MigrationPlan::Round round;
    std::map<std::string, int> names;
    for (size_t rank = 0; rank < request.needs.size(); ++rank)
      for (const auto& need : request.needs[rank]) {
        names[need.name];
        for (const auto& piece : request.inventory.find(need.name, need.slice, *version)) {
          int best = piece.holders.front();
          const auto key = [&](int h) { const auto& s = request.sources[static_cast<size_t>(h)];
            return std::tuple(s.member == static_cast<int>(rank) ? (s.tier == Tier::live ? 0 : 1) : 2, s.tier, s.member); };
          for (int h : piece.holders) if (key(h) < key(best)) best = h;
          const auto& s = request.sources[static_cast<size_t>(best)];
          if (s.tier == Tier::live && s.member == static_cast<int>(rank)) continue;
          const int64_t bytes = piece.slice.elements() * bytes_of(need.tensor.type.dtype);
          plan.bytes[static_cast<size_t>(s.tier)] += bytes;
          round.moves.push_back({need.name, piece.slice, s.member, static_cast<int>(rank), bytes, s.tier});
        }
      }
    for (auto& [name, n] : names) round.tensors.push_back(name);
    plan.moves.rounds.push_back(round);
    return plan;
  };
}
}
