#include "core/plan/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include <fmt/format.h>

namespace het {

std::string_view name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::one_f_one_b: return "1f1b";
    case Schedule::gpipe: return "gpipe";
    case Schedule::interleaved: return "interleaved";
    case Schedule::split_backward: return "split_backward";
  }
  return "unknown";
}

Shares tensor_shares(const Plan& plan) {
  return plan.shares.empty() ? Shares(static_cast<size_t>(plan.tensor), 1) : plan.shares;
}

namespace {

Shares reduced(Shares shares) {  // { 6, 2 } are { 3, 1 }
  int64_t common = 0;
  for (const int64_t share : shares) common = std::gcd(common, share);
  for (int64_t& share : shares) share /= std::max<int64_t>(common, 1);
  return shares;
}

// The mesh of a stage of several devices; null: its devices are one axis.
const StageSharding* mesh_of(const Plan& plan, const Stage& stage) {
  const auto& sharding = stage.sharding ? stage.sharding : plan.sharding;
  return sharding && sharding->has_mesh() && stage.shares.size() != 1 ? &*sharding : nullptr;
}

}  // namespace

Shares tensor_shares(const Plan& plan, const Stage& stage) {
  if (const StageSharding* mesh = mesh_of(plan, stage))
    return Shares(static_cast<size_t>(StageCut{mesh->axes}.parts()), 1);
  return reduced(stage.shares.empty() ? tensor_shares(plan) : stage.shares);
}

std::string show_shares(const Shares& shares) {
  const bool equal = std::all_of(shares.begin(), shares.end(), [](int64_t share) { return share == 1; });
  return equal ? fmt::format("{}", shares.size()) : fmt::format("{{ {} }}", fmt::join(shares, ", "));
}

StageSharding along_one_axis(AxisSharding sharding) {
  return {{StageAxis{std::string(kModelAxis), {}, std::move(sharding)}}};
}

int StageCut::parts() const {
  size_t parts = 1;
  for (const StageAxis& axis : axes) parts *= axis.shares.size();
  return static_cast<int>(parts);
}

int StageCut::coordinate(int part, size_t axis) const {
  for (size_t inner = axes.size() - 1; inner > axis; --inner)
    part /= static_cast<int>(axes[inner].shares.size());
  return part % static_cast<int>(axes[axis].shares.size());
}

bool StageCut::is_megatron() const { return axes.size() == 1 && !axes[0].sharding; }

StageCut cut_of(const Plan& plan, const Stage& stage) {
  StageCut cut;
  if (const StageSharding* mesh = mesh_of(plan, stage)) {
    cut.axes = mesh->axes;
    for (StageAxis& axis : cut.axes) axis.shares = reduced(axis.shares);
    return cut;
  }
  cut.axes.push_back({std::string(kModelAxis), tensor_shares(plan, stage), {}});
  const auto& sharding = stage.sharding ? stage.sharding : plan.sharding;
  if (sharding && cut.parts() > 1 && !sharding->has_mesh())
    cut.axes[0].sharding = sharding->axes.at(0).sharding;
  return cut;
}

bool has_uniform_cut(const Plan& plan) {
  std::optional<StageCut> first;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const StageCut cut = cut_of(plan, stage);
      if (first && cut != *first) return false;
      first = cut;
    }
  return true;
}

namespace {

bool has_megatron_axis(const StageCut& cut) {
  return std::any_of(cut.axes.begin(), cut.axes.end(), [](const StageAxis& axis) { return !axis.sharding; });
}

// "{ data = 2, model = { 3, 1 } }"; axes in another order than that of their names: { { "model", 2 }, ... }.
std::string show_mesh(const std::vector<StageAxis>& axes) {
  const bool by_name = std::is_sorted(axes.begin(), axes.end(),
                                      [](const StageAxis& a, const StageAxis& b) { return a.name < b.name; });
  std::vector<std::string> entries;
  for (const StageAxis& axis : axes)
    entries.push_back(by_name ? fmt::format("{} = {}", axis.name, show_shares(axis.shares))
                              : fmt::format("{{ \"{}\", {} }}", axis.name, show_shares(axis.shares)));
  return fmt::format("{{ {} }}", fmt::join(entries, ", "));
}

bool is_all_0(const Shares& shares) {
  return !shares.empty() &&
         std::all_of(shares.begin(), shares.end(), [](int64_t share) { return share == 0; });
}

void check_mesh(const StageSharding& mesh, const Stage& stage, const std::string& where,
                std::vector<std::string>& problems) {
  constexpr size_t kMostAxes = 2;
  const auto add = [&](const std::string& text) { problems.push_back(fmt::format("{}: {}", where, text)); };
  if (mesh.axes.size() > kMostAxes)
    add(fmt::format("the mesh has {} axes; one or two work", mesh.axes.size()));
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    const auto& [name, shares, sharding] = mesh.axes[a];
    if (shares.size() < 2)
      add(fmt::format("axis {} of the mesh has {} part; leave it out", name, shares.size()));
    if (is_all_0(shares)) add(fmt::format("axis {} of the mesh: shares are all 0; each is at least 1", name));
    for (const int64_t share : shares)
      if (share < 1 && !is_all_0(shares))
        add(fmt::format("axis {} of the mesh: share {} leaves devices idle", name, share));
    for (size_t other = 0; other < a; ++other)
      if (mesh.axes[other].name == name) add(fmt::format("two axes of the mesh are called {}", name));
  }
  if (!stage.shares.empty())
    add(fmt::format(
        "tensor = {} beside a mesh, whose axes say how many devices share a layer; leave tensor out",
        show_shares(stage.shares)));
  const int parts = StageCut{mesh.axes}.parts();
  if (static_cast<int>(stage.devices.size()) != parts)
    add(fmt::format("mesh = {} needs {} devices, there are {}", show_mesh(mesh.axes), parts,
                    stage.devices.size()));
}

// Each layer's optimizer state lives somewhere: of the stages that hold it, one has a share.
void check_shares(const Plan& plan, int layers, std::vector<std::string>& problems) {
  std::vector<bool> placed(static_cast<size_t>(std::max(layers, 0)), false);
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (int layer = std::max(stage.first_layer, 0);
           layer < std::min(stage.first_layer + stage.layers, layers) && stage.optimizer_share > 0; ++layer)
        placed[static_cast<size_t>(layer)] = true;
  for (int layer = 0; layer < layers; ++layer)
    if (!placed[static_cast<size_t>(layer)]) {
      problems.push_back(fmt::format(
          "layer {}: every stage that holds it has optimizer_share = 0; one of them needs at least 1",
          layer));
      return;
    }
}

// " (embedding, blocks.0, ..., blocks.3, head)": what a model's layers are, which people count as its blocks
// alone.
std::string parts_of(std::vector<std::string> names) {
  if (names.empty()) return "";
  if (names.size() == 1 && names[0] == "model")
    return " (model); self.builder:begin_layer(\"name\") in the forward of an nn.layer begins another";
  if (names.size() > 5) {
    names.erase(names.begin() + 2, names.end() - 2);
    names.insert(names.begin() + 2, "...");
  }
  return fmt::format(" ({})", fmt::join(names, ", "));
}

// Collects what is wrong with a plan.
class Validator {
 public:
  Validator(const Plan& plan, const PlanSubject& subject) : plan_(plan), subject_(subject) {}

  std::vector<std::string> run() {
    check_settings();
    check_schedule();
    for (size_t p = 0; p < plan_.pipelines.size(); ++p) check_pipeline(p);
    check_whole();
    return std::move(problems_);
  }

 private:
  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    problems_.push_back(fmt::format(format, std::forward<Values>(values)...));
  }

  void check_settings() {
    if (plan_.tensor < 1) add("tensor = {}; the tensor-parallel degree is at least 1", plan_.tensor);
    if (!plan_.shares.empty() && static_cast<int>(plan_.shares.size()) != plan_.tensor)
      add("{} shares for tensor = {}; each tensor-parallel rank has one", plan_.shares.size(), plan_.tensor);
    if (is_all_0(plan_.shares))
      add("tensor = {}: shares are all 0; each is at least 1", show_shares(plan_.shares));
    else if (std::any_of(plan_.shares.begin(), plan_.shares.end(), [](int64_t share) { return share < 1; }))
      add("tensor = {}: a share below 1 leaves a device idle; remove that device", show_shares(plan_.shares));
    if (plan_.sharding && plan_.sharding->has_mesh() && tensor_shares(plan_).size() > 1)
      add("tensor = {} beside a mesh, whose axes say how many devices share a layer; leave tensor out",
          show_shares(tensor_shares(plan_)));
    if (plan_.microbatch < 1) add("microbatch = {}; a micro-batch has at least 1 sample", plan_.microbatch);
    if (plan_.pipelines.empty()) add("the plan has no pipeline; at least one is needed");
  }

  void check_schedule() {
    if (plan_.chunks < 1) add("chunks = {}; each device has at least 1 stage", plan_.chunks);
    if (plan_.chunks > 1 && plan_.schedule != Schedule::interleaved)
      add("chunks = {} with schedule \"{}\"; only \"interleaved\" puts several stages on a device",
          plan_.chunks, name_of(plan_.schedule));
    if (plan_.warmup < 0) add("warmup = {}; it is 0 or more", plan_.warmup);
  }

  // Stages on a device.
  int chunks() const { return plan_.schedule == Schedule::interleaved ? std::max(plan_.chunks, 1) : 1; }

  void check_pipeline(size_t p) {
    const Pipeline& pipeline = plan_.pipelines[p];
    if (pipeline.microbatches < 1)
      add("pipeline {}: microbatches = {}; each pipeline runs at least 1", p + 1, pipeline.microbatches);
    samples_ += static_cast<int64_t>(pipeline.microbatches) * plan_.microbatch;
    const int stages = static_cast<int>(pipeline.stages.size());
    if (stages % chunks() != 0)
      add("pipeline {}: {} stages for chunks = {}; the number of stages is a multiple of chunks", p + 1,
          stages, chunks());
    else if (chunks() > 1 && pipeline.microbatches % (stages / chunks()) != 0)
      add("pipeline {}: {} microbatches; interleaved they are a multiple of its {} device groups", p + 1,
          pipeline.microbatches, stages / chunks());
    const size_t groups = static_cast<size_t>(std::max(stages / chunks(), 1));
    int next = 0;
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      const Stage& stage = pipeline.stages[s];
      const std::string where = fmt::format("pipeline {}, stage {}", p + 1, s + 1);
      if (stage.layers < 1)
        add("{}: layers = {}; a stage holds at least 1, and the model has {}{}", where, stage.layers,
            subject_.layers, parts_of(subject_.names));
      if (stage.first_layer != next)
        add("{}: begins at layer {}, the stage before it ends at layer {}", where, stage.first_layer, next);
      next = stage.first_layer + stage.layers;
      check_cut(stage, where);
      if (stage.optimizer_share < 0)
        add("{}: optimizer_share = {}; it is 0 or more", where, stage.optimizer_share);
      if (s >= groups)
        check_interleaved(stage, pipeline.stages[s - groups], s - groups, where);
      else
        check_devices(stage, where);
    }
    if (pipeline.stages.empty())
      add("pipeline {} has no stage", p + 1);
    else if (next != subject_.layers)
      add("pipeline {}: its stages hold {} layers, the model has {}{}", p + 1, next, subject_.layers,
          parts_of(subject_.names));
  }

  Shares shares_of(const Stage& stage) const {
    return plan_.tensor < 1 ? stage.shares : tensor_shares(plan_, stage);
  }

  static std::string counted(size_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  }
  // "1 share", "3 equal shares", "3 shares, { 3, 1, 1 }"
  static std::string show_count(const Shares& shares) {
    if (shares.size() == 1) return "1 share";
    const bool are_equal =
        std::all_of(shares.begin(), shares.end(), [&](int64_t share) { return share == shares[0]; });
    return are_equal ? fmt::format("{} equal shares", shares.size())
                     : fmt::format("{} shares, {}", shares.size(), show_shares(shares));
  }

  // How the devices of a stage share its layers.
  void check_cut(const Stage& stage, const std::string& where) {
    const Shares shares = shares_of(stage);
    const StageSharding* mesh = mesh_of(plan_, stage);
    if (mesh != nullptr) check_mesh(*mesh, stage, where, problems_);
    if (mesh == nullptr && !shares.empty() && stage.devices.size() != shares.size())
      add("{}: {} for {}; each device of a stage has one share", where,
          counted(stage.devices.size(), "device"),
          plan_.shares.empty() && stage.shares.empty() ? fmt::format("tensor = {}", shares.size())
                                                       : show_count(shares));
    const bool are_all_0 = is_all_0(stage.shares);
    if (are_all_0)
      add("{}: tensor = {}: shares are all 0; each is at least 1", where, show_shares(stage.shares));
    for (size_t r = 0; r < stage.shares.size() && r < stage.devices.size(); ++r)
      if (stage.shares[r] < 1 && !are_all_0)
        add("{}: share {} leaves {} idle; leave it out of the stage", where, stage.shares[r],
            stage.devices[r]);
    if (stage.sharding && shares.size() == 1)
      add("{}: sharding says how layers are cut, and it has one device; remove it", where);
    if (plan_.sequence && shares.size() > 1 && !has_megatron_axis(cut_of(plan_, stage)))
      add("{}: sequence = true divides Megatron's activations; where `sharding` says how layers are cut, "
          "remove it",
          where);
  }

  // A later stage on devices that have one already: it is cut as that one.
  void check_interleaved(const Stage& stage, const Stage& first, size_t number, const std::string& where) {
    if (stage.devices != first.devices)
      add("{}: interleaved, it runs on the devices of stage {}", where, number + 1);
    else if (shares_of(stage) != tensor_shares(plan_, first))
      add("{}: interleaved, it has the shares of stage {}", where, number + 1);
    else if (cut_of(plan_, stage) != cut_of(plan_, first))
      add("{}: interleaved, it has the sharding of stage {}", where, number + 1);
  }

  void check_devices(const Stage& stage, const std::string& where) {
    for (const std::string& device : stage.devices) {
      const auto [entry, added] = used_.emplace(device, where);
      if (!added) add("{}: device {} is already used by {}", where, device, entry->second);
    }
  }

  void check_whole() {
    const auto takes_sharding = [](const Pipeline& pipeline) {
      return std::any_of(pipeline.stages.begin(), pipeline.stages.end(),
                         [](const Stage& stage) { return !stage.sharding && stage.devices.size() > 1; });
    };
    if (plan_.sharding && std::none_of(plan_.pipelines.begin(), plan_.pipelines.end(), takes_sharding))
      add("sharding says how layers are cut, and no stage without a `sharding` has several devices; remove "
          "it");
    if (plan_.sharded_optimizer) check_shares(plan_, subject_.layers, problems_);
    if (samples_ != subject_.batch && !plan_.pipelines.empty())
      add("the pipelines run {} samples in a step (micro-batches times microbatch), the batch is {}",
          samples_, subject_.batch);
  }

  const Plan& plan_;
  const PlanSubject& subject_;
  std::vector<std::string> problems_;
  std::map<std::string, std::string> used_;  // by device, the stage that uses it
  int64_t samples_ = 0;                      // of a step
};

}  // namespace

std::vector<std::string> validate(const Plan& plan, const PlanSubject& subject) {
  return Validator(plan, subject).run();
}

namespace {

constexpr size_t kLineWidth = 110;  // characters of a line of Lua

// As Lua reads it back.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string show_cut(const AxisSharding::Cut& cut) {
  if (cut.dim < 0) return quoted("replicated");
  if (cut.segments.empty()) return fmt::format("{}", cut.dim);
  return fmt::format("{{ dim = {}, segments = {{ {} }} }}", cut.dim, fmt::join(cut.segments, ", "));
}

// Of one axis each pattern has an entry; of a mesh it has one for each axis: { data = 0, model = 1 }.
std::string to_lua(const StageSharding& sharding) {
  std::string text;
  if (sharding.has_mesh()) text = " mesh = " + show_mesh(sharding.axes);
  const auto add = [&](const char* name, auto entries_of, const auto& show) {
    std::map<std::string, std::vector<std::string>> entries;  // by pattern
    for (const StageAxis& axis : sharding.axes)
      if (axis.sharding)
        for (const auto& entry : (*axis.sharding).*entries_of)
          entries[entry.pattern].push_back(
              sharding.has_mesh() ? fmt::format("{} = {}", axis.name, show(entry)) : show(entry));
    if (entries.empty()) return;
    std::vector<std::string> shown;
    for (const auto& [pattern, of_axes] : entries)
      shown.push_back(sharding.has_mesh()
                          ? fmt::format("[{}] = {{ {} }}", quoted(pattern), fmt::join(of_axes, ", "))
                          : fmt::format("[{}] = {}", quoted(pattern), of_axes[0]));
    text += fmt::format("{}{} = {{ {} }}", text.empty() ? " " : ", ", name, fmt::join(shown, ", "));
  };
  add("state", &AxisSharding::state, show_cut);
  add("inputs", &AxisSharding::inputs, show_cut);
  add("nodes", &AxisSharding::nodes, [](const AxisSharding::Rule& rule) { return quoted(rule.rule); });
  return text.empty() ? "{}" : "{" + text + " }";
}

std::string to_lua(const Stage& stage, bool sharded_optimizer) {
  std::string text = "het.stage { ";
  for (const std::string& device : stage.devices) text += fmt::format("\"{}\", ", device);
  if (!stage.shares.empty()) text += fmt::format("tensor = {}, ", show_shares(stage.shares));
  if (stage.sharding) text += fmt::format("sharding = {}, ", to_lua(*stage.sharding));
  text += fmt::format("layers = {}{}", stage.layers, stage.recompute ? ", recompute = true" : "");
  if (sharded_optimizer && stage.optimizer_share != 1)
    text += fmt::format(", optimizer_share = {}", stage.optimizer_share);
  return text + " }";
}

}  // namespace

std::string to_lua(const Plan& plan) {
  const bool has_mesh = plan.sharding && plan.sharding->has_mesh();  // which says what `tensor` would
  std::string text = has_mesh ? fmt::format("het.plan {{ microbatch = {},", plan.microbatch)
                              : fmt::format("het.plan {{ tensor = {}, microbatch = {},",
                                            show_shares(tensor_shares(plan)), plan.microbatch);
  if (plan.schedule != Schedule::one_f_one_b)
    text += fmt::format(" schedule = \"{}\",", name_of(plan.schedule));
  if (plan.chunks != 1) text += fmt::format(" chunks = {},", plan.chunks);
  if (plan.sequence) text += " sequence = true,";
  if (plan.warmup != 0) text += fmt::format(" warmup = {},", plan.warmup);
  if (plan.sharded_optimizer) text += " sharded_optimizer = true,";
  if (plan.unlike_devices) text += " unlike_devices = true,";
  if (plan.sharding) text += fmt::format("\n  sharding = {},", to_lua(*plan.sharding));
  text += '\n';
  for (const Pipeline& pipeline : plan.pipelines) {
    std::string line = fmt::format("  het.pipeline {{ microbatches = {},", pipeline.microbatches);
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      const std::string stage = to_lua(pipeline.stages[s], plan.sharded_optimizer);
      const char* end = s + 1 < pipeline.stages.size() ? "," : " },";
      if (line.size() + 1 + stage.size() + std::strlen(end) > kLineWidth) {
        text += line + '\n';
        line = "   ";
      }
      line += " " + stage + end;
    }
    text += line + '\n';
  }
  return text + "}";
}

}  // namespace het
