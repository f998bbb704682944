// Plans do not change results: programs of all ranks of random plans, run by threads, against one device.
#include <array>
#include <catch2/catch.hpp>
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
#include "tests/unit/planner/random_plan.h"

using namespace het;
using namespace het::testing;

namespace {

// GPT's table is smaller than the gradients that it is summed from, LLaMA's larger: each takes its own way.
constexpr int64_t kSamples = 2, kContext = 12, kWidth = 32, kHeads = 8, kVocabulary = 19,
                  kLlamaVocabulary = 29;
// Of AdamW: small gradients are divided by their own size, and so is their rounding error, down to about
// kEps.
constexpr double kEps = 1e-4;
constexpr int kSteps = 5, kBlocks = 4, kLayers = kBlocks + 2;

// A GPT with dropout and tied weights, trained by AdamW under a global norm; or, with `llama`, RMS norms,
// norms of each query and key, rotary positions,
// grouped queries, SwiGLU and an untied classifier with a bias. One layer for the embedding, one for
// each block, one for the head.
Graph small_model(bool llama, DType dtype) {
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
  const ValueId loss = b.call("linear_cross_entropy", {norm("norm", x), classifier, bias, labels, scale});
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

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> parameters, moments;  // optimizer state: what this rank keeps
  std::map<std::string, TensorSlice> slices;          // of those that this rank has a part of
};

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

// Where the reference kernels run; `either`: on every third rank a processor.
enum class On : uint8_t { processors, gpus, either };
std::shared_ptr<Device> device_of(On on, int rank) {
  const bool gpu = on == On::gpus || (on == On::either && rank % 3 != 2);
  return gpu ? cuda_emulated::make_reference_on_gpu(rank) : make_reference_device();
}

// Runs `work` on every rank of the plan, each in a thread of its own; the error that each ended with, or "".
std::vector<std::string> on_ranks(const Graph& graph, const Plan& plan, int ranks,
                                  std::chrono::seconds timeout,
                                  const std::function<void(int rank, Executor&)>& work,
                                  On on = On::processors) {
  std::vector<std::string> errors(ranks);
  LoopbackOptions options;
  options.timeouts.timeout = timeout;
  auto fabrics = make_loopback(ranks, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Program program = lower(graph, plan, rank, true);
        const auto groups = std::make_shared<Groups>(fabrics[rank]);
        Executor executor(std::move(program), std::make_shared<StateStore>(device_of(on, rank), 3), groups);
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
std::vector<Outcome> together(const Graph& graph, const Plan& plan, int ranks,
                              std::vector<std::string>& errors, On on) {
  std::vector<Outcome> outcomes(ranks);
  const auto work = [&](int rank, Executor& executor) {
    outcomes[rank] = train(executor, microbatches_of(plan));
  };
  errors = on_ranks(graph, plan, ranks, std::chrono::seconds(60), work, on);
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

// What is wrong with the run of a plan, and how far it was from one device's.
struct Verdict {
  std::string problem;  // empty: nothing
  double apart = 0;
};

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

Verdict judge(const Graph& model, const Plan& plan, const Outcome& alone, double tolerance,
              On on = On::processors) {
  Verdict verdict;
  const auto blame = [&](std::string problem) {
    if (verdict.problem.empty()) verdict.problem = std::move(problem);
  };
  std::vector<std::string> errors;
  std::vector<Program> programs;
  try {
    for (int rank = 0; rank < devices_in(plan); ++rank) {
      programs.push_back(lower(model, plan, rank, true));
      for (const std::string& problem : verify(programs.back()))
        blame(fmt::format("rank {}: {}", rank, problem));
    }
  } catch (const Error& error) {
    blame(error.what());
    return verdict;
  }
  for (const std::string& problem : verify_together(programs)) blame(problem);
  if (!verdict.problem.empty()) return verdict;
  const auto outcomes = together(model, plan, devices_in(plan), errors, on);
  // A rank that lost another says less than that one.
  const auto lost_another = [](const std::string& error) {
    return error.find(" did not join") != std::string::npos || error.find(" is gone") != std::string::npos;
  };
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

}  // namespace

// How one device trains the models: computed once for each number of micro-batches.
class Alone {
 public:
  explicit Alone(DType dtype) : models_{small_model(false, dtype), small_model(true, dtype)} {}

  const Graph& model(size_t which) const { return models_[which]; }
  const Outcome& outcome(size_t which, const Plan& plan) {
    const int microbatches = microbatches_of(plan);
    const auto [entry, fresh] = known_.emplace(std::pair{which, microbatches}, Outcome{});
    if (fresh) entry->second = alone(models_[which], microbatches);
    return entry->second;
  }

 private:
  Graph models_[2];  // GPT, LLaMA
  std::map<std::pair<size_t, int>, Outcome> known_;
};

int trials_or(int count) {
  const char* given = std::getenv("HETRUN_PLAN_TRIALS");
  return given == nullptr ? count : std::atoi(given);
}

unsigned first_seed() {
  const char* given = std::getenv("HETRUN_PLAN_SEED");
  return given == nullptr ? 1 : static_cast<unsigned>(std::atoi(given));
}

// In f64 nothing but the order of sums may differ; in f32 that alone makes a difference of about 1e-6.
TEST_CASE("random plans train the model that one device trains", "[distributed]") {
  const DType dtype = GENERATE(DType::f64, DType::f32);
  const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
  const int trials = trials_or(40);
  const unsigned first = first_seed();
  Alone one(dtype);
  for (const size_t which : {0U, 1U}) REQUIRE(verify(one.model(which)).empty());
  double worst = 0;
  for (unsigned seed = first; seed < first + static_cast<unsigned>(trials); ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    const size_t which = seed % 2;
    const auto verdict_of = [&](const Plan& tried) {
      return judge(one.model(which), tried, one.outcome(which, tried), tolerance);
    };
    const Verdict verdict = verdict_of(plan);
    worst = std::max(worst, verdict.apart);
    if (verdict.problem.empty()) continue;
    const Plan simplest =
        simplest_failing(plan, [&](const Plan& tried) { return !verdict_of(tried).problem.empty(); });
    FAIL_CHECK("seed " << seed << ", " << (which == 1 ? "LLaMA" : "GPT") << ": " << verdict.problem << "\n"
                       << to_lua(plan) << "\nThe simplest plan that fails: " << verdict_of(simplest).problem
                       << "\n"
                       << to_lua(simplest));
  }
  WARN("largest difference over " << trials << " plans in " << name_of(dtype) << ": " << worst);
}

// Hints on some parameters, dimensions at random: where they cannot hold for four ranks, none.
Graph with_hints(Graph graph, std::mt19937& random) {
  for (Value& value : graph.values) {
    if (value.role != Role::parameter || random() % 3 != 0) continue;
    const auto rank = static_cast<unsigned>(value.type.shape.size());
    value.hints = {{"model", static_cast<int64_t>(random() % (rank + 1)) - 1}};
    for (const Shares& shares : {Shares{1, 1, 1, 1}, Shares{5, 1, 1, 1}}) {
      try {
        tensor_parallel(graph, shares, 0);
      } catch (const Error&) {
        value.hints.clear();
      }
    }
  }
  return graph;
}

TEST_CASE("random plans train the same model where layers say how they are cut", "[distributed]") {
  Alone one(DType::f64);
  const int trials = trials_or(25);
  int hints = 0, checked = 0;
  for (unsigned seed = first_seed(); checked < trials; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    if (tensor_shares(plan, plan.pipelines[0].stages[0]).size() == 1) continue;
    const size_t which = seed % 2;
    const Graph hinted = with_hints(one.model(which), random);
    for (const Value& value : hinted.values) hints += static_cast<int>(value.hints.size());
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(hinted, plan, one.outcome(which, plan), 1e-12).problem == "");
    ++checked;
  }
  CHECK(hints > 2 * trials);
}

// State and inputs cut along dimensions at random, as far as the graph allows it among so many.
AxisSharding random_sharding(const Graph& graph, const Shares& shares, std::mt19937& random) {
  const PlacementTable table(graph);
  AxisSharding sharding;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    const bool input = value.role == Role::input && !value.per_step;
    if ((value.role != Role::parameter && !input) || value.type.shape.empty() || random() % 2 == 0) continue;
    const auto dim = static_cast<int64_t>(random() % value.type.shape.size());
    std::string problem;
    if (placement_of(table, shares, static_cast<ValueId>(i), dim, {}, problem))
      (input ? sharding.inputs : sharding.state).push_back({value.name, dim, {}});
  }
  std::sort(sharding.state.begin(), sharding.state.end());
  std::sort(sharding.inputs.begin(), sharding.inputs.end());
  return sharding;
}

TEST_CASE("random plans train the same model where stages say how they are cut", "[distributed]") {
  Alone one(DType::f64);
  const int trials = trials_or(25);
  int shardings = 0, checked = 0;
  for (unsigned seed = first_seed(); checked < trials; ++seed) {
    std::mt19937 random(seed);
    Plan plan = random_plan(random, kLayers, kSamples, true);
    if (plan.schedule == Schedule::interleaved) continue;
    const size_t which = seed % 2;
    const int before = shardings;
    plan.sequence = false;
    for (Pipeline& pipeline : plan.pipelines)
      for (Stage& stage : pipeline.stages) {
        const Shares shares = tensor_shares(plan, stage);
        if (shares.size() == 1 || random() % 4 == 0) continue;
        stage.sharding = along_one_axis(random_sharding(one.model(which), shares, random));
        ++shardings;
      }
    if (shardings == before) continue;
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(one.model(which), plan, one.outcome(which, plan), 1e-12).problem == "");
    ++checked;
  }
  CHECK(shardings > trials);
}

// Meshes of the devices of stages: the batch along one axis and Megatron's way along the other, or whatever
// can be drawn, with shares.
StageSharding random_mesh(const Graph& graph, std::vector<int> sizes, std::mt19937& random) {
  StageSharding mesh;
  for (size_t a = 0; a < sizes.size(); ++a) {
    StageAxis axis{a == 0 ? "first" : "second", Shares(static_cast<size_t>(sizes[a]), 1), {}};
    if (random() % 3 == 0) axis.shares[0] = 2;
    mesh.axes.push_back(std::move(axis));
  }
  if (random() % 2 == 0) {
    StageAxis& batch = mesh.axes[random() % 2];
    batch.sharding = {{}, {{"labels", 0, {}}, {"tokens", 0, {}}}, {}};
    return mesh;
  }
  for (StageAxis& axis : mesh.axes)
    if (random() % 3 != 0) axis.sharding = random_sharding(graph, axis.shares, random);
  return mesh;
}

TEST_CASE("random plans train the same model where stages have meshes", "[distributed][stage mesh]") {
  Alone one(DType::f64);
  const int trials = trials_or(25);
  int meshes = 0, checked = 0, refused = 0;
  for (unsigned seed = first_seed(); checked < trials; ++seed) {
    std::mt19937 random(seed);
    Plan plan = random_plan(random, kLayers, kSamples, true);
    if (plan.schedule == Schedule::interleaved) continue;
    const size_t which = seed % 2;
    const int before = meshes;
    plan.sequence = false;
    for (Pipeline& pipeline : plan.pipelines)
      for (Stage& stage : pipeline.stages) {
        if (stage.devices.size() != 4 || random() % 4 == 0) continue;
        stage.shares.clear();
        stage.sharding = random_mesh(one.model(which), {2, 2}, random);
        ++meshes;
      }
    if (meshes == before) continue;
    try {
      lower(one.model(which), plan, 0, true);
    } catch (const Error&) {  // a dimension that both axes cut may have too few units
      ++refused;
      continue;
    }
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(one.model(which), plan, one.outcome(which, plan), 1e-12).problem == "");
    ++checked;
  }
  CHECK(meshes > trials);
  CHECK(refused < 2 * trials);
}

TEST_CASE("random plans train a model without norms and residuals", "[distributed]") {
  const Graph model = bare_model();
  REQUIRE(verify(model).empty());
  std::map<int, Outcome> known;  // by micro-batches
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    const auto [entry, fresh] = known.emplace(microbatches_of(plan), Outcome{});
    if (fresh) entry->second = alone(model, entry->first);
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(model, plan, entry->second, 1e-12).problem.empty());
  }
}

TEST_CASE("the loss goes round the ranks with the norms of the gradients, and nothing else after them") {
  const Graph model = small_model(true, DType::f32);  // whose weights are not tied
  Plan plan;
  plan.microbatch = static_cast<int>(kSamples);
  for (int p = 0; p < 2; ++p) {
    Stage first{{fmt::format("x:{}", 2 * p)}, 0, 1}, second{{fmt::format("x:{}", 2 * p + 1)}, 1, kLayers - 1};
    plan.pipelines.push_back({p + 1, {first, second}});
  }
  for (int rank = 0; rank < 4; ++rank) {
    const Program program = lower(model, plan, rank, true);
    std::vector<std::string> whole;  // operations of all ranks
    for (const Instruction& instruction : program.instructions)
      if (const auto* start = std::get_if<Start>(&instruction);
          start != nullptr && program.groups[start->group].ranks.size() == 4 && start->request.peer < 0) {
        whole.push_back(start->request.label);
        CHECK(start->request.kind == CollectiveKind::all_gather);
        CHECK(start->request.counts == std::vector<int64_t>{3, 3, 3, 3});  // norm, loss, word
      }
    CHECK(whole == std::vector<std::string>{"gradient norms"});
  }
}

TEST_CASE("every plan, stage and micro-batch computes with the same stochastically rounded weights",
          "[distributed]") {
  const Graph plain[] = {small_model(false, DType::f64), small_model(true, DType::f64)};
  const Graph models[] = {with_rounded_copies(plain[0]), with_rounded_copies(plain[1])};
  for (const int which : {0, 1}) {
    REQUIRE(verify(models[which]).empty());
    CHECK(difference(alone(plain[which], 2), alone(models[which], 2)) > 1e-4);
  }
  for (unsigned seed = 201; seed < 225; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    const Graph& model = models[seed % 2];
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(model, plan, alone(model, microbatches_of(plan)), 1e-12).problem == "");
  }
}

TEST_CASE("norms and products that make what stands beside them train the same model to the bit",
          "[distributed]") {
  const bool llama = GENERATE(false, true);
  const Graph model = small_model(llama, DType::f32);
  const Graph apart = join_chains(prune(model)), joined = fuse(model);
  CHECK(verify(joined).empty());
  // In each block the addition before its second norm, and of the backward pass both; gelu and its gradient.
  CHECK(joined.nodes.size() + (llama ? 3 : 5) * kBlocks == apart.nodes.size());
  const auto trained = [&](const Graph& graph) {
    Executor executor(lower_single(graph, 3), std::make_shared<StateStore>(make_cpu_device(), 3));
    return train(executor, 3);
  };
  const Outcome separate = trained(apart), together = trained(joined);
  CHECK(separate.losses == together.losses);
  CHECK(separate.norms == together.norms);
  for (const auto& [name, tensor] : separate.parameters)
    CHECK(values_of(tensor) == values_of(together.parameters.at(name)));
}

TEST_CASE("random plans train a model whose products make gelu", "[distributed]") {
  const Graph model = small_model(false, DType::f64), joined = join_activations(prune(model));
  REQUIRE(joined.nodes.size() < prune(model).nodes.size());
  for (unsigned seed = 301; seed < 311; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    INFO("seed " << seed << "\n" << to_lua(plan));
    CHECK(judge(joined, plan, alone(model, microbatches_of(plan)), 1e-12).problem == "");
  }
}

TEST_CASE("random plans train the same model from GPU to GPU, and on GPUs and processors", "[distributed]") {
  const bool mixed = GENERATE(false, true);
  const Graph models[] = {small_model(false, DType::f64), small_model(true, DType::f64)};
  for (unsigned seed = 101; seed < 107; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random, kLayers, kSamples, true);
    const Graph& model = models[seed % 2];
    INFO("seed " << seed << (mixed ? ", mixed\n" : "\n") << to_lua(plan));
    const Verdict verdict =
        judge(model, plan, alone(model, microbatches_of(plan)), 1e-12, mixed ? On::either : On::gpus);
    CHECK(verdict.problem == "");
  }
}

TEST_CASE("a step between GPUs that loses a rank leaves the state of the others as it was", "[distributed]") {
  const Graph model = small_model(false, DType::f64);
  Plan plan;
  plan.microbatch = static_cast<int>(kSamples);
  plan.sharded_optimizer = GENERATE(false, true);
  Stage whole;
  whole.layers = kLayers;
  for (const char* device : {"d:0", "d:1"}) {
    whole.devices = {device};
    plan.pipelines.push_back({1, {whole}});
  }
  std::map<std::string, std::pair<Tensor, Tensor>> parameters;  // before and after
  std::string ended;
  const auto errors = on_ranks(
      model, plan, 2, std::chrono::seconds(60),
      [&](int rank, Executor& executor) {
        write_inputs(executor, 1, 2);
        executor.run();
        if (rank == 1) fail(ErrorKind::environment, "the machine was taken away");
        for (const auto& [name, entry] : executor.state().entries())
          parameters[name].first = executor.state().read(name);
        write_inputs(executor, 2, 2);
        try {
          executor.run();
        } catch (const Error& error) {
          HET_REQUIRE(error.kind() == ErrorKind::peer);
          ended = error.what();
        }
        for (const auto& [name, entry] : executor.state().entries())
          parameters[name].second = executor.state().read(name);
      },
      On::gpus);
  CHECK(errors[0] == "");
  CHECK_THAT(ended, Catch::Contains("in group 'ranks 0,1' failed after"));
  CHECK(!parameters.empty());
  for (const auto& [name, values] : parameters) {
    INFO(name);
    CHECK(values_of(values.first) == values_of(values.second));
  }
}

TEST_CASE("ranks look for what is not finite together, and can go on afterwards", "[distributed]") {
  const Graph model = small_model(false, DType::f64);
  Plan plan;
  plan.microbatch = static_cast<int>(kSamples);
  plan.sharded_optimizer = GENERATE(false, true);
  const auto stage = [](const char* device, int first, int layers) {
    Stage stage;
    stage.devices = {device};
    stage.first_layer = first;
    stage.layers = layers;
    return stage;
  };
  plan.pipelines = {{2, {stage("d:0", 0, 3), stage("d:1", 3, kLayers - 3)}}, {1, {stage("d:2", 0, kLayers)}}};
  const std::string spoilt = GENERATE("parameter", "input");
  INFO((plan.sharded_optimizer ? "sharded optimizer, " : "") << spoilt);
  std::vector<std::string> found(3);
  std::vector<double> losses(3);
  std::array<bool, 3> counted{};
  const auto errors = on_ranks(model, plan, 3, std::chrono::seconds(10), [&](int rank, Executor& executor) {
    write_inputs(executor, 1, 3);
    const std::string weight = "blocks.0.up.weight";
    Tensor before;
    if (spoilt == "input" && rank == 2) executor.write("scale", Tensor::of<double>({NAN}, {1}));
    if (spoilt == "parameter" && rank == 0) {
      before = executor.state().read(weight);
      Tensor huge(before.type());
      for (int64_t i = 0; i < huge.elements(); ++i) huge.set(i, 1e250 * before.at(i));
      executor.state().write(weight, huge);
    }
    found[rank] = executor.find_non_finite();
    if (before.present()) executor.state().write(weight, before);
    write_inputs(executor, 1, 3);
    const double waited = executor.usage().waited;
    executor.run();
    losses[rank] = executor.read("loss").at(0);
    counted[rank] = waited == 0 && executor.usage().runs == 1 && executor.usage().waited > 0;
  });
  CHECK(errors == std::vector<std::string>(3));
  for (const bool right : counted) CHECK(right);
  const int finder = spoilt == "input" ? 2 : 0;
  CHECK_THAT(found[finder], Catch::Contains(spoilt == "input" ? "input 'scale' holds a value" : " gave "));
  for (int rank = 0; rank < 3; ++rank)
    if (rank != finder) CHECK_THAT(found[rank], Catch::StartsWith("another rank's part in "));
  for (const double loss : losses) CHECK(loss == Approx(alone(model, 3).losses[0]).epsilon(1e-12));
}

TEST_CASE("a rank reads of a saved model what it holds, and nothing else", "[distributed]") {
  const Graph graph = small_model(false, DType::f32);
  std::map<std::string, Tensor> saved;
  int64_t all = 0;
  for (const Value& value : graph.values) {
    if (value.role != Role::parameter && value.role != Role::buffer) continue;
    Tensor tensor = initial_tensor(value.name, value.type, {Initial::Kind::normal, 1}, 11);
    all += value.type.bytes();
    saved.emplace(value.name, std::move(tensor));
  }
  const Scratch scratch;
  const std::string path = scratch.path("model.safetensors");
  write_safetensors(path, saved);

  const auto stage = [](std::vector<std::string> devices, int first, int layers) {
    Stage stage;
    stage.devices = std::move(devices);
    stage.first_layer = first;
    stage.layers = layers;
    return stage;
  };
  Plan deep, wide, sharded;
  for (Plan* plan : {&deep, &wide, &sharded}) plan->microbatch = kSamples;
  deep.pipelines = {{2, {stage({"a"}, 0, 2), stage({"b"}, 2, 1), stage({"c"}, 3, 2), stage({"d"}, 5, 1)}}};
  wide.tensor = 4;
  wide.pipelines = {{2, {stage({"a", "b", "c", "d"}, 0, kLayers)}}};
  sharded.sharded_optimizer = true;
  sharded.tensor = 2;
  sharded.pipelines = {{1, {stage({"a", "b"}, 0, kLayers)}}, {1, {stage({"c", "d"}, 0, kLayers)}}};
  for (const Plan* plan : {&deep, &wide, &sharded}) {
    for (int rank = 0; rank < 4; ++rank) {
      const StoredSafetensors file = open_safetensors(path);
      const auto state = reference_state(3);
      for (const auto& [name, tensor] : file.tensors) state->set_initial(name, tensor);
      int64_t held = 0;
      for (const BufferSpec& buffer : lower(graph, *plan, rank, true).buffers) {
        if (buffer.home != Home::state) continue;
        state->require(buffer);
        const Tensor& whole = saved.at(buffer.name);
        const Tensor own = state->read(buffer.name),
                     wanted = buffer.slice ? take(whole, *buffer.slice) : whole;
        REQUIRE(own.type() == wanted.type());
        CHECK(std::memcmp(own.bytes(), wanted.bytes(), static_cast<size_t>(own.type().bytes())) == 0);
        held += own.type().bytes();
      }
      CHECK(file.bytes_read() == held);
      CHECK(state->bytes_restored() == held);
      CHECK(held < all / 2);
    }
  }
}
