#include "planner/hap/report.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "planner/hap/fitting.h"
#include "planner/hap/forms.h"
#include "planner/hap/grids.h"
#include "planner/simulate/programs.h"

namespace het::planner::hap {
namespace {

std::string show(const PlacementTable& table, ValueId id, PlacementId lies) {
  const Placement& placement = table.placements(id)[lies];
  if (placement.is_replicated()) return "whole";
  if (placement.is_partial()) return "partial";
  std::string text = fmt::format("dim {}", placement.dim);
  if (placement.segments.size() > 1) text += fmt::format(" in {} segments", placement.segments.size());
  return text;
}

class Lister {
 public:
  Lister(const Request& request, const ShardingProgram& program, int axis = 0)
      : table_(*request.table),
        graph_(request.table->graph()),
        group_(*request.group),
        program_(program),
        axis_(axis),
        costs_(*request.table, *request.group, request.microbatches),
        node_names_(node_names(graph_)) {
    costs_.set_outer(request.outer);
  }

  std::vector<Instruction> run() {
    std::map<ValueId, std::vector<const Conversion*>> of_value;
    for (const Conversion& conversion : program_.conversions)
      of_value[conversion.value].push_back(&conversion);
    const std::vector<std::string>& names = node_names_;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) all_[{pattern_of(names[n], ". "), false}][n] = names[n];
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      std::string name = name_of_value(static_cast<ValueId>(i));
      all_[{pattern_of(name, ". "), true}].emplace(i, std::move(name));
    }
    std::set<ValueId> copied;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (const ValueId gradient = copied_gradient(static_cast<NodeId>(n)); gradient != kAbsent)
        copied.insert(gradient);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const auto id = static_cast<NodeId>(n);
      for (const ValueId input : node.inputs)
        if (input != kAbsent && is_state(graph_.values[static_cast<size_t>(input)]))
          add_exchanges(of_value, input);
      if (!node.op->any_placement && !node.op->collective) {
        const int way = costs_.way_number(id, program_.nodes[n]);
        Instruction instruction;
        instruction.name = names[n];
        instruction.rule = describe(table_, id, program_.nodes[n]);
        instruction.phase = node.phase;
        instruction.count = 1;
        const ValueId gradient = copied_gradient(id);
        const Ticks copies = gradient == kAbsent ? 0 : costs_.copying(gradient);
        instruction.seconds = seconds_of(costs_.node(id, way, program_.shares) - copies);
        add(std::move(instruction), n);
      }
      for (const ValueId output : node.outputs) {
        if (output == kAbsent) continue;
        const bool is_copied = copied.count(output) != 0;
        const bool is_summed = program_.values[static_cast<size_t>(output)] != kReplicated;
        add_exchanges(of_value, output, is_copied && is_summed ? costs_.copying(output) : 0);
        if (is_copied && !is_summed) add_copying(output);
      }
    }
    for (size_t i = 0; i < list_.size(); ++i) list_[i].name = name_of_all(list_[i], names_[i]);
    return std::move(list_);
  }

 private:
  ValueId copied_gradient(NodeId n) const {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    if (node.op->any_placement || node.op->collective) return kAbsent;
    return costs_.copied_gradient(n, costs_.way_number(n, program_.nodes[static_cast<size_t>(n)]));
  }

  // Of a gradient that unlike devices compute whole.
  void add_copying(ValueId id) {
    Instruction instruction;
    instruction.name = name_of_value(id);
    instruction.rule = "all_gather: a part from each -> whole";
    instruction.phase = Phase::update;
    instruction.count = 1;
    instruction.bytes = static_cast<double>(graph_.type(id).bytes());
    instruction.seconds = seconds_of(costs_.copying(id));
    instruction.is_exchange = true;
    add(std::move(instruction), static_cast<size_t>(id));
  }

  std::string name_of_value(ValueId id) const {
    const Value& value = graph_.values[static_cast<size_t>(id)];
    if (!value.name.empty() || value.producer < 0) return value.name;
    return node_names_[static_cast<size_t>(value.producer)] +
           (value.output == 0 ? "'s result" : fmt::format("'s result {}", value.output + 1));
  }

  using Named = std::map<size_t, std::string>;  // nodes or values, with their names

  // `which`: the node, or the value that is exchanged.
  void add(Instruction instruction, size_t which) {
    instruction.axis = axis_;
    const auto key = std::tuple(pattern_of(instruction.name, ". "), instruction.rule, instruction.phase,
                                instruction.is_exchange);
    const auto [known, fresh] = places_.emplace(key, list_.size());
    if (fresh) names_.emplace_back();
    names_[known->second].emplace(which, instruction.name);
    if (fresh) {
      list_.push_back(std::move(instruction));
      return;
    }
    list_[known->second].count += instruction.count;
    list_[known->second].bytes += instruction.bytes;
    list_[known->second].seconds += instruction.seconds;
  }

  // "blocks.*.mlp.up linear" where these are all of that kind, else "blocks.0-3,7.mlp.up linear".
  std::string name_of_all(const Instruction& instruction, const Named& these) const {
    const std::string pattern = pattern_of(instruction.name, ". ");
    const Named& all = all_.at({pattern, instruction.is_exchange});
    const size_t star = pattern.find('*');
    if (star == std::string::npos || these.size() == all.size()) return pattern;
    const std::set<int64_t> layers = numbers_at(star, these);
    if (layers == numbers_at(star, all)) return pattern;
    return pattern.substr(0, star) + show_ranges(layers) + pattern.substr(star + 1);
  }

  static std::set<int64_t> numbers_at(size_t place, const Named& named) {
    std::set<int64_t> numbers;
    for (const auto& [which, name] : named) numbers.insert(std::strtoll(name.c_str() + place, nullptr, 10));
    return numbers;
  }

  static std::string show_ranges(const std::set<int64_t>& numbers) {
    std::string text;
    for (auto it = numbers.begin(); it != numbers.end();) {
      const int64_t first = *it;
      int64_t last = first;
      while (++it != numbers.end() && *it == last + 1) ++last;
      if (!text.empty()) text += ',';
      text += first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
    }
    return text;
  }

  // `copies`: what the update counts of the first.
  void add_exchanges(std::map<ValueId, std::vector<const Conversion*>>& of_value, ValueId id,
                     Ticks copies = 0) {
    const auto found = of_value.find(id);
    if (found == of_value.end()) return;
    const PlacementId from = program_.values[static_cast<size_t>(id)];
    const Value& value = graph_.values[static_cast<size_t>(id)];
    Needs needs{};
    Ticks paid = 0;
    std::sort(found->second.begin(), found->second.end(),
              [](const Conversion* a, const Conversion* b) { return a->phase < b->phase; });
    for (const Conversion* conversion : found->second) {
      needs[static_cast<size_t>(conversion->phase)] |= form(conversion->to);
      const Ticks all = ValueCosts(costs_, program_.shares, id).cost(from, needs);
      Instruction instruction;
      instruction.name = name_of_value(id);
      instruction.rule = fmt::format("{}: {} -> {}", collective(id, from, conversion->to),
                                     show(table_, id, from), show(table_, id, conversion->to));
      instruction.phase = conversion->phase;
      instruction.count = 1;
      instruction.bytes =
          from == kReplicated || value.role == Role::input ? 0 : static_cast<double>(value.type.bytes());
      instruction.seconds = value.role == Role::input ? 0 : seconds_of(all - paid + copies);
      copies = 0;
      instruction.is_exchange = true;
      paid = all;
      add(std::move(instruction), static_cast<size_t>(id));
    }
    of_value.erase(found);
  }

  std::string collective(ValueId id, PlacementId from, PlacementId to) const {
    if (from == kReplicated || graph_.values[static_cast<size_t>(id)].role == Role::input) return "slice";
    if (from == kPartial) return to == kReplicated ? "all_reduce" : "reduce_scatter";
    const auto& placements = table_.placements(id);
    if (to != kReplicated && placements[from].dim != placements[to].dim) return "all_to_all";
    std::vector<double> counts;
    AxisCuts cuts(program_.shares);
    for (int part = 0; part < group_.size(); ++part)
      counts.push_back(static_cast<double>(table_.slice(id, from, cuts, part).elements() *
                                           bytes_of(graph_.type(id).dtype)));
    return group_.gather_of(counts) == Gather::padded ? "all_gather (padded)"
                                                      : "all_gather (grouped broadcast)";
  }

  const PlacementTable& table_;
  const Graph& graph_;
  const DeviceGroup& group_;
  const ShardingProgram& program_;
  const int axis_;
  ShardingCosts costs_;
  const std::vector<std::string> node_names_;
  std::vector<Instruction> list_;
  std::vector<Named> names_;                           // of each of the list
  std::map<std::pair<std::string, bool>, Named> all_;  // by pattern: nodes, or (true) values
  std::map<std::tuple<std::string, std::string, Phase, bool>, size_t> places_;
};

std::string too_large(const ProgramsTime& time, const DeviceGroup& group) {
  size_t most = 0;
  const auto lacks = [&](size_t d) { return time.ranks[d].memory_bytes - time.ranks[d].limit_bytes; };
  for (size_t d = 0; d < time.ranks.size(); ++d)
    if (lacks(d) > lacks(most)) most = d;
  return fmt::format("the fastest program, {} a step, lacks {} on {}", show_seconds(time.seconds),
                     show_bytes(lacks(most)), group.devices()[most].name);
}

// The best of the cheapest few programs along two axes, as they are run; nullopt: there is none.
struct SimulatedGrid {
  GridProgram program;
  ProgramsTime time;
};
std::optional<SimulatedGrid> best_grid(const Request& request, std::vector<GridProgram> programs) {
  constexpr size_t kMostSimulated = 4;
  std::optional<SimulatedGrid> best;
  for (size_t i = 0; i < std::min(programs.size(), kMostSimulated); ++i) try {
      ProgramsTime time = simulate_plan(*request.table, programs[i].plan, *request.group);
      if (!best || is_better(time, best->time)) best = {std::move(programs[i]), std::move(time)};
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::bug) throw;  // else it cannot be cut twice
    }
  return best;
}

bool cuts(const ShardingProgram& program) {
  return std::any_of(program.nodes.begin(), program.nodes.end(),
                     [](const NodeSharding& way) { return way.axis >= 0; }) ||
         std::any_of(program.values.begin(), program.values.end(),
                     [](PlacementId lies) { return lies > kPartial; });
}

std::vector<DeviceShare> shares_of(const DeviceGroup& group, const Plan& plan, const ProgramsTime& time) {
  std::map<std::string, const Device*> known;
  for (const Device& device : group.devices()) known[device.name] = &device;
  const Stage& stage = plan.pipelines[0].stages[0];
  const StageCut cut = cut_of(plan, stage);
  std::vector<DeviceShare> shares;
  double all = 0;
  for (size_t d = 0; d < stage.devices.size(); ++d) {
    const Device& device = *known.at(stage.devices[d]);
    int64_t share = 1;
    for (size_t axis = 0; axis < cut.axes.size(); ++axis)
      share *= cut.axes[axis].shares[static_cast<size_t>(cut.coordinate(static_cast<int>(d), axis))];
    all += static_cast<double>(share);
    shares.push_back(
        {device.name, device.type, share, 0, time.ranks[d].memory_bytes, time.ranks[d].limit_bytes});
  }
  for (DeviceShare& each : shares) each.part = static_cast<double>(each.share) / all;
  return shares;
}

// Every device has a part of what is cut, and all run what is not. Where the bound is far, whether a step of
// the others is faster without the devices that compute least.
std::optional<Smaller> without_slowest(const Request& request, double seconds) {
  const DeviceGroup& group = *request.group;
  int slowest = 0;
  for (int d = 1; d < group.size(); ++d)
    if (group.rate(d) < group.rate(slowest)) slowest = d;
  Smaller smaller;
  std::vector<int> others;
  for (int d = 0; d < group.size(); ++d)
    if (group.rate(d) > group.rate(slowest))
      others.push_back(d);
    else
      smaller.without.push_back(group.devices()[static_cast<size_t>(d)].name);
  if (others.empty()) return std::nullopt;
  const DeviceGroup left = group.subgroup(others);
  Request own = request;
  own.group = &left;
  own.starts.clear();
  const std::vector<Synthesised> programs = programs_to_try(own, false);
  if (programs.empty()) return std::nullopt;
  const ProgramsTime time = simulate_plan(*own.table, to_plan(own, programs[0].program), left);
  constexpr double kFaster = 0.95;
  if (!time.fits() || time.seconds > kFaster * seconds) return std::nullopt;
  smaller.simulated_seconds = time.seconds;
  return smaller;
}

}  // namespace

Report report_of(const Request& request, const Answer& answer, bool with_published, bool with_meshes) {
  if (!answer.best.found()) fail_usage("there is no sharding program that these devices can run");
  Report report;
  Synthesised best = answer.best;
  report.plan = to_plan(request, best.program);
  ProgramsTime time = simulate_plan(*request.table, report.plan, *request.group);
  report.simulated_seconds = time.seconds;
  report.exposed_seconds = time.exposed_seconds();
  const auto take = [&](const Synthesised& made, const Plan& plan, ProgramsTime its, std::string name) {
    if (!is_better(its, time)) return;
    best = made;
    report.plan = plan;
    report.chosen = std::move(name);
    report.simulated_seconds = its.seconds;
    report.exposed_seconds = its.exposed_seconds();
    time = std::move(its);
  };
  const ProgramsTime fastest = time;
  std::optional<Fitting> least;
  if (!fastest.fits()) {
    report.too_large = too_large(fastest, *request.group);
    least = frugal(request, answer.best.program, fastest);
  }
  constexpr double kFar = 0.02;
  const bool is_hopeless = least && lack_of(least->time) > kFar;
  for (const Synthesised& each : answer.overlapping) {
    if (is_hopeless) break;
    const Plan plan = to_plan(request, each.program);
    take(each, plan, simulate_plan(*request.table, plan, *request.group), "");
  }
  for (const Baseline each : kBaselines) {
    if (request.group->size() == 1 || is_hopeless) break;  // of one device they are the same
    if (each == Baseline::published && !with_published) continue;
    Compared compared;
    compared.name = name_of(each);
    Synthesised other = baseline(request, each, compared.problem);
    // The first of several problems, as a sentence.
    if (const size_t line = compared.problem.find(":\n  "); line != std::string::npos)
      compared.problem = compared.problem.substr(line + 4, compared.problem.find('\n', line + 4) - line - 4);
    compared.found = other.found();
    if (!compared.found && compared.problem.empty()) continue;
    if (other.found()) {
      compared.summed_seconds = seconds_of(other.cost);
      compared.plan = to_plan(request, other.program);
      ProgramsTime its = simulate_plan(*request.table, compared.plan, *request.group);
      compared.simulated_seconds = its.seconds;
      compared.fits = its.fits();
      take(other, compared.plan, std::move(its), compared.name);
    }
    report.baselines.push_back(std::move(compared));
  }
  if (!fastest.fits() && !is_hopeless) {
    const auto known = time.fits() ? std::optional(time.seconds) : std::nullopt;
    Request again = request;
    again.is_wide = answer.is_wide;
    if (auto fitting = fit(again, answer.best.program, fastest, known))
      take(fitting->made, fitting->plan, std::move(fitting->time), "");
  }
  const std::vector<Grid> grids =
      with_meshes && !is_hopeless ? grids_of(*request.group) : std::vector<Grid>{};
  const double begin = steady_seconds();
  std::vector<GridProgram> programs = programs_for(request, grids, true);
  if (!programs.empty()) report.mesh_seconds = steady_seconds() - begin;
  const auto grid = best_grid(request, std::move(programs));
  if (least && !time.fits() && (!grid || !grid->time.fits())) {
    best = std::move(least->made);
    report.plan = std::move(least->plan);
    report.chosen.clear();
    time = std::move(least->time);
    report.simulated_seconds = time.seconds;
    report.exposed_seconds = time.exposed_seconds();
  }
  if (grid) {
    const GridProgram& both = grid->program;
    report.meshes.push_back({both.grid->name, true, seconds_of(both.within.cost), grid->time.seconds,
                             grid->time.fits(), both.plan, ""});
    Synthesised sum = both.between;
    sum.cost = both.within.cost;
    sum.compute = both.within.compute;
    sum.communication = both.within.communication;
    report.has_mesh = is_better(grid->time, time) && (!least || grid->time.fits());
    report.is_cut = report.has_mesh && (cuts(both.between.program) || cuts(both.within.program));
    if (report.has_mesh) take(sum, both.plan, grid->time, both.grid->name);
    if (report.has_mesh) {
      Request between = request, within = request;
      between.group = both.row->rows.get();
      report.instructions = Lister(between, both.between.program).run();
      within.table = both.row->table.get();
      within.group = both.row->devices.get();
      within.outer = both.row->rows.get();
      for (Instruction& each : Lister(within, both.within.program, 1).run())
        report.instructions.push_back(std::move(each));
    }
  }
  if (!report.has_mesh) report.is_cut = cuts(best.program);
  report.devices = shares_of(*request.group, report.plan, time);
  for (DeviceShare& each : report.devices)
    if (!report.is_cut) each.part = 1;
  report.slowest = report.devices[time.longest()].device;
  report.parts = time.ranks[time.longest()].parts;
  if (!report.has_mesh) report.instructions = Lister(request, best.program).run();
  report.seconds = seconds_of(best.cost);
  report.compute_seconds = seconds_of(best.compute);
  report.communication_seconds = seconds_of(best.communication);
  report.cheapest_seconds = seconds_of(answer.best.cost);
  report.bound_seconds = seconds_of(answer.bound);
  report.gap = static_cast<double>(answer.best.cost - answer.bound) / static_cast<double>(answer.best.cost);
  constexpr double kFarBound = 0.1;
  if (report.gap > kFarBound) report.smaller = without_slowest(request, report.simulated_seconds);
  report.search_seconds = answer.search_seconds;
  report.searches = answer.searches;
  std::set<std::string> whole;
  for (const Node& node : request.table->graph().nodes)
    if (node.op->sharding.empty() && !node.op->any_placement && !node.op->collective)
      whole.insert(std::string(node.op->name));
  report.whole.assign(whole.begin(), whole.end());
  return report;
}

namespace {

std::string to_text(const Check& check) {
  const bool is_proven = check.bound == check.checked;
  std::string text = fmt::format(
      "checked: the cheapest program takes {} without overlap; with its shares no program takes less{}, by "
      "branch and bound in {} ({} nodes, {} strategies)\n",
      show_seconds(seconds_of(check.checked)),
      is_proven ? "" : " than " + show_seconds(seconds_of(check.bound)), show_seconds(check.seconds),
      check.nodes, check.strategies);
  if (check.linear_bound > 0)
    text += fmt::format("  nor less than {}, by GLPK's linear relaxation in {}\n",
                        show_seconds(seconds_of(check.linear_bound)), show_seconds(check.linear_seconds));
  if (check.cost < check.checked)
    text += fmt::format("  branch and bound found one that takes {}\n", show_seconds(seconds_of(check.cost)));
  return text;
}

// Norms and losses, which the search does not count, are exchanged by all programs.
std::string without_overlap(const Report& report) {
  const double norms = report.parts.norms;
  const std::string of_norms = norms > 0 ? fmt::format(", {} of norms and losses", show_seconds(norms)) : "";
  const std::string compute = show_seconds(report.compute_seconds),
                    communication = show_seconds(report.communication_seconds);
  // Of a mesh the sum is too low where its columns share interfaces.
  std::string text =
      report.has_mesh
          ? fmt::format(
                "\nthe search counts {} of computing and {} of communication{}, as if columns shared no "
                "interface\n",
                compute, communication, of_norms)
          : fmt::format("\nwithout overlap {}: {} of computing, {} of communication{}\n",
                        show_seconds(report.seconds + norms), compute, communication, of_norms);
  text += fmt::format("{}no program{} takes less than {} without overlap, whatever the shares",
                      norms > 0 ? "without norms and losses " : "",
                      report.meshes.empty() ? "" : " along one axis", show_seconds(report.bound_seconds));
  text += fmt::format("; the cheapest found takes {} (gap {:.1f} %)", show_seconds(report.cheapest_seconds),
                      100 * report.gap);
  if (report.cheapest_seconds < 0.999 * report.seconds)
    text += "; with overlap the plan shown is faster than that one";
  // Of the simulated step, and in no program's sum.
  const double launches = report.parts.compute + report.parts.update - report.compute_seconds;
  constexpr double kNoticeable = 0.02;
  if (!report.has_mesh && launches > kNoticeable * report.simulated_seconds)
    text += fmt::format("; beside these sums {} of a step are launches, which all programs take alike",
                        show_seconds(launches));
  return text + fmt::format("; {} searches in {}\n", report.searches, show_seconds(report.search_seconds));
}

}  // namespace

std::string to_text(const Report& report) {
  std::string text =
      fmt::format("a step takes {}, {} of it exposed communication", show_seconds(report.simulated_seconds),
                  show_seconds(report.exposed_seconds));
  if (!report.chosen.empty()) text += fmt::format("; it is {}{}", report.has_mesh ? "a " : "", report.chosen);
  if (report.devices.size() == 1)
    text += "\nnothing is cut: there is one device";
  else if (!report.is_cut)
    text += fmt::format(
        "\nnothing is cut: every device runs the whole model on the whole batch, as one device alone would{}",
        report.plan.unlike_devices ? "; they differ in type and take the same gradients: each gives a part"
        : report.parts.norms > 0   ? "; they exchange only norms and losses"
                                   : "");
  if (!report.too_large.empty()) text += fmt::format("\n{}", report.too_large);
  text +=
      fmt::format("\na step on {}, slowest in compute: {}", report.slowest, planner::to_text(report.parts));
  text += without_overlap(report);
  if (report.smaller) {
    constexpr size_t kNames = 6;
    const std::vector<std::string>& names = report.smaller->without;
    const std::vector<std::string> first(names.begin(), names.begin() + std::min(names.size(), kNames));
    text += fmt::format("without {}{} a step takes {}: leave {} out of the cluster\n", fmt::join(first, ", "),
                        names.size() > kNames ? fmt::format(" and {} others", names.size() - kNames) : "",
                        show_seconds(report.smaller->simulated_seconds), names.size() == 1 ? "it" : "them");
  }
  if (report.check) text += to_text(*report.check);
  if (report.mesh_seconds > 0)
    text += fmt::format("programs along two axes were looked for in {}\n", show_seconds(report.mesh_seconds));
  std::vector<Compared> others = report.baselines;
  others.insert(others.end(), report.meshes.begin(), report.meshes.end());
  if (!others.empty()) text += "others, simulated, and how many times as long they take:\n";
  for (const Compared& other : others)
    text += other.found ? fmt::format("  {:<30} {:>9}  {:.2f} times{}\n", other.name,
                                      show_seconds(other.simulated_seconds),
                                      other.simulated_seconds / report.simulated_seconds,
                                      other.fits ? "" : "; it does not fit in memory")
                        : fmt::format("  {:<30} {}\n", other.name, other.problem);
  if (report.gains) {
    const auto over = [&](Ticks cost) {
      return static_cast<double>(cost) / static_cast<double>(report.gains->all);
    };
    text += fmt::format(
        "rules beyond the published ones, with which a step is {:.3f} times as fast without overlap:\n",
        over(report.gains->published));
    for (const Gain& gain : report.gains->of)
      text += fmt::format("  {:<30} alone {:.3f} times; without it a step takes {:.3f} times as long\n",
                          name_of(gain.addition),
                          static_cast<double>(report.gains->published) / static_cast<double>(gain.alone),
                          over(gain.without));
  }
  text +=
      fmt::format("devices{}, and their memory:\n", report.is_cut ? " with their shares of what is cut" : "");
  for (size_t d = 0; d < report.devices.size();) {
    size_t end = d + 1;
    while (end < report.devices.size() && report.devices[end].type == report.devices[d].type &&
           report.devices[end].share == report.devices[d].share)
      ++end;
    const DeviceShare& device = report.devices[d];
    const bool is_one = end - d == 1;
    text += fmt::format(
        "  {:<24} {:<12} {}  {} of {}{}\n",
        is_one ? device.device : fmt::format("{} ... {}", device.device, report.devices[end - 1].device),
        device.type, report.is_cut ? fmt::format("{:>5.1f} %", 100 * device.part) : "   all ",
        show_bytes(device.memory_bytes), show_bytes(device.limit_bytes), is_one ? "" : ", each");
    d = end;
  }
  if (report.devices.size() > 1)
    text +=
        "note: these programs use all devices; --policy=auto also looks at pipelines, and at fewer devices\n";
  for (const std::string& op : report.whole)
    text += fmt::format("note: {} has no sharding rules; every device runs all of it\n", op);
  text +=
      "program (a name with * stands for all layers, or all calls; times of a whole step; \"dim 0\": cut "
      "along "
      "dimension 0,\n"
      "  \"replicated\" and \"whole\": on every device, \"partial\": a summand on each; ->: they exchange "
      "it):\n";
  constexpr Phase kPhases[] = {Phase::forward, Phase::backward, Phase::update};
  std::optional<std::pair<int, Phase>> place;
  for (const auto& at : {std::pair{0, kPhases[0]}, std::pair{0, kPhases[1]}, std::pair{0, kPhases[2]},
                         std::pair{1, kPhases[0]}, std::pair{1, kPhases[1]}, std::pair{1, kPhases[2]}})
    for (const Instruction& instruction : report.instructions) {
      if (std::pair{instruction.axis, instruction.phase} != at) continue;
      if (instruction.seconds == 0 && (instruction.rule == "replicated" || instruction.is_exchange)) continue;
      if (report.has_mesh && (!place || place->first != at.first))
        text += at.first == 0 ? "between rows:\n" : "among the devices of a row, of what the row has:\n";
      if (place != at) text += fmt::format(" {}\n", name_of(at.second));
      place = at;
      const std::string times = instruction.count > 1 ? fmt::format(" x{}", instruction.count) : "";
      text += fmt::format("  {} {}{}: {}{}  {}\n", instruction.is_exchange ? "->" : "  ", instruction.name,
                          times, instruction.rule,
                          instruction.bytes > 0 ? fmt::format(", {}", show_bytes(instruction.bytes)) : "",
                          show_seconds(instruction.seconds));
    }
  return text;
}

}  // namespace het::planner::hap
