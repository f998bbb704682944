#include "planner/request.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/cluster/type_sources.h"
#include "planner/infinity.h"
#include "planner/migrate/model_state.h"
#include "planner/milp.h"

namespace het::planner {
namespace {

// After a preemption: detect it, plan again, fetch state, repeat the step.
constexpr double kRecoverySeconds = 120;
// A linear program's minimum may be too high by the solver's tolerance; a bound must not be.
constexpr double kSolved = 1 - 1e-7;

std::vector<int> divisors_of(int number) {
  std::vector<int> low, high;
  for (int d = 1; d <= number / d; ++d) {
    if (number % d != 0) continue;
    low.push_back(d);
    if (d != number / d) high.push_back(number / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

}  // namespace

std::string_view name_of(Objective objective) {
  switch (objective) {
    case Objective::time: return "time";
    case Objective::cost: return "cost";
    case Objective::progress: return "progress";
  }
  return "unknown";
}

std::vector<int> tensor_degrees(const Request& request) {
  if (!request.tensors.empty()) return request.tensors;
  int most = 1;
  for (const Machine& node : request.cluster.nodes) most = std::max(most, node.devices);
  std::vector<int> degrees;
  for (int k = 1; k <= std::min(most, 8); k *= 2)
    if (request.model.heads % k == 0 && request.model.kv_heads % k == 0) degrees.push_back(k);
  return degrees;
}

std::vector<int> microbatch_sizes(const Request& request) {
  if (!request.microbatches.empty()) return request.microbatches;
  constexpr unsigned kSmall = 16, kPower = 64;
  const auto& points = request.profile.points;
  std::vector<int> sizes = divisors_of(request.batch);
  std::erase_if(sizes, [&](int size) {
    const auto samples = static_cast<unsigned>(size);
    const bool measured = std::any_of(points.begin(), points.end(),
                                      [&](const ProfilePoint& point) { return point.microbatch == size; });
    return samples > kSmall && !(std::has_single_bit(samples) && samples <= kPower) &&
           request.batch / size > total_devices(request.cluster) && !measured;
  });
  return sizes;
}

std::optional<std::string> price_problem(const Cluster& cluster, Objective objective) {
  if (objective != Objective::cost) return std::nullopt;
  std::vector<std::string> unpriced;
  for (const Machine& node : cluster.nodes)
    if (!(node.price_per_hour > 0) && !node.hosts.empty()) unpriced.push_back(node.hosts[0]);
  if (unpriced.empty()) return std::nullopt;
  return fmt::format(
      "the objective is cost, and {}; give `price =` (of one machine for an hour) to every node, a small "
      "one where it costs nothing",
      unpriced.size() == cluster.nodes.size()
          ? "no node has a price"
          : fmt::format("beside nodes with a price these have none: {}", fmt::join(unpriced, ", ")));
}

namespace {

ModelState state_of(const Request& request) {
  return request.state ? *request.state : state_of(request.model);
}

// Why it is not known what the devices of a valid old plan hold; empty: it is.
std::vector<std::string> state_problems(const Request& request, const Plan& old) {
  const ModelState state = state_of(request);
  std::vector<std::string> problems;
  std::set<StageCut> seen;
  for (const Pipeline& pipeline : old.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const StageCut cut = cut_of(old, stage);
      if (!seen.insert(cut).second) continue;
      try {
        state.slices(stage.first_layer, cut);
      } catch (const Error& error) {
        problems.push_back(fmt::format("the old plan: {}", error.what()));
      }
    }
  return problems;
}

}  // namespace

std::vector<std::string> validate(const Request& request) {
  std::vector<std::string> problems = validate(request.cluster);
  for (std::string& problem : validate(request.model)) problems.push_back(std::move(problem));
  if (!request.profile.points.empty())
    for (std::string& problem : validate(request.profile, request.model))
      problems.push_back(std::move(problem));
  if (request.batch < 1) problems.push_back(fmt::format("batch = {}; it is at least 1", request.batch));
  for (const int b : request.microbatches)
    if (b < 1 || (request.batch > 0 && request.batch % b != 0)) {
      std::vector<int> divisors = divisors_of(request.batch);
      std::erase_if(divisors, [](int divisor) { return divisor > 64; });
      problems.push_back(fmt::format("a micro-batch of {} does not divide the batch of {}; these do: {}", b,
                                     request.batch, fmt::join(divisors, ", ")));
    }
  if (auto problem = price_problem(request.cluster, request.objective))
    problems.push_back(std::move(*problem));
  if (!(request.near >= 0 && request.near <= 1))
    problems.push_back(
        fmt::format("near = {}; it must be a share of the step time between 0 and 1", request.near));
  if (request.old) {
    int64_t samples = 0;
    for (const Pipeline& pipeline : request.old->pipelines)
      samples += static_cast<int64_t>(pipeline.microbatches) * request.old->microbatch;
    const auto batch = static_cast<int>(std::min<int64_t>(samples, std::numeric_limits<int>::max()));
    for (const std::string& problem : validate(*request.old, {request.model.count(), batch}))
      problems.push_back("the old plan: " + problem);
    if (problems.empty()) problems = state_problems(request, *request.old);
  }
  int most = 0;
  for (const Machine& node : request.cluster.nodes) most = std::max(most, node.devices);
  for (const int k : request.tensors) {
    std::vector<int> good;
    for (int d = 1; d <= std::min(request.model.kv_heads, std::max(most, 1)); ++d)
      if (request.model.heads % d == 0 && request.model.kv_heads % d == 0) good.push_back(d);
    if (std::find(good.begin(), good.end(), k) == good.end())
      problems.push_back(
          fmt::format("tensor = {} does not divide {} heads and {} key-value heads, or no node has as many "
                      "devices; these work: {}",
                      k, request.model.heads, request.model.kv_heads, fmt::join(good, ", ")));
  }
  return problems;
}

std::vector<std::string> notes_of(const Request& request) {
  std::vector<std::string> notes;
  const auto& nodes = request.cluster.nodes;
  if (request.objective == Objective::progress &&
      std::none_of(nodes.begin(), nodes.end(),
                   [](const Machine& node) { return node.preemptions_per_hour > 0; }))
    notes.emplace_back(
        "the objective is progress, and no node has a rate of preemptions: so it is the same as time; give "
        "`preemptions =` (of one machine in an hour) to the nodes");
  std::set<std::string> remarked;
  for (size_t n = 0; n < nodes.size(); ++n)
    if (const std::string_view remark = source_of(nodes[n].type).remark;
        !remark.empty() && remarked.insert(nodes[n].type).second)
      notes.push_back(fmt::format("{} is {}", nodes[n].type, remark));
  std::set<std::string> without;
  for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
    const DeviceType& type = type_of(request.cluster, n);
    const Precision precision = request.model.precision;
    if (precision == Precision::f32 || type.flops(precision) > 0 || !without.insert(type.name).second)
      continue;
    const Precision other = precision == Precision::bf16 ? Precision::f16 : Precision::bf16;
    notes.push_back(fmt::format(
        "{} has no units for {}: its layers that were not measured count at the rate of f32, {}{}", type.name,
        name_of(precision), show_rate(type.f32_flops),
        type.flops(other) > type.f32_flops
            ? fmt::format("; with precision = \"{}\" it has {}", name_of(other), show_rate(type.flops(other)))
            : ""));
  }
  return notes;
}

Evaluator::Evaluator(const Request& request) : request_(request) {
  best_.score = kInfinity;
  nearest_.score = kInfinity;
  nearest_.simulation.over_bytes = kInfinity;
  if (request.old)
    migration_ = std::make_unique<StateMigration>(*request.old, request.cluster, state_of(request));
}

Evaluator::Entry& Evaluator::entry(int tensor, int microbatch) {
  std::unique_ptr<Entry>& entry = entries_[{tensor, microbatch}];
  if (!entry) {
    entry = std::make_unique<Entry>();
    entry->costs = make_costs(request_.cluster, request_.model, request_.profile, tensor, microbatch);
    entry->simulator = std::make_unique<Simulator>(
        entry->costs, request_.cluster,
        CostProvider{[this, microbatch](int degree) -> const CostTable& { return costs(degree, microbatch); },
                     [this, microbatch](int degree) -> const CostTable& {
                       return compute_costs(degree, microbatch);
                     }});
  }
  return *entry;
}

const CostTable& Evaluator::costs(int tensor, int microbatch) { return entry(tensor, microbatch).costs; }

const CostTable& Evaluator::compute_costs(int tensor, int microbatch) {
  const auto known = compute_.find({tensor, microbatch});
  if (known != compute_.end()) return known->second;
  return compute_
      .emplace(std::pair(tensor, microbatch),
               make_compute_costs(request_.cluster, request_.model, request_.profile, tensor, microbatch))
      .first->second;
}

bool goes_on(const Request& request) { return !request.goes_on || request.goes_on(); }

size_t Evaluator::HashOfLayout::operator()(const PlanLayout& layout) const {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, a word at a time
  const auto add = [&](int word) { hash = (hash ^ static_cast<uint32_t>(word)) * 1099511628211u; };
  for (const int word : {layout.tensor, layout.microbatch, static_cast<int>(layout.schedule), layout.chunks,
                         layout.warmup, static_cast<int>(layout.sharded_optimizer)})
    add(word);
  for (const PipelineLayout& pipeline : layout.pipelines) {
    add(pipeline.microbatches);
    for (const StageLayout& stage : pipeline.stages)
      for (const int word :
           {stage.node, stage.host, stage.layers, static_cast<int>(stage.recompute), stage.share})
        add(word);
  }
  return static_cast<size_t>(hash ^ hash >> 32);
}

Simulation Evaluator::simulation_of(const PlanLayout& layout, bool contention) {
  constexpr size_t kMostWords = 400'000;  // some 40 MiB: a layout takes as much as four of its stages
  auto& known = known_[contention];
  if (const auto found = known.find(layout); found != known.end()) return found->second;
  SimulateOptions options;
  options.contention = contention;
  Simulation simulation = entry(layout.tensor, layout.microbatch).simulator->run(layout, options);
  known_words_ += 4;
  for (const PipelineLayout& pipeline : layout.pipelines) known_words_ += pipeline.stages.size();
  if (known_words_ > kMostWords) {
    for (auto& each : known_) each.clear();
    known_words_ = 0;
  }
  known.emplace(layout, simulation);
  return simulation;
}

Candidate Evaluator::run(PlanLayout layout, std::string_view origin, bool contention) {
  if (!goes_on(request_)) fail(ErrorKind::environment, "the search for a plan was given up");
  Candidate candidate;
  candidate.simulation = simulation_of(layout, contention);
  candidate.layout = std::move(layout);
  candidate.origin = origin;
  candidate.score = candidate.simulation.fits
                        ? score_of(request_, candidate.layout, candidate.simulation.seconds)
                        : kInfinity;
  return candidate;
}

void Evaluator::remember(const Candidate& candidate) {
  const auto far = [&](double score) { return score > near_.front().candidate.score * (1 + request_.near); };
  if (!near_.empty() && far(candidate.score)) return;
  Near entry{candidate, 0};
  entry.candidate.layout = migration_->ordered(candidate.layout);
  entry.bytes = migration_->bytes(entry.candidate.layout);
  const auto beats = [](const Near& a, const Near& b) {
    return a.candidate.score <= b.candidate.score && a.bytes <= b.bytes;
  };
  for (const Near& known : near_)
    if (beats(known, entry)) return;
  std::erase_if(near_, [&](const Near& known) { return beats(entry, known); });
  near_.insert(
      std::upper_bound(near_.begin(), near_.end(), entry,
                       [](const Near& a, const Near& b) { return a.candidate.score < b.candidate.score; }),
      std::move(entry));
  while (far(near_.back().candidate.score)) near_.pop_back();
}

Candidate Evaluator::simulate(PlanLayout layout, std::string_view origin) {
  ++simulations_;
  Candidate candidate = run(std::move(layout), origin, true);
  if (migration_ && candidate.feasible()) remember(candidate);
  return candidate;
}

Candidate Evaluator::estimate(PlanLayout layout, std::string_view origin) {
  return run(std::move(layout), origin, false);
}

Simulation Evaluator::details(const PlanLayout& layout) {
  SimulateOptions options;
  options.details = true;
  return entry(layout.tensor, layout.microbatch).simulator->run(layout, options);
}

// Layers of its stages' device types whose times were measured at its degree and size, as a share of all.
double Evaluator::measured_share(const PlanLayout& layout) {
  const CostTable& table = costs(layout.tensor, layout.microbatch);
  double measured = 0, stages = 0;
  for (const PipelineLayout& pipeline : layout.pipelines)
    for (const StageLayout& stage : pipeline.stages) {
      measured += table.nodes[static_cast<size_t>(stage.node)].measured;
      ++stages;
    }
  return measured / stages;
}

bool Evaluator::wins(const Candidate& a, const Candidate& b) {
  constexpr double kAlike = 1e-9;  // rounding
  const auto order = [](double x, double y) { return x < y * (1 - kAlike) ? -1 : x > y * (1 + kAlike); };
  if (const int score = order(a.score, b.score)) return score < 0;
  if (const int seconds = order(a.simulation.seconds, b.simulation.seconds)) return seconds < 0;
  if (const int share = order(measured_share(b.layout), measured_share(a.layout))) return share < 0;
  return a.score < b.score;
}

bool Evaluator::submit(Candidate candidate) {
  if (!candidate.simulation.fits) {
    if (candidate.simulation.over_bytes < nearest_.simulation.over_bytes) nearest_ = std::move(candidate);
    return false;
  }
  const int pipelines = std::bit_width(candidate.layout.pipelines.size());
  Candidate& alike =
      bests_[{candidate.layout.tensor, candidate.layout.microbatch, pipelines, candidate.layout.chunks > 1}];
  if (alike.layout.pipelines.empty() || wins(candidate, alike)) alike = candidate;
  if (best_.feasible() && !wins(candidate, best_)) return false;
  best_ = std::move(candidate);
  return true;
}

std::vector<Candidate> Evaluator::bests() const {
  std::vector<Candidate> found;
  for (const auto& [key, best] : bests_) found.push_back(best);
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
  return found;
}

UsedHosts used_hosts(const Cluster& cluster, const PlanLayout& layout) {
  UsedHosts used;
  for (const PipelineLayout& pipeline : layout.pipelines)
    for (const StageLayout& stage : pipeline.stages) {
      used.hosts.insert({stage.node, stage.host});
      if (stage.group < 0) continue;
      const auto& places = layout.groups[static_cast<size_t>(stage.group)].places;
      used.hosts.insert(places.begin(), places.end());
    }
  for (const DevicePlace& place : used.hosts) {
    const Machine& node = cluster.nodes[static_cast<size_t>(place.node)];
    used.price_per_hour += node.price_per_hour;
    used.preemptions_per_hour += node.preemptions_per_hour;
  }
  return used;
}

double useful_share(double preemptions_per_hour) {
  return std::max(0.0, 1 - preemptions_per_hour * kRecoverySeconds / 3600);
}

double score_of(const Request& request, const PlanLayout& layout, double seconds) {
  if (request.objective == Objective::time) return seconds;
  const UsedHosts used = used_hosts(request.cluster, layout);
  if (request.objective == Objective::cost) return seconds * used.price_per_hour / 3600;
  const double useful = useful_share(used.preemptions_per_hour);
  return useful > 0.01 ? seconds / useful : seconds * 100;
}

namespace {

using Sizes = std::vector<std::pair<int, int>>;  // degrees, each with a micro-batch size

// `any_shares`: also of plans whose stages have shares and degrees of their own, of these sizes' degrees. A
// device with the share x then takes at least x of what it takes with all of a layer, or with an even part;
// and one device of n has at least an n-th. Collectives do not count.
double bound_of(const Request& request, Evaluator& evaluator, const Sizes& sizes, bool any_shares = false) {
  const size_t kinds = request.model.kinds.size(), nodes = request.cluster.nodes.size();
  std::vector<double> count(kinds, 0);
  for (const int kind : request.model.layers) count[static_cast<size_t>(kind)] += 1;
  // Device-seconds of one sample in one layer of a kind.
  std::vector<double> least(kinds * nodes, kInfinity);
  double latency = kInfinity;
  for (const auto& [k, b] : sizes) {
    const CostTable& costs = any_shares ? evaluator.compute_costs(k, b) : evaluator.costs(k, b);
    double through = 0;
    std::vector<double> fastest(kinds, kInfinity);
    for (size_t node = 0; node < nodes; ++node) {
      if (costs.nodes[node].groups == 0 && !any_shares) continue;
      for (int layer = 0; layer < costs.layers; ++layer) {
        const auto kind = static_cast<size_t>(request.model.layers[static_cast<size_t>(layer)]);
        const int n = static_cast<int>(node);
        const double seconds =
            costs.forward_seconds(n, layer, layer + 1) + costs.backward_seconds(n, layer, layer + 1, false);
        least[kind * nodes + node] = std::min(least[kind * nodes + node], seconds * k / b);
        // No operation waits for gradients of weights: several devices compute those of one micro-batch
        // together.
        fastest[kind] = std::min(fastest[kind], costs.forward_seconds(n, layer, layer + 1) +
                                                    costs.input_seconds(n, layer, layer + 1));
      }
    }
    for (size_t kind = 0; kind < kinds; ++kind)
      if (count[kind] > 0) through += count[kind] * fastest[kind];
    latency = std::min(latency, through);
  }
  // In units of the longest entry: the solver's tolerances are absolute, and small models take microseconds.
  double unit = 0;
  for (size_t kind = 0; kind < kinds; ++kind)
    for (size_t node = 0; node < nodes; ++node)
      if (const double seconds = least[kind * nodes + node]; seconds != kInfinity)
        unit = std::max(unit, seconds * count[kind] * request.batch);
  LinearProgram program;  // minimise T; samples of each kind on each node; no node busier than T
  const int time = program.add(Variable{0, kNoBound, 1});
  std::vector<Row> busy(nodes);
  for (size_t kind = 0; kind < kinds; ++kind) {
    Row all;
    all.lower = all.upper = 1;
    for (size_t node = 0; node < nodes; ++node) {
      const double seconds = least[kind * nodes + node];
      if (seconds == kInfinity) continue;
      const int share = program.add(Variable{0, 1, 0});
      all.terms.emplace_back(share, 1);
      busy[node].terms.emplace_back(share, seconds * count[kind] * request.batch / unit);
    }
    if (count[kind] > 0) program.add(std::move(all));
  }
  for (size_t node = 0; node < nodes; ++node) {
    const Machine& of = request.cluster.nodes[node];
    busy[node].terms.emplace_back(time,
                                  -static_cast<double>(of.devices) * static_cast<double>(of.hosts.size()));
    busy[node].upper = 0;
    program.add(std::move(busy[node]));
  }
  const LinearSolution solution = solve(program);
  return kSolved *
         std::max(solution.feasible ? solution.objective * unit : 0, latency == kInfinity ? 0 : latency);
}

}  // namespace

double lower_bound_seconds(const Request& request, Evaluator& evaluator, const PlanLayout* given) {
  const bool any_shares = given != nullptr && !given->groups.empty();
  std::vector<int> degrees = tensor_degrees(request);
  if (given != nullptr) {
    const std::vector<int> own = degrees_of(*given);
    degrees.insert(degrees.end(), own.begin(), own.end());
    if (any_shares) degrees.push_back(1);
    std::sort(degrees.begin(), degrees.end());
    degrees.erase(std::unique(degrees.begin(), degrees.end()), degrees.end());
  }
  Sizes sizes;
  for (const int tensor : degrees)
    for (const int microbatch :
         request.microbatches.empty() ? divisors_of(request.batch) : request.microbatches)
      sizes.emplace_back(tensor, microbatch);
  return bound_of(request, evaluator, sizes, any_shares);
}

double Evaluator::least_seconds(int tensor, int microbatch) {
  std::optional<double>& known = entry(tensor, microbatch).least_seconds;
  if (!known) known = bound_of(request_, *this, {{tensor, microbatch}});
  return *known;
}

bool Evaluator::can_prune(int tensor, int microbatch) {
  if (request_.objective == Objective::cost || !best_.feasible()) return false;
  return least_seconds(tensor, microbatch) >= best_.score * (request_.old ? 1 + request_.near : 1);
}

}  // namespace het::planner
