#include "planner/measured/prediction.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "core/base/units.h"
#include "planner/infinity.h"
#include "planner/measured/links.h"
#include "planner/measured/memory.h"
#include "planner/simulate/simulate.h"

namespace het::planner {
namespace {

constexpr int kMostMicrobatches = 100000;
constexpr int kMostGroups = 20000;
constexpr double kF32Bytes = 4;
// A step in milliseconds is a thousand times one in seconds, which is longer than its layers take; the
// slowest links in use make one ten or twenty times as long.
constexpr double kMostTimesBound = 300;

std::string name_of(const PlanGroup& group) {
  std::string machines = group.machines[0].type;
  for (size_t m = 1; m < group.machines.size(); ++m) machines += "+" + group.machines[m].type;
  return fmt::format("{} x {}", machines, group.tensor);
}

// Operations of a forward pass of each layer for one sample: two for each parameter and token. Tokens follow
// from an inner layer's 12 x width^2 parameters and its output of tokens x width elements. The first layer
// looks up an embedding; a last layer without a classifier multiplies by that.
std::vector<double> flops_of(const std::vector<LayerSize>& layers, int tensor) {
  const LayerSize& inner = layers[layers.size() / 2];
  const double width = std::sqrt(inner.parameters * tensor / 12);
  const double tokens = width > 0 ? inner.output_bytes / kF32Bytes / width : 0;
  std::vector<double> flops;
  for (const LayerSize& layer : layers) flops.push_back(2 * layer.parameters * tensor * tokens);
  if (layers.size() > 2 && layers[0].parameters != inner.parameters) {
    if (layers.back().parameters < layers[0].parameters / 2) flops.back() = flops[0];
    flops[0] = 0;
  }
  return flops;
}

// One plan on its way to a prediction. A tensor-parallel group is one device here ("GH-96 x 4"), so that
// groups of different degrees can stand in one plan: the cluster's devices are groups, and the layout's
// degree is 1.
class Prediction {
 public:
  Prediction(const PlanFile& file, const ModelSizes& sizes, const MeasuredRequest& request,
             MeasuredPlan& plan)
      : file_(file), sizes_(sizes), request_(request), plan_(plan) {}

  void run(Profiles& profiles) {
    collect(profiles);
    if (!plan_.problems.empty()) return;
    describe_model();
    link();
    place();
    simulate();
    remember();
    bound();
  }

 private:
  struct Kind {  // of tensor-parallel groups
    PlanGroup group;
    std::string name;
    std::map<int, std::vector<LayerTimes>> times;  // by micro-batch
    int node = 0;                                  // of the cluster
    int open = 0;                                  // free groups in its last machine
    int uses = 0, together = 1;                    // in the plan, in one machine
    std::string where;                             // its first stage
    bool measured = false;                         // at the plan's micro-batch size
  };

  const std::vector<LayerSize>& sizes(int tensor) const { return sizes_.at(tensor); }
  Kind& kind_of(const PlanGroup& group) {
    return *std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) { return kind.group == group; });
  }
  void find_kinds();
  std::vector<std::string> damage_of(const TypeTimes& times, int tensor);
  void collect(Profiles& profiles);
  void problem(std::string sentence);
  void check_sizes(const Kind& kind);
  void add_times(Kind& kind, const PlanMachine& machine, Profiles& profiles);
  void note_size(const Kind& kind);
  void check_counts();
  void tell_apart();
  bool all_types_are_known() const;
  void spread(Kind& kind);
  void describe_model();
  void link();
  Link between(const PlanGroup& a, const PlanGroup& b, int groups, double bytes);
  void place();
  CostTable costs_of(const Cluster& cluster) const;
  void simulate();
  void remember();
  void bound();

  const PlanFile& file_;
  const ModelSizes& sizes_;
  const MeasuredRequest& request_;
  MeasuredPlan& plan_;
  std::vector<Kind> kinds_;
  Cluster cluster_;
  Model model_;
  Profile profile_;
  PlanLayout layout_;
  struct Origin {  // of each pipeline of the layout
    int pipeline = 0, replica = 0;
  };
  std::vector<Origin> origins_;
};

void Prediction::find_kinds() {
  for (size_t p = 0; p < file_.pipelines.size(); ++p)
    for (size_t s = 0; s < file_.pipelines[p].size(); ++s)
      for (const PlanGroup& group : file_.pipelines[p][s].replicas) {
        plan_.gpus += group.tensor;
        if (std::none_of(kinds_.begin(), kinds_.end(),
                         [&](const Kind& kind) { return kind.group == group; })) {
          kinds_.push_back({group, name_of(group), {}});
          kinds_.back().where = fmt::format("pipeline {}, stage {}", p + 1, s + 1);
        }
        ++kind_of(group).uses;
      }
}

// What keeps the plan from the times of a degree. Tables of other micro-batch sizes that are damaged are
// left out, and noted; where none is whole, the mistakes of one of them say why.
std::vector<std::string> Prediction::damage_of(const TypeTimes& times, int tensor) {
  std::vector<std::string> problems;
  const auto damaged = times.damaged.find(tensor);
  if (damaged == times.damaged.end()) return problems;
  const auto& by_size = damaged->second;
  const bool is_whole = times.tables.contains(tensor);
  if (const auto own = by_size.find(file_.microbatch); own != by_size.end())
    problems = own->second;
  else if (!is_whole)
    problems = by_size.begin()->second;
  std::vector<int> others;
  for (const auto& [microbatch, mistakes] : by_size)
    if (mistakes != problems) others.push_back(microbatch);
  if (!is_whole && !others.empty())
    problems.push_back(fmt::format("{}: mistakes also at micro-batch {}, degree {}",
                                   problems[0].substr(0, problems[0].find(": ")), fmt::join(others, ", "),
                                   tensor));
  for (const auto& [microbatch, mistakes] : by_size)
    if (is_whole && microbatch != file_.microbatch) plan_.notes.push_back("skipped: " + mistakes[0]);
  return problems;
}

// A problem of several stages is said once.
void Prediction::problem(std::string sentence) {
  auto& all = plan_.problems;
  if (std::find(all.begin(), all.end(), sentence) == all.end()) all.push_back(std::move(sentence));
}

// The kinds of groups with their times, or why there are none.
void Prediction::collect(Profiles& profiles) {
  find_kinds();
  for (Kind& kind : kinds_) {
    check_sizes(kind);
    for (const PlanMachine& machine : kind.group.machines) add_times(kind, machine, profiles);
    kind.measured = kind.times.contains(file_.microbatch);
    if (plan_.problems.empty() && kind.times.empty())
      problem(fmt::format("{}: the profiles of {} have no micro-batch size in common", profiles.path(),
                          kind.name));
    if (plan_.problems.empty() && !kind.measured) note_size(kind);
  }
  tell_apart();
  if (plan_.problems.empty()) check_counts();
}

void Prediction::check_sizes(const Kind& kind) {
  const int tensor = kind.group.tensor;
  if (!sizes_.contains(tensor)) {
    std::vector<int> there;
    for (const auto& [degree, layers] : sizes_) there.push_back(degree);
    problem(fmt::format(
        "{}: {} has no sizes for tensor-parallel degree {}; it has {}; {}, {} has this degree",
        request_.model_info, plan_.model, tensor, fmt::join(there, ", "), file_.path, kind.where));
  } else if (static_cast<int>(sizes(tensor).size()) != file_.layers()) {
    problem(fmt::format("{}: {} has {} layers at tensor-parallel degree {}; the plan divides {}",
                        request_.model_info, plan_.model, sizes(tensor).size(), tensor, file_.layers()));
  }
}

// Of several machines the slowest sets the pace.
void Prediction::add_times(Kind& kind, const PlanMachine& machine, Profiles& profiles) {
  const int tensor = kind.group.tensor;
  std::vector<std::string> unread;
  const TypeTimes* times = profiles.find(plan_.model, file_.layers(), machine.type, unread);
  for (std::string& sentence : unread) problem(std::move(sentence));
  if (times == nullptr)
    return problem(fmt::format("{}, {} has GPUs of type \"{}\"", file_.path, kind.where, machine.type));
  for (std::string& sentence : damage_of(*times, tensor)) problem(std::move(sentence));
  const auto found = times->tables.find(tensor);
  if (found == times->tables.end()) {
    if (times->damaged.contains(tensor)) return;
    std::vector<int> there;
    for (const auto& [degree, microbatches] : times->tables) there.push_back(degree);
    return problem(fmt::format(
        "{}: the profile of {} has no times for tensor-parallel degree {}; it has {}; {}, {} has this degree",
        profiles.path(), machine.type, tensor, fmt::join(there, ", "), file_.path, kind.where));
  }
  if (&machine == &kind.group.machines[0]) kind.times = found->second;
  std::erase_if(kind.times, [&](const auto& entry) { return !found->second.contains(entry.first); });
  for (auto& [microbatch, layers] : kind.times)
    for (size_t l = 0; l < layers.size(); ++l) {
      const LayerTimes& other = found->second.at(microbatch)[l];
      layers[l] = {std::max(layers[l].forward, other.forward), std::max(layers[l].backward, other.backward),
                   std::max(layers[l].update, other.update)};
    }
}

// The plan's micro-batch size was not measured.
void Prediction::note_size(const Kind& kind) {
  std::vector<int> there;
  for (const auto& [microbatch, layers] : kind.times) there.push_back(microbatch);
  plan_.interpolated = true;
  const bool is_between = there.front() < file_.microbatch && file_.microbatch < there.back();
  plan_.notes.push_back(fmt::format("micro-batch {} on {} is {}: its profile has {}", file_.microbatch,
                                    kind.name,
                                    is_between              ? "interpolated"
                                    : there.size() > 1      ? "extrapolated"
                                    : all_types_are_known() ? "extrapolated by the data sheet"
                                                            : "taken in proportion but for launches",
                                    fmt::join(there, ", ")));
}

void Prediction::check_counts() {
  int replicas = 0;
  for (const auto& stages : file_.pipelines) replicas += static_cast<int>(stages[0].replicas.size());
  const int all = (file_.batch + file_.microbatch - 1) / file_.microbatch;
  if (replicas > kMostGroups || all > kMostMicrobatches)
    problem(fmt::format("{}: {} replicas and {} micro-batches are more than can be simulated ({} and {})",
                        file_.path, replicas, all, kMostGroups, kMostMicrobatches));
  else if (all < replicas)
    problem(fmt::format("{}: a batch of {} is {} micro-batches of {}, fewer than its {} replicas", file_.path,
                        file_.batch, all, file_.microbatch, replicas));
  if (file_.batch % file_.microbatch != 0)
    plan_.notes.push_back(
        fmt::format("a batch of {} is not whole micro-batches of {}: {} samples are counted", file_.batch,
                    file_.microbatch, int64_t{all} * file_.microbatch));
}

// Kinds that differ in their machines alone have one name so far.
void Prediction::tell_apart() {
  std::map<std::string, int> uses;
  for (const Kind& kind : kinds_) ++uses[kind.name];
  for (Kind& kind : kinds_)
    if (uses[kind.name] > 1) {
      std::string machines;
      for (const PlanMachine& machine : kind.group.machines)
        machines +=
            fmt::format("{}{} GPUs in {}", machines.empty() ? "" : " and ", machine.gpus, machine.zone);
      kind.name += fmt::format(" ({})", machines);
    }
}

// Whether data sheets say what a micro-batch size that was not measured takes from one that was.
bool Prediction::all_types_are_known() const {
  return std::all_of(kinds_.begin(), kinds_.end(), [](const Kind& kind) {
    return std::all_of(kind.group.machines.begin(), kind.group.machines.end(),
                       [](const PlanMachine& machine) { return find_device_type(machine.type) != nullptr; });
  });
}

// What a group over several machines adds: its all-reduces leave the machine, which no profile holds.
// Megatron-LM has two in each direction of a block, one of the embedding (Shoeybi et al. 2019, section 3).
void Prediction::spread(Kind& kind) {
  const auto& machines = kind.group.machines;
  if (machines.size() < 2) return;
  const std::vector<LayerSize>& size = sizes(kind.group.tensor);
  for (auto& [microbatch, layers] : kind.times)
    for (size_t l = 0; l + 1 < layers.size(); ++l) {
      const double bytes = size[l].output_bytes * microbatch;
      double seconds = 0;
      for (const PlanMachine& machine : machines)
        seconds = std::max(seconds, collective_seconds(CollectiveKind::all_reduce, false,
                                                       between({{machines[0]}, 1}, {{machine}, 1}, 1, bytes),
                                                       static_cast<int>(machines.size()), bytes));
      layers[l].forward += seconds * (l == 0 ? 1 : 2);
      layers[l].backward += seconds * (l == 0 ? 1 : 2);
    }
  plan_.notes.push_back(
      fmt::format("{}: a tensor-parallel group over {} machines, at the pace of the slowest "
                  "and with all-reduces between them",
                  kind.name, machines.size()));
}

// Each layer is a separate kind; half of the measured backward is counted to each of its parts. Sizes are
// those of the whole layer, from the model of the smallest degree.
void Prediction::describe_model() {
  model_.name = profile_.model = plan_.model;
  model_.precision = Precision::f32;
  model_.weight_bytes = model_.gradient_bytes = 4;
  model_.optimizer_bytes = 8;
  for (Kind& kind : kinds_) spread(kind);
  const auto& [tensor, layers] = *sizes_.begin();
  const std::vector<double> work = flops_of(layers, tensor);
  for (size_t l = 0; l < layers.size(); ++l) {
    LayerKind layer;
    layer.name = std::to_string(l);
    layer.parameters = layers[l].parameters * tensor;
    if (all_types_are_known()) layer.forward_flops = layer.input_flops = layer.weight_flops = work[l];
    layer.boundary_bytes = layers[l].output_bytes;
    model_.kinds.push_back(layer);
    model_.layers.push_back(static_cast<int>(l));
    for (const Kind& kind : kinds_)
      for (const auto& [microbatch, times] : kind.times) {
        const LayerTimes& t = times[l];
        profile_.points.push_back(
            {layer.name, kind.name, 1, microbatch, t.forward, t.backward / 2, t.backward / 2, t.update});
      }
  }
}

Link Prediction::between(const PlanGroup& a, const PlanGroup& b, int groups, double bytes) {
  if (request_.between.bytes_per_second > 0) return request_.between;
  Link slowest{0, 1e15};
  for (const PlanMachine& from : a.machines)
    for (const PlanMachine& to : b.machines) {
      const int tensor = std::min(a.tensor, b.tensor);
      // Where each pair of GPUs has an interface, one pair shows what one has; each GPU sends its part.
      const int most = std::min(published_interfaces(from.type), published_interfaces(to.type));
      const PublishedLink published =
          published_link(from.type, from.zone, to.type, to.zone, most > 1 ? 1 : groups * tensor,
                         bytes / std::min(tensor, request_.interfaces));
      if (most > request_.interfaces) {
        const std::string note = fmt::format(
            "network interfaces of a machine: {} counted; the published bandwidths between {} and {} show {} "
            "(--interfaces)",
            request_.interfaces, from.type, to.type, most);
        if (std::find(plan_.notes.begin(), plan_.notes.end(), note) == plan_.notes.end())
          plan_.notes.push_back(note);
      }
      if (published.assumed) {
        const std::string note = fmt::format(
            "nothing is published of the link between {} and {}: {:.0f} Gbit/s "
            "assumed; --bandwidth states it",
            from.type, to.type, kAssumedBandwidth * 8e-9);
        if (std::find(plan_.notes.begin(), plan_.notes.end(), note) == plan_.notes.end())
          plan_.notes.push_back(note);
      }
      if (published.link.bytes_per_second < slowest.bytes_per_second) slowest = published.link;
    }
  return slowest;
}

// Links between the kinds of groups, at the size of the messages that matter: boundaries, or where there are
// none a replica's share of the gradients.
void Prediction::link() {
  double bytes = 0;
  for (const auto& stages : file_.pipelines)
    for (size_t s = 0; s + 1 < stages.size(); ++s)
      bytes = std::max(
          bytes, model_.layer(stages[s].first + stages[s].layers - 1).boundary_bytes * file_.microbatch);
  if (bytes == 0)
    bytes = total_parameters(model_) * model_.gradient_bytes /
            static_cast<double>(file_.pipelines[0][0].replicas.size());
  for (size_t a = 0; a < kinds_.size(); ++a) {
    Kind& kind = kinds_[a];
    kind.node = static_cast<int>(a);
    const PlanMachine& machine = kind.group.machines[0];
    DeviceType type;
    type.name = kind.name;
    type.f32_flops = type.memory_bytes_per_second = kInfinity;
    for (const PlanMachine& each : kind.group.machines)
      if (const DeviceType* known = find_device_type(each.type)) {
        type.f32_flops = std::min(type.f32_flops, known->f32_flops * kind.group.tensor);
        type.memory_bytes_per_second =
            std::min(type.memory_bytes_per_second, known->memory_bytes_per_second * kind.group.tensor);
      }
    type.memory_bytes = 1e15;  // of no effect: memory is counted below
    type.inside = inside_link_of(machine.type);
    // Each GPU of a group exchanges its part with its counterpart in another group.
    type.inside.bytes_per_second *= kind.group.tensor;
    cluster_.types.push_back(type);
    Machine node;
    node.type = kind.name;
    node.zone = std::to_string(a);
    node.devices = kind.group.machines.size() > 1 ? 1 : machine.gpus / kind.group.tensor;
    node.interfaces = request_.interfaces;
    kind.together = std::min(node.devices, kind.uses);
    cluster_.nodes.push_back(node);
    for (size_t b = 0; b <= a; ++b)
      cluster_.zone_links.push_back(
          {std::to_string(b), std::to_string(a),
           between(kinds_[b].group, kind.group, std::min(kinds_[b].together, kind.together), bytes)});
  }
}

// Ranks count stage by stage, replica by replica, and fill machines in that order, as the published launcher
// does.
void Prediction::place() {
  std::map<std::pair<int, int>, std::vector<StageLayout>> placed;  // (pipeline, stage) -> replicas
  int machines = 0;
  for (size_t p = 0; p < file_.pipelines.size(); ++p)
    for (size_t s = 0; s < file_.pipelines[p].size(); ++s) {
      const PlanStage& stage = file_.pipelines[p][s];
      for (const PlanGroup& group : stage.replicas) {
        Kind& kind = kind_of(group);
        Machine& node = cluster_.nodes[static_cast<size_t>(kind.node)];
        if (kind.open == 0) {
          node.hosts.push_back(fmt::format("m{}", ++machines));
          kind.open = node.devices;
        }
        --kind.open;
        placed[{static_cast<int>(p), static_cast<int>(s)}].push_back(
            {kind.node, static_cast<int>(node.hosts.size()) - 1, stage.first, stage.layers});
      }
    }
  layout_.microbatch = file_.microbatch;
  for (size_t p = 0; p < file_.pipelines.size(); ++p)
    for (size_t r = 0; r < file_.pipelines[p][0].replicas.size(); ++r) {
      PipelineLayout pipeline;
      for (size_t s = 0; s < file_.pipelines[p].size(); ++s)
        pipeline.stages.push_back(placed[{static_cast<int>(p), static_cast<int>(s)}][r]);
      layout_.pipelines.push_back(std::move(pipeline));
      origins_.push_back({static_cast<int>(p), static_cast<int>(r)});
    }
  const int all = (file_.batch + file_.microbatch - 1) / file_.microbatch;
  const int replicas = static_cast<int>(layout_.pipelines.size());
  for (int r = 0; r < replicas; ++r)
    layout_.pipelines[static_cast<size_t>(r)].microbatches = all / replicas + (r < all % replicas ? 1 : 0);
  plan_.microbatches = layout_.pipelines[0].microbatches;
}

// DeepSpeed's pipeline engine sends activations and their gradients divided over the tensor-parallel group,
// and gathers them inside the receiving group (runtime/pipe/engine.py, pipe_partitioned and grad_partitioned,
// on unless the configuration says otherwise): in a ring (t - 1) / t of the bytes over each link.
CostTable Prediction::costs_of(const Cluster& cluster) const {
  CostTable costs = make_costs(cluster, model_, profile_, 1, file_.microbatch);
  for (const Kind& kind : kinds_) {
    const double t = kind.group.tensor;
    NodeCosts& node = costs.nodes[static_cast<size_t>(kind.node)];
    // Of the whole group, as NodeCosts::inside is.
    if (t > 1) node.gather = {0, node.inside.bytes_per_second / (t - 1)};
  }
  return costs;
}

void Prediction::simulate() {
  const CostTable costs = costs_of(cluster_);
  Simulator simulator(costs, cluster_);
  SimulateOptions options;
  options.details = true;
  options.runtime = {true, true};
  const Simulation simulation = simulator.run(layout_, options);
  plan_.seconds = simulation.seconds;
  SimulateOptions seconds_alone;
  seconds_alone.runtime = options.runtime;
  plan_.links = link_spread(cluster_, simulation.seconds, [&](const Cluster& cluster) {
    const CostTable other = costs_of(cluster);
    return Simulator(other, cluster).run(layout_, seconds_alone).seconds;
  });
  plan_.pipeline_seconds = simulation.pipeline_seconds;
  plan_.gradient_seconds = simulation.exposed_seconds;
  plan_.update_seconds = simulation.update_seconds;
  for (const StageUse& use : simulation.stages) {
    const Origin& origin = origins_[static_cast<size_t>(use.pipeline)];
    const PlanStage& stage =
        file_.pipelines[static_cast<size_t>(origin.pipeline)][static_cast<size_t>(use.stage)];
    const Kind& kind = kind_of(stage.replicas[static_cast<size_t>(origin.replica)]);
    const auto same = std::find_if(plan_.groups.begin(), plan_.groups.end(), [&](const MeasuredGroup& group) {
      return group.pipeline == origin.pipeline && group.stage == use.stage && group.group == kind.name;
    });
    if (same != plan_.groups.end()) {
      ++same->replicas;
      same->in_flight = std::max(same->in_flight, use.in_flight);
      continue;
    }
    MeasuredGroup group;
    group.pipeline = origin.pipeline;
    group.stage = use.stage;
    group.group = kind.name;
    group.replicas = 1;
    group.first = stage.first;
    group.layers = stage.layers;
    group.in_flight = use.in_flight;
    const int last = stage.first + stage.layers;
    group.microbatch_seconds = costs.forward_seconds(kind.node, stage.first, last) +
                               costs.backward_seconds(kind.node, stage.first, last, false);
    plan_.groups.push_back(group);
  }
  std::stable_sort(plan_.groups.begin(), plan_.groups.end(),
                   [](const MeasuredGroup& a, const MeasuredGroup& b) {
                     return std::pair(a.pipeline, a.stage) < std::pair(b.pipeline, b.stage);
                   });
}

// Memory of one GPU of each kind, and what the fullest one needs whatever is assumed: weights and one
// micro-batch.
void Prediction::remember() {
  double least = 0;
  for (MeasuredGroup& group : plan_.groups) {
    const Kind& kind =
        *std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& k) { return k.name == group.group; });
    const std::vector<LayerSize>& size = sizes(kind.group.tensor);
    const auto stages = static_cast<int>(file_.pipelines[static_cast<size_t>(group.pipeline)].size());
    GpuStage stage;
    stage.layers = &size;
    stage.first = group.first;
    stage.count = group.layers;
    stage.tensor = kind.group.tensor;
    stage.microbatch = file_.microbatch;
    stage.microbatches = plan_.microbatches;
    stage.in_flight = group.in_flight;
    stage.replicas = static_cast<int>(layout_.pipelines.size());
    stage.neighbours = (group.stage > 0 ? 1 : 0) + (group.stage + 1 < stages ? 1 : 0);
    for (const PlanMachine& machine : kind.group.machines) stage.types.push_back(machine.type);
    group.memory = gpu_memory(stage);
    plan_.memory_bytes = std::max(plan_.memory_bytes, group.memory.total());
    double weights = 0, activation = 0;
    for (int l = group.first; l < group.first + group.layers; ++l) {
      weights += size[static_cast<size_t>(l)].parameters * model_.weight_bytes;
      activation += size[static_cast<size_t>(l)].activation_bytes;
    }
    least = std::max(least, weights + activation * file_.microbatch);
  }
  if (plan_.measured_memory_bytes && *plan_.measured_memory_bytes < least)
    plan_.suspicious.push_back(fmt::format(
        "its measured memory, {:.1f} GB, is less than weights and one micro-batch need on the fullest GPU, "
        "{:.1f} GB",
        *plan_.measured_memory_bytes * 1e-9, least * 1e-9));
}

// The shortest step in which a pipeline can do the layers' measured work, whatever the schedule and however
// fast the network: a stage runs all its micro-batches one after the other, the first after it has come
// forward through the stages before, and the last is still to go backward through them. A run that is shorter
// did the work in less time than the profile says it takes; then no prediction that believes the profile can
// be right, and the fault is not the model's. A bound up to kSecondsAsked too long is left to the prediction.
void Prediction::bound() {
  const MeasuredGroup* longest = nullptr;
  int times = 0;
  double before_longest = 0;
  for (size_t p = 0; p < layout_.pipelines.size(); ++p) {
    double before = 0;
    for (size_t s = 0; s < layout_.pipelines[p].stages.size(); ++s) {
      const StageLayout& stage = layout_.pipelines[p].stages[s];
      const Kind& kind = kinds_[static_cast<size_t>(stage.node)];
      const auto group = std::find_if(plan_.groups.begin(), plan_.groups.end(), [&](const MeasuredGroup& g) {
        return g.pipeline == origins_[p].pipeline && g.stage == static_cast<int>(s) && g.group == kind.name;
      });
      const double bound = layout_.pipelines[p].microbatches * group->microbatch_seconds + before;
      if (bound > plan_.bound_seconds) {
        plan_.bound_seconds = bound;
        longest = &*group;
        times = layout_.pipelines[p].microbatches;
        before_longest = before;
      }
      before += group->microbatch_seconds;
    }
  }
  if (plan_.measured_seconds && plan_.bound_seconds > 0 &&
      *plan_.measured_seconds > kMostTimesBound * plan_.bound_seconds)
    plan_.suspicious.push_back(fmt::format(
        "its measured step, {}, is {:.0f} times what its layers take by the profile, {}; real is in seconds",
        show_seconds(*plan_.measured_seconds), *plan_.measured_seconds / plan_.bound_seconds,
        show_seconds(plan_.bound_seconds)));
  // What is interpolated or added for groups over several machines is no figure of the profile.
  for (const Kind& kind : kinds_)
    if (!kind.measured || kind.group.machines.size() > 1) return;
  if (!plan_.measured_seconds || plan_.bound_seconds <= (1 + kSecondsAsked) * *plan_.measured_seconds) return;
  plan_.contradicts = true;
  plan_.reason = fmt::format(
      "the profile has {} for forward and backward of layers {} to {} on {} at micro-batch {}; for {} such "
      "micro-batch{}{} that is {} without any communication or update, {:.0f} % more than the whole measured "
      "step "
      "of {}",
      show_seconds(longest->microbatch_seconds), longest->first, longest->first + longest->layers - 1,
      longest->group, file_.microbatch, times, times == 1 ? "" : "es",
      before_longest > 0 ? fmt::format(" and {} in the stages before", show_seconds(before_longest)) : "",
      show_seconds(plan_.bound_seconds), 100 * (plan_.bound_seconds / *plan_.measured_seconds - 1),
      show_seconds(*plan_.measured_seconds));
  // A profile that gives less work more time contradicts itself, too.
  const Kind& kind =
      *std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& k) { return k.name == longest->group; });
  const auto whole = [&](int microbatch) {
    double seconds = 0;
    for (const LayerTimes& layer : kind.times.at(microbatch)) seconds += layer.forward + layer.backward;
    return seconds;
  };
  const auto larger = kind.times.upper_bound(file_.microbatch);
  if (larger != kind.times.end() && whole(larger->first) < whole(file_.microbatch))
    plan_.reason += fmt::format(
        "; the same profile needs less for micro-batch {}, {} for all layers, than for {}, {}", larger->first,
        show_seconds(whole(larger->first)), file_.microbatch, show_seconds(whole(file_.microbatch)));
}

}  // namespace

void predict(const PlanFile& file, const ModelSizes& sizes, const MeasuredRequest& request,
             Profiles& profiles, MeasuredPlan& plan) {
  Prediction(file, sizes, request, plan).run(profiles);
}

}  // namespace het::planner
