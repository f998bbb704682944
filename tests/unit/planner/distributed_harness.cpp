#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/comm/loopback.h"
#include "core/graph/fuse.h"
#include "core/io/safetensors.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "kernels/cpu/device.h"
#include "planner/megatron/sharding.h"
#include "tests/emulated_cuda/reference_on_gpu.h"
#include "tests/unit/core/testing.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/planner/distributed.h"
#include "tests/unit/planner/random_plan.h"

namespace het::testing::distributed {

// A GPT with dropout and tied weights, trained by AdamW under a global norm; or, with `llama`, RMS norms,
// norms of each query and key, rotary positions,
// grouped queries, SwiGLU and an untied classifier with a bias. One layer for the embedding, one for
// each block, one for the head. With `penalty` the loss counts the squares of what enters the head, too.
Graph small_model(bool llama, DType dtype, bool penalty) {
  Graph graph;
  GraphBuilder b(graph);
  const auto real = [&](Shape shape) { return TensorType{dtype, std::move(shape)}; };
  const auto weight = [&](const std::string& name, Shape shape) {
    return b.parameter(name, real(std::move(shape)), {Initial::Kind::normal, 0.2});
  };
  const auto linear = [&](const std::string& name, ValueId x, int64_t in, int64_t out) {
    std::vector<ValueId> inputs{x, weight(name + ".weight", {out, in})};
    if (!llama) inputs.push_back(weight(name + ".bias", {out}));
    return b.call("linear", inputs);
  };
  const auto norm = [&](const std::string& name, ValueId x) {
    const ValueId gain = b.parameter(name + ".weight", real({kWidth}), {Initial::Kind::ones});
    if (llama) return b.call("rms_norm", {x, gain}, {{"eps", 1e-5}});
    const ValueId shift = b.parameter(name + ".bias", real({kWidth}), {});
    return b.call("layer_norm", {x, gain, shift}, {{"eps", 1e-5}});
  };
  const ValueId tokens = b.input("tokens", {DType::i32, {kSamples, kContext}});
  const ValueId labels = b.input("labels", {DType::i32, {kSamples, kContext}});
  const ValueId counter = b.input("counter", {DType::i64, {2}});
  const ValueId scale = b.input("scale", real({1}), true);
  const ValueId positions = b.input("order", {DType::i32, {kContext}}, true);
  const auto dropout = [&](const std::string& name, ValueId x) {
    if (llama) return x;
    return b.call("dropout", {x, counter},
                  {{"p", 0.2}, {"seed", int64_t{7}}, {"stream", static_cast<int64_t>(hash_of(name) >> 1)}});
  };

  b.begin_layer("embedding");
  const int64_t vocabulary = llama ? kLlamaVocabulary : kVocabulary;
  const ValueId table = weight("embedding.weight", {vocabulary, kWidth});
  ValueId x = b.call("embedding", {tokens, table});
  if (!llama) x = dropout("first", b.call("add", {x, weight("positions", {kContext, kWidth})}));
  const int64_t size = kWidth / kHeads, kv_heads = llama ? kHeads / 2 : kHeads;
  for (int block = 0; block < kBlocks; ++block) {
    const std::string name = fmt::format("blocks.{}", block);
    b.begin_layer(name);
    ValueId h = norm(name + ".norm1", x);
    const auto parts = b.call_all(
        op_named("split"), {linear(name + ".qkv", h, kWidth, kWidth + 2 * kv_heads * size)},
        {{"dim", int64_t{2}}, {"sizes", std::vector<int64_t>{kWidth, kv_heads * size, kv_heads * size}}});
    const auto heads = [&](ValueId part, int64_t count) {
      return b.call("reshape", {part}, {{"shape", std::vector<int64_t>{kSamples, kContext, count, size}}});
    };
    ValueId q = heads(parts[0], kHeads), k = heads(parts[1], kv_heads);
    if (llama) {
      const auto turned = [&](const char* which, ValueId x) {
        const ValueId gain = b.parameter(name + which, real({size}), {Initial::Kind::ones});
        return b.call("rotary", {b.call("rms_norm", {x, gain}), positions});
      };
      q = turned(".q_norm", q);
      k = turned(".k_norm", k);
    }
    h = b.call("attention", {q, k, heads(parts[2], kv_heads)}, {{"causal", true}});
    h = b.call("reshape", {h}, {{"shape", std::vector<int64_t>{kSamples, kContext, kWidth}}});
    x = b.call("add", {x, dropout(name + ".1", linear(name + ".out", h, kWidth, kWidth))});
    h = norm(name + ".norm2", x);
    if (llama)
      h = b.call("mul", {b.call("silu", {linear(name + ".gate", h, kWidth, 24)}),
                         linear(name + ".up", h, kWidth, 24)});
    else
      h = b.call("gelu", {linear(name + ".up", h, kWidth, 24)});
    x = b.call("add", {x, dropout(name + ".2", linear(name + ".down", h, 24, kWidth))});
  }
  b.begin_layer("head");
  const ValueId classifier = llama ? weight("head.weight", {vocabulary, kWidth}) : table;
  const ValueId bias = llama ? weight("head.bias", {vocabulary}) : kAbsent;
  ValueId loss = b.call("linear_cross_entropy", {norm("norm", x), classifier, bias, labels, scale});
  if (penalty)
    loss = b.call("add",
                  {loss, b.call("sum", {b.call("mul", {x, x})}, {{"dims", std::vector<int64_t>{0, 1, 2}}})});
  b.output("loss", loss);
  train_by_adamw(b, loss, kEps);
  return graph;
}

// Projections and activations alone, without norms and residuals: what row-parallel products leave as
// summands is all that passes from layer to layer.
Graph bare_model() {
  Graph graph;
  GraphBuilder b(graph);
  const auto weight = [&](const std::string& name, Shape shape) {
    return b.parameter(name, {DType::f64, std::move(shape)}, {Initial::Kind::normal, 0.4});
  };
  const ValueId tokens = b.input("tokens", {DType::i32, {kSamples, kContext}});
  const ValueId labels = b.input("labels", {DType::i32, {kSamples, kContext}});
  const ValueId scale = b.input("scale", {DType::f64, {1}}, true);
  b.input("counter", {DType::i64, {2}});
  b.input("order", {DType::i32, {kContext}}, true);
  b.begin_layer("embedding");
  ValueId x = b.call("embedding", {tokens, weight("table", {kVocabulary, kWidth})});
  x = b.call("add", {x, weight("positions", {kContext, kWidth})});
  for (int block = 0; block < kBlocks; ++block) {
    const std::string name = fmt::format("blocks.{}", block);
    b.begin_layer(name);
    x = b.call("linear", {x, weight(name + ".up", {24, kWidth}), weight(name + ".bias", {24})});
    x = b.call("linear", {b.call("gelu", {x}), weight(name + ".down", {kWidth, 24})});
  }
  b.begin_layer("head");
  const ValueId loss =
      b.call("linear_cross_entropy", {x, weight("head", {kVocabulary, kWidth}), kAbsent, labels, scale});
  b.output("loss", loss);
  train_by_adamw(b, loss, kEps);
  return graph;
}

// The same, computing with copies of its matrices that are rounded stochastically in each step. Gradients
// pass to the master weights as they are, in f64: only draws that differ can make more than rounding errors.
Graph with_rounded_copies(Graph graph) {
  std::vector<Node> nodes;
  const auto call = [&](const char* op, std::vector<ValueId> inputs, Attributes attributes, DType dtype) {
    Node node;
    node.op = &op_named(op);
    node.attributes = std::move(attributes);
    Value& value = graph.values.emplace_back();
    value.type = {dtype, graph.type(inputs[0]).shape};
    node.inputs = std::move(inputs);
    node.outputs = {static_cast<ValueId>(graph.values.size()) - 1};
    nodes.push_back(std::move(node));
    return nodes.back().outputs[0];
  };
  std::map<ValueId, ValueId> copies;
  const ValueId step = *graph.find("step");
  for (size_t i = 0, given = graph.values.size(); i < given; ++i) {
    const auto id = static_cast<ValueId>(i);
    if (graph.values[i].role != Role::parameter || graph.type(id).shape.size() < 2) continue;
    const auto stream = static_cast<int64_t>(hash_of(graph.values[i].name) >> 1);
    const ValueId narrow = call("cast", {id}, {{"dtype", std::string("f32")}}, DType::f32);
    const ValueId rounded =
        call("stochastic_cast", {narrow, step}, {{"seed", int64_t{7}}, {"stream", stream}}, DType::bf16);
    copies[id] = call("cast", {rounded}, {{"dtype", std::string("f64")}}, DType::f64);
  }
  for (Node& node : graph.nodes) {
    if (node.phase != Phase::update)
      for (ValueId& id : node.inputs)
        if (const auto copy = copies.find(id); copy != copies.end()) id = copy->second;
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (size_t o = 0; o < graph.nodes[n].outputs.size(); ++o)
      if (const ValueId id = graph.nodes[n].outputs[o]; id != kAbsent) {
        graph.values[id].producer = static_cast<NodeId>(n);
        graph.values[id].output = static_cast<int>(o);
      }
  return graph;
}

// Micro-batch `m` of the step's, whichever rank runs it.
Tensor tokens_of(int step, int m, int what) {
  Tensor tensor({DType::i32, {kSamples, kContext}});
  std::mt19937 random(static_cast<unsigned>(1000 * step + 10 * m + what));
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, static_cast<double>(random() % kVocabulary));
  if (what == 1 && m % 2 == 1) tensor.set(3, -100);
  return tensor;
}

void write_inputs(Executor& executor, int step, int microbatches) {
  const auto& buffers = executor.program().buffers;
  const DType dtype = std::find_if(buffers.begin(), buffers.end(), [](const BufferSpec& buffer) {
                        return buffer.name == "lr";
                      })->type.dtype;
  const auto scalar = [](DType dtype, Shape shape, std::initializer_list<double> values) {
    Tensor tensor({dtype, std::move(shape)});
    int64_t i = 0;
    for (const double value : values) tensor.set(i++, value);
    return tensor;
  };
  const int first = executor.program().first_microbatch;
  for (int m = 0; m < executor.program().microbatches; ++m) {
    executor.write("tokens", tokens_of(step, first + m, 0), m);
    executor.write("labels", tokens_of(step, first + m, 1), m);
    executor.write(
        "counter",
        scalar(DType::i64, {2}, {static_cast<double>(step), static_cast<double>((first + m) * kSamples)}), m);
  }
  executor.write("scale",
                 scalar(dtype, {1}, {1.0 / static_cast<double>(microbatches * kSamples * kContext)}));
  executor.write("order", scalar(DType::i32, {kContext}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  executor.write("lr", scalar(dtype, {}, {1e-2}));
  executor.write("step", scalar(DType::i64, {}, {static_cast<double>(step)}));
}

Outcome train(Executor& executor, int microbatches) {
  Outcome outcome;
  for (int step = 1; step <= kSteps; ++step) {
    write_inputs(executor, step, microbatches);
    executor.run();
    outcome.losses.push_back(executor.read("loss").at(0));
    outcome.norms.push_back(executor.read("norm").at(0));
  }
  for (const auto& [name, entry] : executor.state().entries()) {
    (entry.trained ? outcome.parameters : outcome.moments).emplace(name, executor.state().read(name));
    if (entry.slice) outcome.slices.emplace(name, *entry.slice);
  }
  return outcome;
}

Outcome alone(const Graph& graph, int microbatches) {
  Executor executor(lower_single(fuse(graph), microbatches), reference_state(3));
  return train(executor, microbatches);
}

int microbatches_of(const Plan& plan) {
  int count = 0;
  for (const Pipeline& pipeline : plan.pipelines) count += pipeline.microbatches;
  return count;
}

std::shared_ptr<Device> device_of(On on, int rank) {
  if (on == On::instruction_sets) {
    const std::vector<std::string> sets = cpu_instruction_sets();
    return make_cpu_device(rank % 2 == 0 ? sets.front() : sets.back());
  }
  const bool gpu = on == On::gpus || (on == On::either && rank % 3 != 2);
  return gpu ? cuda_emulated::make_reference_on_gpu(rank) : make_reference_device();
}

std::vector<std::string> on_ranks(std::vector<Program> programs, std::chrono::seconds timeout,
                                  const std::function<void(int rank, Executor&)>& work, On on) {
  const int ranks = static_cast<int>(programs.size());
  std::vector<std::string> errors(ranks);
  LoopbackOptions options;
  options.timeouts.timeout = timeout;
  auto fabrics = make_loopback(ranks, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto groups = std::make_shared<Groups>(fabrics[rank]);
        Executor executor(std::move(programs[rank]), std::make_shared<StateStore>(device_of(on, rank), 3),
                          groups);
        work(rank, executor);
        if (on == On::gpus)
          for (const std::string& way : groups->ways())
            HET_REQUIRE(way.find("from device to device by NCCL") != std::string::npos, way);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        fabrics[rank]->abort(error.what());
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

// What each rank has in the end, or the error that it ended with.
std::vector<Outcome> together(std::vector<Program> programs, int microbatches,
                              std::vector<std::string>& errors, On on) {
  std::vector<Outcome> outcomes(programs.size());
  const auto work = [&](int rank, Executor& executor) { outcomes[rank] = train(executor, microbatches); };
  errors = on_ranks(std::move(programs), std::chrono::seconds(60), work, on);
  return outcomes;
}

// The largest difference, relative to the largest value; infinite where there is nothing to compare with. Of
// moments half of it: the second is a square, whose relative error is twice its root's.
double difference(const Outcome& one, const Outcome& several) {
  constexpr double kApart = std::numeric_limits<double>::infinity();
  double worst = 0;
  const auto compare = [&](const std::vector<double>& a, const std::vector<double>& b, double most = 0,
                           double weight = 1) {
    if (a.size() != b.size()) {
      worst = kApart;
      return;
    }
    double apart = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      most = std::max(most, std::abs(a[i]));
      apart = std::max(apart, std::isfinite(b[i]) ? std::abs(a[i] - b[i]) : kApart);
    }
    worst = std::max(worst, weight * apart / std::max(most, 1e-30));
  };
  compare(one.losses, several.losses);
  compare(one.norms, several.norms);
  for (const auto& [name, tensor] : several.parameters) {
    if (one.parameters.count(name) == 0) return kApart;
    const Tensor& whole = one.parameters.at(name);
    const auto slice = several.slices.find(name);
    compare(values_of(slice == several.slices.end() ? whole : take(whole, slice->second)), values_of(tensor));
  }
  for (const auto& [name, tensor] : several.moments) {
    if (one.moments.count(name) == 0) return kApart;
    const Tensor& whole = one.moments.at(name);
    double most = 0;
    for (const double value : values_of(whole)) most = std::max(most, std::abs(value));
    const auto slice = several.slices.find(name);
    compare(values_of(slice == several.slices.end() ? whole : take(whole, slice->second)), values_of(tensor),
            most, 0.5);
  }
  return worst;
}

// Counts a rank's elements of a moment.
void count_elements(const Outcome& outcome, const std::string& name, std::vector<int>& counts) {
  const Tensor& own = outcome.moments.at(name);
  const auto slice = outcome.slices.find(name);
  const TensorSlice of = slice == outcome.slices.end() ? TensorSlice::whole(own.shape()) : slice->second;
  counts.resize(static_cast<size_t>(elements_of(of.whole_shape())));
  each_run(of, TensorSlice::whole(of.whole_shape()), 1, [&](int64_t, int64_t at, int64_t count) {
    for (int64_t i = at; i < at + count; ++i) ++counts[static_cast<size_t>(i)];
  });
}

bool has_hints(const Graph& graph) {
  return std::any_of(graph.values.begin(), graph.values.end(),
                     [](const Value& value) { return !value.hints.empty(); });
}

bool has_sharding(const Plan& plan) {
  bool found = plan.sharding.has_value();
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) found = found || stage.sharding.has_value();
  return found;
}

int most_parts(const Plan& plan) {
  int most = 1;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) most = std::max(most, cut_of(plan, stage).parts());
  return most;
}

Verdict judge(const Graph& model, const Plan& plan, const Outcome& alone, double tolerance, On on,
              const Runtime& runtime) {
  Verdict verdict;
  const auto blame = [&](std::string problem) {
    if (verdict.problem.empty()) verdict.problem = std::move(problem);
  };
  std::vector<std::string> errors;
  std::vector<Program> programs;
  try {
    programs = lower_all(model, plan, true, runtime);
  } catch (const Error& error) {
    blame(error.what());
    return verdict;
  }
  for (size_t rank = 0; rank < programs.size(); ++rank)
    for (const std::string& problem : verify(programs[rank]))
      blame(fmt::format("rank {}: {}", rank, problem));
  for (const std::string& problem : verify_together(programs)) blame(problem);
  if (!verdict.problem.empty()) return verdict;
  const auto outcomes = together(std::move(programs), microbatches_of(plan), errors, on);
  // A rank that lost another says less than that one.
  const auto lost_another = [](const std::string& error) { return error.starts_with("lost rank "); };
  for (const bool consequence : {false, true})
    for (size_t rank = 0; rank < errors.size(); ++rank)
      if (!errors[rank].empty() && lost_another(errors[rank]) == consequence)
        blame(fmt::format("rank {}: {}", rank, errors[rank]));
  if (!verdict.problem.empty()) return verdict;
  std::map<std::string, int> held;
  std::map<std::string, std::vector<int>> kept;  // of each element of a moment: by how many ranks
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const double apart = difference(alone, outcomes[rank]);
    verdict.apart = std::max(verdict.apart, apart);
    if (!(apart < tolerance))
      blame(fmt::format("rank {} is {} from the single device; {} is allowed", rank, apart, tolerance));
    for (const auto& [name, tensor] : outcomes[rank].parameters) ++held[name];
    for (const auto& [name, tensor] : outcomes[rank].moments)
      count_elements(outcomes[rank], name, kept[name]);
  }
  if (held.size() != alone.parameters.size())
    blame(fmt::format("{} of {} parameters are held", held.size(), alone.parameters.size()));
  if (kept.size() != alone.moments.size())
    blame(fmt::format("{} of {} moments are kept", kept.size(), alone.moments.size()));
  // Where a parameter is cut and its gradient a summand, each device keeps the state of what it has.
  const bool is_cut_as_megatron = !has_hints(model) && !has_sharding(plan);
  for (const auto& [name, ranks] : kept) {
    const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
    if (*least == 0) blame(fmt::format("an element of {} is kept by no rank", name));
    if (!plan.sharded_optimizer || *most == 1 || !is_cut_as_megatron) continue;
    // Of a parameter that each device of its stages has whole, devices that get the same gradient keep the
    // same state.
    const std::string parameter = name.substr(0, name.rfind('.'));
    const bool whole = std::none_of(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
      return outcome.slices.count(parameter) != 0;
    });
    if (!whole || *most != *least || *most > most_parts(plan))
      blame(fmt::format("an element of {} is kept by {} ranks", name, *most));
  }
  return verdict;
}

}  // namespace het::testing::distributed
