#include "planner/migrate/recovery.h"

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/run/settle.h"
#include "planner/migrate/migrate.h"
#include "planner/migrate/sourced_moves.h"

namespace het::planner {
namespace {

constexpr double kTie = 1e-9;  // of a cost
constexpr std::array kTiers{Tier::live, Tier::memory, Tier::disk, Tier::store};

std::string_view words(Tier tier) {
  switch (tier) {
    case Tier::live: return "live state";
    case Tier::memory: return "memory";
    case Tier::disk: return "disk";
    case Tier::store: return "the store";
  }
  return "";
}

std::string words(Version version) {
  return fmt::format("step {} (generation {})", version.step, version.generation);
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// "live state of 3 ranks, memory of 2 ranks; no disk, no store"
std::string looked_at(std::span<const StateSource> sources) {
  std::string there, absent;
  for (const Tier tier : kTiers) {
    const auto count = std::count_if(sources.begin(), sources.end(),
                                     [&](const StateSource& source) { return source.tier == tier; });
    if (count == 0)
      absent +=
          fmt::format("{}no {}", absent.empty() ? "" : ", ", tier == Tier::store ? "store" : words(tier));
    else
      there += fmt::format("{}{} of {}", there.empty() ? "" : ", ", words(tier), counted(count, "rank"));
  }
  return there.empty() || absent.empty() ? there + absent : there + "; " + absent;
}

class Recovery {
 public:
  Recovery(std::span<const StateSource> sources, const Inventory& inventory,
           std::span<const std::vector<StatePart>> needs, const RecoveryOptions& options)
      : sources_(sources),
        inventory_(inventory),
        needs_(needs),
        options_(options),
        table_(sources, needs.size(), options.host_of) {}

  RecoveryPlan plan() {
    for (const Version& version : inventory_.versions()) consider(version);
    if (!chosen_) refuse();
    explain();
    return std::move(plan_);
  }

 private:
  void consider(Version version) {
    RecoveryPlan::Candidate candidate{version, {}, 0, {}};
    candidate.steps_repeated = std::max<int64_t>(0, options_.newest_step - version.step);
    const double repeating = static_cast<double>(candidate.steps_repeated) * options_.step_seconds;
    const double least = cost_ * (1 - kTie);
    if (!chosen_ || (options_.step_seconds > 0 && repeating < least)) {
      SourcedVersion needed = sourced_version(table_, inventory_, version, needs_, options_.store_may_help);
      if (!needed.missing.empty()) {
        if (nearest_bytes_ < 0 || needed.missing_bytes < nearest_bytes_) {
          nearest_ = plan_.candidates.size();
          nearest_bytes_ = needed.missing_bytes;
        }
        candidate.missing = std::move(needed.missing);
      } else {
        SourcedMoves moves = choose_sources(table_, needed, options_);
        candidate.seconds = moves.seconds;
        if (!chosen_ || moves.seconds + repeating < least) {
          chosen_ = plan_.candidates.size();
          cost_ = moves.seconds + repeating;
          changed_ = std::move(needed.changed);
          moves_ = std::move(moves);
        }
      }
    }
    plan_.candidates.push_back(std::move(candidate));
  }

  [[noreturn]] void refuse() const {
    if (plan_.candidates.empty())
      fail_environment("nothing has any of the run's state; read from: {}", looked_at(sources_));
    const RecoveryPlan::Candidate& nearest = plan_.candidates[nearest_];
    std::string others;
    constexpr size_t kNamed = 4;
    for (size_t c = 0, named = 0; c < plan_.candidates.size() && named < kNamed; ++c)
      if (c != nearest_) {
        const RecoveryPlan::Candidate& other = plan_.candidates[c];
        others += fmt::format("; {} lacks {}", words(other.version), show(other.missing));
        ++named;
      }
    fail_environment("nothing has all of the run's state; {} is nearest, and lacks {} ({}); read from: {}{}",
                     words(nearest.version), show(nearest.missing),
                     show_bytes(static_cast<double>(nearest_bytes_)), looked_at(sources_), others);
  }

  void explain() {
    const RecoveryPlan::Candidate& chosen = plan_.candidates[*chosen_];
    plan_.seconds = moves_.seconds;
    plan_.bound_seconds = moves_.bound_seconds;
    plan_.steps_repeated = chosen.steps_repeated;
    plan_.moves.version = chosen.version;
    plan_.moves.rounds = in_rounds(changed_, std::move(moves_.moves), needs_.size(), options_.round_bytes);
    for (const MigrationPlan::Round& round : plan_.moves.rounds)
      for (const SliceMove& move : round.moves) plan_.bytes[move.tier] += move.bytes;

    int64_t all = 0;
    for (const auto& [tier, bytes] : plan_.bytes) all += bytes;
    plan_.why.push_back(fmt::format("{} is restored: {} to move in {}, {}", words(chosen.version),
                                    show_bytes(static_cast<double>(all)), show_seconds(plan_.seconds),
                                    repeat_words(chosen)));
    for (const auto& [tier, bytes] : plan_.bytes)
      plan_.why.push_back(
          fmt::format("{} from {}{}", show_bytes(static_cast<double>(bytes)), words(tier),
                      tier == Tier::store && !options_.store_may_help ? ": nothing nearer has them" : ""));
    if (!moves_.busiest.empty()) plan_.why.push_back(moves_.busiest + " takes longest");
    for (size_t c = 0; c < plan_.candidates.size(); ++c)
      if (c != *chosen_) plan_.why.push_back(why_not(plan_.candidates[c]));
  }

  std::string repeat_words(const RecoveryPlan::Candidate& candidate) const {
    if (candidate.steps_repeated == 0) return "no step to repeat";
    const std::string steps = counted(candidate.steps_repeated, "step") + " to repeat";
    if (options_.step_seconds <= 0) return steps;
    return fmt::format("{} in {}", steps,
                       show_seconds(static_cast<double>(candidate.steps_repeated) * options_.step_seconds));
  }

  std::string why_not(const RecoveryPlan::Candidate& candidate) const {
    const std::string version = words(candidate.version);
    if (!candidate.missing.empty())
      return fmt::format("{} is not whole: nothing has {}", version, show(candidate.missing));
    if (candidate.seconds)
      return fmt::format("{} takes longer: {} to move, {}", version, show_seconds(*candidate.seconds),
                         repeat_words(candidate));
    if (options_.step_seconds <= 0) return fmt::format("{} is older", version);
    return fmt::format("{} takes longer: {}", version, repeat_words(candidate));
  }

  const std::span<const StateSource> sources_;
  const Inventory& inventory_;
  const std::span<const std::vector<StatePart>> needs_;
  const RecoveryOptions& options_;
  const SourceTable table_;
  RecoveryPlan plan_;
  std::optional<size_t> chosen_;  // of the candidates
  double cost_ = 0;               // seconds to move and to repeat
  std::vector<ChangedTensor> changed_;
  SourcedMoves moves_;
  size_t nearest_ = 0;  // of the candidates that lack something, which lacks least
  int64_t nearest_bytes_ = -1;
};

}  // namespace

RecoveryPlan plan_recovery(std::span<const StateSource> sources, const Inventory& inventory,
                           std::span<const std::vector<StatePart>> needs, const RecoveryOptions& options) {
  return Recovery(sources, inventory, needs, options).plan();
}

RecoveryPlanner recovery_planner(RecoveryOptions options) {
  return [options = std::move(options)](const RecoveryRequest& request) {
    RecoveryOptions own = options;
    own.newest_step = request.newest_step;
    own.step_seconds = request.step_seconds;
    own.host_of = request.links.host_of;
    if (!own.bytes_per_second)
      own.bytes_per_second = [&](int from, int to) { return link_rate(request.links, from, to); };
    return plan_recovery(request.sources, request.inventory, request.needs, own);
  };
}

}  // namespace het::planner
