#include "planner/profile/measure.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <set>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/base/median.h"
#include "core/graph/fuse.h"
#include "core/ops/elementwise.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "planner/lower/lower.h"
#include "planner/megatron/sharding.h"
#include "planner/profile/eviction.h"
#include "planner/profile/layer_extractor.h"

namespace het::planner {
namespace {

using Clock = std::chrono::steady_clock;

bool is_cut(const BufferSpec& buffer) { return buffer.name.starts_with(kCut); }

// What comes before the first micro-batch: copies of parameters in a lower precision.
bool made_once(const Program& program, size_t i) {
  const auto& own = std::get<Compute>(program.instructions[i]);
  return static_cast<int>(i) < program.prologue || (own.phase != Phase::update && own.microbatch < 0);
}

template <typename Visit>
void each_buffer(const std::vector<Operand>& operands, const Visit& visit) {
  for (const Operand& operand : operands)
    if (operand.buffer != kAbsent) visit(operand.buffer);
}

bool any_buffer(const std::vector<Operand>& operands, const std::vector<bool>& marked) {
  return std::any_of(operands.begin(), operands.end(), [&](const Operand& operand) {
    return operand.buffer != kAbsent && marked[static_cast<size_t>(operand.buffer)];
  });
}

// Finds what the instructions of a program are by following its buffers backwards.
class Reader {
 public:
  explicit Reader(const Program& program) : program_(program), shares_(program.instructions.size()) {
    HET_REQUIRE(program.microbatches == 1, program.microbatches);
  }

  std::vector<Share> run() {
    find_layers();
    split_backward();
    find_recomputed();
    return std::move(shares_);
  }

 private:
  const Compute& compute(size_t i) const { return std::get<Compute>(program_.instructions[i]); }
  const BufferSpec& spec(BufferId buffer) const { return program_.buffers[static_cast<size_t>(buffer)]; }

  // What stands outside all layers counts for the one whose results it follows.
  void find_layers() {
    int layer = -1;
    for (size_t i = 0; i < shares_.size(); ++i) {
      const Compute& own = compute(i);
      if (own.layer >= 0) layer = own.layer;
      shares_[i].layer = layer;
      if (own.op->copies_operand && !own.op->casts && is_cut(spec(own.outputs[0].buffer))) continue;
      if (made_once(program_, i) || own.phase == Phase::update)
        shares_[i].part = Part::update;
      else
        shares_[i].part = own.phase == Phase::forward ? Part::forward : Part::weight;
    }
    for (size_t i = shares_.size(); i-- > 0;)
      if (shares_[i].layer < 0)
        shares_[i].layer = layer = std::max(layer, 0);
      else
        layer = shares_[i].layer;
  }

  // Of the backward pass, what another layer waits for is the gradient of the input.
  void split_backward() {
    std::vector<int> maker(program_.buffers.size(), -1);  // the layer whose backward pass writes it
    std::vector<bool> wanted(program_.buffers.size());
    for (size_t i = 0; i < shares_.size(); ++i) {
      const Compute& own = compute(i);
      const Share& share = shares_[i];
      if (share.part != Part::weight && share.part != Part::apart) continue;
      const bool sums = own.op->adds_operands || adds_in_place(own);
      each_buffer(own.inputs, [&](BufferId buffer) {
        const int made = maker[static_cast<size_t>(buffer)];
        if (made >= 0 && (share.part == Part::apart || (made != share.layer && !sums)))
          wanted[static_cast<size_t>(buffer)] = true;
      });
      if (share.part == Part::weight)
        each_buffer(own.outputs, [&](BufferId buffer) {
          maker[static_cast<size_t>(buffer)] = share.layer;
          if (is_cut(spec(buffer))) wanted[static_cast<size_t>(buffer)] = true;
        });
    }
    for (size_t i = shares_.size(); i-- > 0;) {
      if (shares_[i].part != Part::weight || !any_buffer(compute(i).outputs, wanted)) continue;
      shares_[i].part = Part::input;
      each_buffer(compute(i).inputs, [&](BufferId buffer) { wanted[static_cast<size_t>(buffer)] = true; });
    }
  }

  // A sum over micro-batches that could not be written where it belongs.
  static bool adds_in_place(const Compute& own) {
    return single_step(*own.op, own.attributes) == Pointwise::add &&
           own.inputs[0].buffer == own.outputs[0].buffer;
  }

  // Of the forward pass, what the backward pass reads, and what makes that. What another layer reads, and
  // results of the step, are kept.
  void find_recomputed() {
    std::vector<int> maker(program_.buffers.size(), -1);  // the layer whose forward pass writes it
    std::vector<bool> kept(program_.buffers.size()), wanted(program_.buffers.size());
    for (size_t b = 0; b < kept.size(); ++b) kept[b] = program_.buffers[b].home == Home::output;
    for (size_t i = 0; i < shares_.size(); ++i) {
      const Share& share = shares_[i];
      if (share.part == Part::update) continue;
      each_buffer(compute(i).inputs, [&](BufferId buffer) {
        const int made = maker[static_cast<size_t>(buffer)];
        if (made >= 0 && (share.part == Part::apart || made != share.layer))
          kept[static_cast<size_t>(buffer)] = true;
      });
      if (share.part == Part::forward)
        each_buffer(compute(i).outputs,
                    [&](BufferId buffer) { maker[static_cast<size_t>(buffer)] = share.layer; });
    }
    for (size_t i = shares_.size(); i-- > 0;) {
      const Compute& own = compute(i);
      const Part part = shares_[i].part;
      if (part == Part::forward)
        shares_[i].again = any_buffer(own.outputs, wanted) && !any_buffer(own.outputs, kept);
      if (part == Part::input || part == Part::weight || shares_[i].again)
        each_buffer(own.inputs, [&](BufferId buffer) { wanted[static_cast<size_t>(buffer)] = true; });
    }
  }

  const Program& program_;
  std::vector<Share> shares_;
};

// The layers that read each buffer in forward and backward; of masters, through their copies.
std::vector<std::set<int>> readers_of(const Program& program, const std::vector<Share>& shares) {
  std::vector<std::set<int>> readers(program.buffers.size());
  for (size_t i = shares.size(); i-- > 0;) {
    const auto& own = std::get<Compute>(program.instructions[i]);
    const bool once = made_once(program, i);
    if (!once && (shares[i].part == Part::update || shares[i].part == Part::apart)) continue;
    std::set<int> layers;
    if (!once) layers.insert(shares[i].layer);
    if (once)
      each_buffer(own.outputs, [&](BufferId buffer) {
        const auto& of = readers[static_cast<size_t>(buffer)];
        layers.insert(of.begin(), of.end());
      });
    each_buffer(own.inputs, [&](BufferId buffer) {
      readers[static_cast<size_t>(buffer)].insert(layers.begin(), layers.end());
    });
  }
  return readers;
}

// A parameter that an instruction of the update changes, and the operands that this takes.
struct Update {
  BufferId parameter;
  std::vector<Operand> operands;
};
std::vector<Update> updates_of(const Program& program, const Compute& compute) {
  std::vector<Update> updates;
  const auto is_parameter = [&](const Operand& operand) {
    return operand.buffer != kAbsent && program.buffers[static_cast<size_t>(operand.buffer)].trained;
  };
  if (const auto [outputs, inputs] = compute.op->in_place_group; outputs > 0) {
    for (size_t o = 0, i = 0; o < compute.outputs.size();
         o += static_cast<size_t>(outputs), i += static_cast<size_t>(inputs))
      if (is_parameter(compute.outputs[o])) {
        const auto first = compute.inputs.begin() + static_cast<std::ptrdiff_t>(i);
        updates.push_back({compute.outputs[o].buffer, {first, first + inputs}});
      }
    return updates;
  }
  const auto found = std::find_if(compute.outputs.begin(), compute.outputs.end(), is_parameter);
  if (found != compute.outputs.end()) updates.push_back({found->buffer, compute.inputs});
  return updates;
}

// Seconds of each instruction given to layers and parts. An update is that of each layer that uses the
// parameter (SharedParameter). Where it is of several parameters, or of all, it is divided by their elements.
class Account {
 public:
  Account(const Program& program, const std::vector<Share>& shares)
      : program_(program), shares_(shares), readers_(readers_of(program, shares)) {
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      if (!program.buffers[b].trained || readers_[b].empty()) continue;
      const auto elements = static_cast<double>(program.buffers[b].type.elements());
      for (const int layer : readers_[b]) elements_[layer] += elements;
      all_elements_ += elements;
    }
  }

  void add(size_t i, double seconds, std::map<int, LayerSeconds>& layers) const {
    const Share& share = shares_[i];
    switch (share.part) {
      case Part::apart: return;
      case Part::forward:
        layers[share.layer].forward += seconds;
        if (share.again) layers[share.layer].recompute += seconds;
        return;
      case Part::input: layers[share.layer].input += seconds; return;
      case Part::weight: layers[share.layer].weight += seconds; return;
      case Part::update: add_update(i, seconds, layers); return;
    }
  }

 private:
  void add_update(size_t i, double seconds, std::map<int, LayerSeconds>& layers) const {
    const auto& own = std::get<Compute>(program_.instructions[i]);
    std::vector<size_t> parameters;
    for (const Update& update : updates_of(program_, own))
      parameters.push_back(static_cast<size_t>(update.parameter));
    if (made_once(program_, i))
      each_buffer(own.inputs, [&](BufferId buffer) {
        const auto b = static_cast<size_t>(buffer);
        if (program_.buffers[b].trained) parameters = {b};
      });
    const auto elements = [&](size_t b) { return static_cast<double>(program_.buffers[b].type.elements()); };
    double all = 0;
    for (const size_t b : parameters) all += elements(b);
    if (all > 0) {
      for (const size_t b : parameters)
        for (const int layer : readers_[b]) layers[layer].update += seconds * elements(b) / all;
    } else if (all_elements_ > 0) {
      for (const auto& [layer, count] : elements_) layers[layer].update += seconds * count / all_elements_;
    }
  }

  const Program& program_;
  const std::vector<Share>& shares_;
  std::vector<std::set<int>> readers_;
  std::map<int, double> elements_;  // of a layer's parameters
  double all_elements_ = 0;         // each once
};

void write_inputs(Executor& executor, const std::map<std::string, Tensor>& inputs) {
  std::set<std::string> written;
  for (const BufferSpec& buffer : executor.program().buffers) {
    if (buffer.home != Home::input || !written.insert(buffer.name).second) continue;
    if (const auto found = inputs.find(buffer.name); found != inputs.end())
      executor.write(buffer.name, found->second);
    else if (is_float(buffer.type.dtype))
      executor.write(buffer.name, initial_tensor(buffer.name, {DType::f32, buffer.type.shape},
                                                 {Initial::Kind::normal, 1}, 0));
    else
      executor.write(buffer.name, Tensor::zeros(buffer.type));
  }
}

// Median seconds of each instruction; nothing when stopped. A GPU's kernels are repeated for a while each:
// what lies between two that are launched one by one would be most of a short one's time.
std::vector<double> time_instructions(Executor& executor, const MeasureOptions& options, Eviction& eviction,
                                      int& runs) {
  constexpr double kSpell = 0.25e-3;  // seconds
  std::vector<std::vector<double>> samples(executor.program().instructions.size());
  executor.run();  // the first touch of all memory
  const Executor::Repeats repeats = executor.repeats_for(kSpell);
  const auto begin = Clock::now();
  for (runs = 0; runs < options.most_runs; ++runs) {
    if (runs >= options.least_runs && seconds_since(begin) > options.seconds) break;
    if (options.stop && options.stop()) return {};
    const auto spans = executor.run_timed(repeats, std::ref(eviction));
    for (size_t i = 0; i < spans.size(); ++i) samples[i].push_back(spans[i].end - spans[i].begin);
  }
  std::vector<double> seconds;
  seconds.reserve(samples.size());
  double mean = 0, medians = 0;
  for (std::vector<double>& of : samples) {
    mean += std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(of.size());
    seconds.push_back(median(std::move(of)));
    medians += seconds.back();
  }
  const double factor = turns(mean, medians, options.sharing);
  for (double& of : seconds) of *= factor;
  return seconds;
}

}  // namespace

double turns(double mean, double medians, double sharing) {
  return medians > 0 ? std::clamp(mean / medians, 1.0, std::max(sharing, 1.0)) : 1;
}

std::vector<Share> shares_of(const Program& program) { return Reader(program).run(); }

std::vector<LayerMemory> memory_by_layer(const Program& program) {
  const std::vector<Share> shares = shares_of(program);
  const auto readers = readers_of(program, shares);
  std::vector<LayerMemory> layers(program.layers.size());
  const auto at = [&](int layer) -> LayerMemory& { return layers[static_cast<size_t>(layer)]; };
  const auto bytes = [&](BufferId buffer) {
    return static_cast<double>(program.buffers[static_cast<size_t>(buffer)].type.bytes());
  };
  std::vector<int> maker(program.buffers.size(), -1);  // the layer whose forward pass touches it first
  std::vector<bool> touched(program.buffers.size()), weights(program.buffers.size());
  for (size_t b = 0; b < program.buffers.size(); ++b) weights[b] = program.buffers[b].trained;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto& own = std::get<Compute>(program.instructions[i]);
    if (made_once(program, i) && any_buffer(own.inputs, weights))
      each_buffer(own.outputs, [&](BufferId buffer) { weights[static_cast<size_t>(buffer)] = true; });
  }
  std::vector<std::set<int>> used(program.buffers.size());  // in the backward pass
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto& own = std::get<Compute>(program.instructions[i]);
    const Share& share = shares[i];
    const auto touch = [&](BufferId buffer) {
      const auto b = static_cast<size_t>(buffer);
      if (!touched[b] && share.part == Part::forward) maker[b] = share.layer;
      touched[b] = true;
    };
    each_buffer(own.inputs, touch);
    each_buffer(own.outputs, touch);
    if (share.part == Part::input || share.part == Part::weight)
      each_buffer(own.inputs,
                  [&](BufferId buffer) { used[static_cast<size_t>(buffer)].insert(share.layer); });
    if (share.part != Part::update) continue;
    for (const Update& update : updates_of(program, own))
      for (const int layer : readers[static_cast<size_t>(update.parameter)])
        each_buffer(update.operands, [&](BufferId buffer) {
          const BufferSpec& spec = program.buffers[static_cast<size_t>(buffer)];
          if (spec.home == Home::state && !spec.trained) at(layer).optimizer += bytes(buffer);
          if (spec.home != Home::state && spec.type.shape == program.buffers[update.parameter].type.shape)
            at(layer).gradients += bytes(buffer);
        });
  }
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const BufferSpec& spec = program.buffers[b];
    const auto buffer = static_cast<BufferId>(b);
    if (weights[b])
      for (const int layer : readers[b]) at(layer).weights += bytes(buffer);
    const bool scratch = spec.home == Home::arena || is_cut(spec);
    if (scratch && maker[b] >= 0 && !used[b].empty())
      at(used[b].count(maker[b]) != 0 ? maker[b] : *used[b].begin()).activations += bytes(buffer);
  }
  return layers;
}

Measured measure_layers(const Graph& graph, const Model& model, const std::shared_ptr<Device>& device,
                        const std::map<std::string, Tensor>& inputs, const MeasureOptions& options) {
  if (model.layers.size() != graph.layers.size())
    fail_usage("the graph of a sample has {} layers, that of a micro-batch {}", model.layers.size(),
               graph.layers.size());
  const Graph own = tensor_parallel(graph, Shares(static_cast<size_t>(options.tensor), 1), 0);
  // The whole model shows what its layers keep; nothing of it is allocated.
  const Program whole = lower_single(fuse(extract_layers(own, std::vector<bool>(own.layers.size(), true))));
  const std::vector<LayerMemory> memory = memory_by_layer(whole);

  std::vector<bool> asked(model.kinds.size(), options.kinds.empty());
  for (const std::string& name : options.kinds) {
    const auto kind = std::find_if(model.kinds.begin(), model.kinds.end(),
                                   [&](const LayerKind& each) { return each.name == name; });
    if (kind == model.kinds.end()) fail_usage("the model has no layer kind \"{}\"", name);
    asked[static_cast<size_t>(kind - model.kinds.begin())] = true;
  }
  std::vector<int> first(model.kinds.size(), -1);  // the layer that is measured for each kind
  std::vector<bool> keep(own.layers.size());
  for (size_t layer = 0; layer < model.layers.size(); ++layer) {
    if (!asked[static_cast<size_t>(model.layers[layer])]) continue;
    int& found = first[static_cast<size_t>(model.layers[layer])];
    if (found < 0) {
      found = static_cast<int>(layer);
      keep[layer] = true;
    }
  }
  Executor executor(lower_single(fuse(extract_layers(own, keep))), std::make_shared<StateStore>(device, 0));
  write_inputs(executor, inputs);
  Measured measured;
  const std::vector<Share> shares = shares_of(executor.program());
  Eviction eviction(shares, memory);
  const std::vector<double> seconds = time_instructions(executor, options, eviction, measured.runs);
  if (seconds.empty()) return measured;

  const Account account(executor.program(), shares);
  std::map<int, LayerSeconds> layers;
  for (size_t i = 0; i < seconds.size(); ++i) {
    account.add(i, seconds[i], layers);
    if (shares[i].part != Part::apart) measured.seconds += seconds[i];
  }
  for (size_t kind = 0; kind < model.kinds.size(); ++kind) {
    if (!asked[kind]) continue;
    const LayerSeconds& of = layers[first[kind]];
    ProfilePoint point{model.kinds[kind].name,
                       options.type,
                       options.tensor,
                       options.microbatch,
                       of.forward,
                       of.input,
                       of.weight,
                       of.update};
    point.recompute = of.recompute;
    point.collectives = options.tensor == 1;
    const LayerMemory& kept = memory[static_cast<size_t>(first[kind])];
    point.weight_bytes = kept.weights;
    point.gradient_bytes = kept.gradients;
    point.optimizer_bytes = kept.optimizer;
    point.activation_bytes = kept.activations;
    measured.points.push_back(std::move(point));
  }
  return measured;
}

}  // namespace het::planner
