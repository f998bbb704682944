// Distributed tensors: random expressions over random meshes give what one device gives.
#include <atomic>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "core/graph/gradient.h"
#include "core/mesh/run.h"
#include "core/ops/op.h"
#include "kernels/cpu/device.h"
#include "kernels/reference/device.h"
#include "tests/unit/core/comm_testing.h"
#include "tests/unit/core/testing.h"

namespace het {
namespace {

using testing::on_ranks;
using testing::wave;

// Random numbers that every rank draws alike.
class Draws {
 public:
  explicit Draws(uint32_t seed) : random_(seed) {}
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(bound)); }
  bool chance(int64_t of) { return below(of) == 0; }

 private:
  std::mt19937 random_;
};

// A small expression: a graph of inputs and 2 to 6 operators, with its last value.
struct Expression {
  Graph graph;
  std::map<ValueId, Tensor> inputs;
  ValueId result = kAbsent;
  std::vector<std::pair<ValueId, ValueId>> gradients;  // of inputs; empty: it is not differentiated
};

class Maker {
 public:
  Maker(uint32_t seed, DType dtype) : draws_(seed), dtype_(dtype), builder_(made_.graph) {}

  Expression make() {
    Shape shape;
    const int64_t rank = 2 + draws_.below(2);
    for (int64_t d = 0; d < rank; ++d) shape.push_back(2 + draws_.below(7));
    x_ = input(shape);
    for (int64_t count = 2 + draws_.below(5); count > 0; --count) step();
    made_.result = x_;
    if (draws_.chance(2)) differentiate_it();
    return std::move(made_);
  }

 private:
  ValueId input(Shape shape) {
    const auto number = made_.inputs.size();
    const TensorType type{dtype_, std::move(shape)};
    const ValueId id = builder_.input(fmt::format("x{}", number), type);
    made_.inputs[id] = wave(type, static_cast<double>(draws_.below(1000)));
    return id;
  }
  ValueId ids(Shape shape, int64_t bound) {
    const TensorType type{DType::i32, std::move(shape)};
    const ValueId id = builder_.input(fmt::format("x{}", made_.inputs.size()), type);
    Tensor tensor(type);
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, static_cast<double>(draws_.below(bound)));
    made_.inputs[id] = tensor;
    return id;
  }
  Shape shape() const { return builder_.type(x_).shape; }
  int64_t size() { return 2 + draws_.below(7); }
  void apply(std::string_view op, std::vector<ValueId> operands, Attributes attributes = {}) {
    x_ = builder_.call(op, std::move(operands), std::move(attributes));
  }

  void step() {
    const Shape now = shape();
    const auto rank = static_cast<int64_t>(now.size());
    const int64_t dim = draws_.below(rank), last = now.back();
    int64_t kind = draws_.below(14);
    if ((kind == 5 || kind == 6) && last < 4) kind = 1;  // the gradient of a norm of few elements cancels out
    switch (kind) {
      case 0: return linear(now, last);
      case 1: return apply("gelu", {x_});
      case 2: return apply(draws_.chance(2) ? "add" : "mul", {x_, input(now)});
      case 3: return apply("add", {x_, input({last})});
      case 4: return apply("softmax", {x_}, {{"dim", dim}});
      case 5: return apply("rms_norm", {x_, input({last})});
      case 6: return apply("layer_norm", {x_, input({last}), input({last})});
      case 7: return merge_or_split(now);
      case 8: {
        std::vector<int64_t> order(static_cast<size_t>(rank));
        std::iota(order.begin(), order.end(), 0);
        std::swap(order[0], order[static_cast<size_t>(dim)]);
        return apply("transpose", {x_}, {{"order", order}});
      }
      case 9: return apply("concat", {x_, input(now)}, {{"dim", dim}});
      case 10:
        if (now[static_cast<size_t>(dim)] < 2) return;
        return apply("slice", {x_},
                     {{"dim", dim}, {"start", int64_t{1}}, {"length", now[static_cast<size_t>(dim)] - 1}});
      case 11:
        if (rank < 2) return;
        return apply(draws_.chance(2) ? "sum" : "mean", {x_},
                     {{"dims", std::vector<int64_t>{dim}}, {"keep", draws_.chance(2)}});
      case 12: {
        const int64_t rows = size();
        return apply("add", {x_, builder_.call("embedding", {ids(Shape(now.begin(), now.end() - 1), rows),
                                                             input({rows, last})})});
      }
      default: {
        const int64_t n = size();
        if (rank == 3 && draws_.chance(2)) return apply("matmul", {x_, input({now[0], last, n})});
        return apply("matmul", {x_, input({last, n})});
      }
    }
  }

  void linear(const Shape& now, int64_t last) {
    const int64_t out = 2 * size();
    std::vector<ValueId> operands{x_, input({out, last})};
    if (draws_.chance(2)) operands.push_back(input({out}));
    apply("linear", operands);
    if (now.size() != 3 || draws_.chance(2)) return;
    // Attention over two heads, with itself as keys and values.
    apply("reshape", {x_}, {{"shape", std::vector<int64_t>{now[0], now[1], 2, out / 2}}});
    apply("attention", {x_, x_, x_}, {{"causal", draws_.chance(2)}});
    apply("reshape", {x_}, {{"shape", std::vector<int64_t>{now[0], now[1], out}}});
  }

  void merge_or_split(const Shape& now) {
    Shape shape = now;
    if (now.size() >= 3) {
      shape.erase(shape.begin());
      shape[0] *= now[0];
    } else if (now[0] % 2 == 0) {
      shape[0] /= 2;
      shape.insert(shape.begin(), 2);
    }
    apply("reshape", {x_}, {{"shape", std::vector<int64_t>(shape.begin(), shape.end())}});
  }

  void differentiate_it() {
    const Shape now = shape();
    const ValueId weighted = builder_.call("mul", {x_, input(now)});
    std::vector<int64_t> dims(now.size());
    std::iota(dims.begin(), dims.end(), 0);
    const ValueId loss = builder_.call("sum", {weighted}, {{"dims", dims}});
    std::vector<ValueId> wanted;
    for (const auto& [id, tensor] : made_.inputs)
      if (is_float(tensor.dtype())) wanted.push_back(id);
    for (const auto& [id, gradient] : differentiate(made_.graph, loss, wanted))
      if (gradient != kAbsent) made_.gradients.emplace_back(id, gradient);
  }

  Draws draws_;
  DType dtype_;
  Expression made_;
  GraphBuilder builder_;
  ValueId x_ = kAbsent;
};

std::vector<MeshAxis> random_axes(Draws& draws, int size) {
  std::vector<std::vector<MeshAxis>> options{{{"model", size}}};
  for (int a = 2; a < size; ++a)
    if (size % a == 0) options.push_back({{"data", a}, {"model", size / a}});
  return options[static_cast<size_t>(draws.below(static_cast<int64_t>(options.size())))];
}

// A tensor that lies anyhow. Partial ones are summands that add up to it.
DistributedTensor distribute(const std::shared_ptr<const DeviceMesh>& mesh, const Tensor& whole,
                             Draws& draws) {
  Placements placements(mesh->axes().size());
  std::vector<bool> partial(placements.size(), false);
  for (size_t a = 0; a < placements.size(); ++a) {
    const int64_t kind = draws.below(8);
    if (kind == 0 && is_float(whole.dtype())) partial[a] = true;
    if (kind < 4 || whole.shape().empty()) continue;
    Shares shares;
    while (std::accumulate(shares.begin(), shares.end(), int64_t{0}) == 0) {
      shares.clear();
      for (int p = 0; p < mesh->axes()[a].size; ++p)
        shares.push_back(draws.chance(6) ? 0 : 1 + draws.below(3));
    }
    placements[a] =
        sharded_by(whole.shape(), draws.below(static_cast<int64_t>(whole.shape().size())), shares);
  }
  DistributedTensor x = redistribute(replicated(mesh, whole), placements);
  for (size_t a = 0; a < placements.size(); ++a) {
    if (!partial[a]) continue;
    placements[a].lies.kind = Placement::Kind::partial;
    const int parts = mesh->axes()[a].size, own = mesh->coordinate(mesh->place(), static_cast<int>(a));
    Tensor local(x.local.type());
    for (int64_t i = 0; i < local.elements(); ++i) {
      // Of one element of the whole every rank knows its summand.
      const double each = 0.25;
      local.set(i, own == 0 ? x.local.at(i) - each * (parts - 1) : each);
    }
    x.local = local;
  }
  x.placements = placements;
  return x;
}

std::map<ValueId, Tensor> run_whole(Eager& eager, const Expression& expression) {
  std::map<ValueId, Tensor> values = expression.inputs;
  for (const Node& node : expression.graph.nodes) {
    std::vector<Tensor> inputs;
    for (const ValueId id : node.inputs) inputs.push_back(id == kAbsent ? Tensor() : values.at(id));
    const auto results = eager.call(*node.op, inputs, node.attributes);
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (node.outputs[o] != kAbsent) values[node.outputs[o]] = results[o];
  }
  return values;
}

double root_mean_square(const Tensor& tensor) {
  double square = 0;
  for (int64_t i = 0; i < tensor.elements(); ++i) square += tensor.at(i) * tensor.at(i);
  return std::sqrt(square / static_cast<double>(std::max<int64_t>(1, tensor.elements())));
}

// Relative to the size of the element and to `scale`.
double error_of(const Tensor& result, const Tensor& wanted, double scale) {
  if (result.shape() != wanted.shape()) return INFINITY;
  double worst = 0;
  for (int64_t i = 0; i < wanted.elements(); ++i) {
    const double difference = std::abs(result.at(i) - wanted.at(i));
    if (std::isnan(difference)) return INFINITY;
    if (difference != 0) worst = std::max(worst, difference / (std::abs(wanted.at(i)) + scale));
  }
  return worst;
}

double tolerance_of(DType dtype) { return dtype == DType::f64 ? 1e-11 : 1e-5; }

struct Outcome {
  double worst = 0;
  int expressions = 0, gradients = 0, moves = 0;
  std::string wrong;
};

// Each expression is run operator by operator, as the prompt does; one that is differentiated as a graph, as
// het.gradient does.
Outcome try_expressions(Fabric& fabric, uint32_t first, int count, DType dtype) {
  Outcome outcome;
  const auto groups = std::make_shared<Groups>(std::shared_ptr<Fabric>(&fabric, [](Fabric*) {}));
  const auto agreement = std::make_shared<Agreement>(groups->group(testing::all_ranks(fabric.size())));
  const auto device = dtype == DType::f64 ? make_reference_device() : make_cpu_device();
  Eager eager(device);
  const double tolerance = tolerance_of(dtype);
  for (int i = 0; i < count; ++i) {
    const uint32_t seed = first + static_cast<uint32_t>(i);
    Draws draws(seed);
    const auto mesh =
        std::make_shared<const DeviceMesh>(groups, agreement, std::make_shared<MeshEager>(device),
                                           MeshLayout{random_axes(draws, fabric.size()), {}, {}});
    const Expression expression = Maker(seed, dtype).make();
    const auto whole = run_whole(eager, expression);
    std::map<ValueId, DistributedTensor> values;
    for (const auto& [id, tensor] : expression.inputs) values.emplace(id, distribute(mesh, tensor, draws));
    // Some gradients are 0 but for rounding, such as those of what a softmax leaves out: they are judged by
    // the size of the others.
    double scale = expression.gradients.empty() ? root_mean_square(whole.at(expression.result)) : 0;
    for (const auto& [id, gradient] : expression.gradients)
      scale = std::max(scale, root_mean_square(whole.at(gradient)));
    const auto check = [&](const DistributedTensor& made, ValueId id, std::string_view what) {
      const double error = error_of(gather(made), whole.at(id), scale);
      outcome.worst = std::max(outcome.worst, error);
      if (error > tolerance && outcome.wrong.empty())
        outcome.wrong = fmt::format("seed {}: {} is off by {:.2g} on {}\n{}", seed, what, error,
                                    to_string(*mesh), to_string(expression.graph));
    };
    std::vector<MeshStep> steps;
    if (expression.gradients.empty()) {
      for (const Node& node : expression.graph.nodes) {
        std::vector<DistributedTensor> inputs;
        for (const ValueId id : node.inputs)
          inputs.push_back(id == kAbsent ? DistributedTensor{} : values.at(id));
        const auto results = call_on_mesh(*node.op, inputs, node.attributes, &steps);
        for (size_t o = 0; o < node.outputs.size(); ++o)
          if (node.outputs[o] != kAbsent) values.insert_or_assign(node.outputs[o], results[o]);
      }
      check(values.at(expression.result), expression.result, "the result");
    } else {
      const auto given = values;
      std::vector<ValueId> wanted;
      for (const auto& [id, gradient] : expression.gradients) wanted.push_back(gradient);
      run_on_mesh(expression.graph, values, wanted, &steps);
      for (const auto& [id, gradient] : expression.gradients) {
        check(values.at(gradient), gradient, "a gradient");
        if (fabric.rank() == 0) ++outcome.gradients;
      }
    }
    for (const MeshStep& step : steps) outcome.moves += static_cast<int>(step.moves.size());
    ++outcome.expressions;
  }
  return outcome;
}

}  // namespace

TEST_CASE("expressions on a mesh give what one device gives", "[mesh]") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Outcome all;
    uint32_t seed = 1;
    for (const int size : {1, 2, 3, 4, 6}) {
      constexpr int kEach = 50;
      std::vector<Outcome> outcomes(static_cast<size_t>(size));
      const auto errors = on_ranks(testing::loopback_maker(), size, Timeouts{}, [&](Fabric& fabric) {
        outcomes[static_cast<size_t>(fabric.rank())] = try_expressions(fabric, seed, kEach, dtype);
      });
      seed += kEach;
      for (size_t rank = 0; rank < outcomes.size(); ++rank) {
        INFO("rank " << rank << " of " << size);
        CHECK(errors[rank] == "");
        CHECK(outcomes[rank].wrong == "");
        all.worst = std::max(all.worst, outcomes[rank].worst);
      }
      all.expressions += outcomes[0].expressions;
      all.gradients += outcomes[0].gradients;
      all.moves += outcomes[0].moves;
    }
    const std::string summary =
        fmt::format("{}: {} expressions, {} gradients, {} collectives; worst error {:.2g}", name_of(dtype),
                    all.expressions, all.gradients, all.moves, all.worst);
    WARN(summary);
    CHECK(all.expressions == 250);
    CHECK(all.gradients > 100);
    CHECK(all.moves > 200);
    CHECK(all.worst <= tolerance_of(dtype));
  }
}

TEST_CASE("a rank without a part of one axis still has what it shall have of the other", "[mesh]") {
  // Two features on axes of two and two ranks, 1 : 3 of one feature: some ranks have none. A bias counts
  // once, and its gradient is whole on all ranks of an axis.
  const auto errors = on_ranks(testing::loopback_maker(), 4, Timeouts{}, [](Fabric& fabric) {
    const auto groups = std::make_shared<Groups>(std::shared_ptr<Fabric>(&fabric, [](Fabric*) {}));
    const auto agreement = std::make_shared<Agreement>(groups->group(testing::all_ranks(4)));
    const auto mesh_eager = std::make_shared<MeshEager>(make_reference_device());
    Eager& eager = mesh_eager->local;
    const auto mesh = std::make_shared<const DeviceMesh>(groups, agreement, mesh_eager,
                                                         MeshLayout{{{"data", 2}, {"model", 2}}, {}, {}});
    const auto cut = [&](const Tensor& whole, int64_t data, int64_t model) {
      Placements placements(2);
      if (data >= 0) placements[0] = sharded_by(whole.shape(), data, {1, 1});
      if (model >= 0) placements[1] = sharded_by(whole.shape(), model, {1, 3});
      return redistribute(replicated(mesh, whole), placements);
    };
    const Tensor x = wave({DType::f64, {4, 2}}, 1), w = wave({DType::f64, {3, 2}}, 2),
                 b = wave({DType::f64, {3}}, 3);
    const Tensor dy = wave({DType::f64, {4, 3}}, 4);
    const auto compare = [&](const char* op, const std::vector<DistributedTensor>& operands,
                             const std::vector<Tensor>& whole) {
      const auto made = call_on_mesh(op_named(op), operands, {});
      const auto wanted = eager.call(op_named(op), whole, {});
      for (size_t o = 0; o < wanted.size(); ++o)
        if (wanted[o].present() && error_of(gather(made[o]), wanted[o], 1) > 1e-12)
          fail_usage("result {} of {} is wrong on rank {}", o, op, fabric.rank());
    };
    compare("linear", {cut(x, 1, 1), cut(w, 1, 1), replicated(mesh, b)}, {x, w, b});
    compare("linear", {cut(x, -1, 1), cut(w, -1, 1), replicated(mesh, b)}, {x, w, b});
    compare("linear_weight_gradient", {cut(dy, 0, -1), cut(x, 0, 1)}, {dy, x});
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("an operand that counts once goes to the rank on which it counts", "[mesh]") {
  const auto errors = on_ranks(testing::loopback_maker(), 4, Timeouts{}, [](Fabric& fabric) {
    const auto groups = std::make_shared<Groups>(std::shared_ptr<Fabric>(&fabric, [](Fabric*) {}));
    const auto agreement = std::make_shared<Agreement>(groups->group(testing::all_ranks(4)));
    const auto mesh_eager = std::make_shared<MeshEager>(make_reference_device());
    const auto mesh = std::make_shared<const DeviceMesh>(groups, agreement, mesh_eager,
                                                         MeshLayout{{{"data", 2}, {"model", 2}}, {}, {}});
    const Tensor x = wave({DType::f64, {4, 60}}, 1), w = wave({DType::f64, {8, 60}}, 2),
                 b = wave({DType::f64, {8}}, 3);
    const Tensor wanted = mesh_eager->local.call(op_named("linear"), {x, w, b}, {}).front();
    const auto lying = [&](const Tensor& whole, int64_t data, int64_t model) {
      Placements placements(2);
      if (data >= 0) placements[0] = sharded_by(whole.shape(), data, {1, 1});
      if (model >= 0) placements[1] = sharded_by(whole.shape(), model, {1, 1});
      return redistribute(replicated(mesh, whole), placements);
    };
    // The collectives of a linear with this bias, rows cut by data, features by model.
    const auto moves = [&](const DistributedTensor& bias) {
      std::vector<MeshStep> steps;
      const auto y =
          call_on_mesh(op_named("linear"), {lying(x, 0, 1), lying(w, -1, 1), bias}, {}, &steps).front();
      if (steps[0].way != "data: x dim 0 -> y dim 0; model: x dim 1, weight dim 1 -> y partial")
        fail_usage("it ran otherwise: {}", steps[0].way);
      if (error_of(gather(y), wanted, 1) > 1e-12) fail_usage("the result is wrong");
      std::string text;
      for (const MeshStep::Move& move : steps[0].moves)
        text += fmt::format("{} of {}: {} B", move.travel.collective, move.operand, move.travel.bytes);
      return text;
    };
    const auto check = [&](const DistributedTensor& bias, const std::string& on_first) {
      const std::string right = mesh->coordinate(mesh->place(), 1) == 0 ? on_first : "";
      if (const std::string found = moves(bias); found != right)
        fail_usage("rank {}, {}: '{}', not '{}'", fabric.rank(), describe_placements(bias), found, right);
    };
    Placements partial(2);
    partial[0].lies.kind = Placement::Kind::partial;
    check(replicated(mesh, b), "");
    check(lying(b, 0, -1), "all_gather of bias: 64 B");
    check(redistribute(replicated(mesh, b), partial), "all_reduce of bias: 128 B");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("programs of operators are kept by what they follow from", "[mesh]") {
  const auto errors = on_ranks(testing::loopback_maker(), 2, Timeouts{}, [](Fabric& fabric) {
    const auto groups = std::make_shared<Groups>(std::shared_ptr<Fabric>(&fabric, [](Fabric*) {}));
    const auto agreement = std::make_shared<Agreement>(groups->group(testing::all_ranks(2)));
    constexpr size_t kMost = 4;
    const auto mesh_eager = std::make_shared<MeshEager>(make_reference_device(), kMost);
    const auto mesh =
        std::make_shared<const DeviceMesh>(groups, agreement, mesh_eager, MeshLayout{{{"model", 2}}, {}, {}});
    const auto check = [&](double factor, const Tensor& whole, int64_t dim, Shares shares, size_t kept) {
      const auto x =
          redistribute(replicated(mesh, whole), {sharded_by(whole.shape(), dim, std::move(shares))});
      const Attributes attributes{{"factor", factor}};
      const auto y = call_on_mesh(op_named("scale"), {x}, attributes).front();
      const Tensor wanted = mesh_eager->local.call(op_named("scale"), {whole}, attributes).front();
      if (error_of(gather(y), wanted, 1) > 1e-12) fail_usage("scaled by {} it is wrong", factor);
      if (mesh_eager->programs.size() != kept)
        fail_usage("{} programs are kept, not {}", mesh_eager->programs.size(), kept);
    };
    const Tensor a = wave({DType::f64, {4, 6}}, 1), b = wave({DType::f64, {4, 6}}, 2);
    check(2, a, 0, {1, 1}, 1);
    check(2, b, 0, {1, 1}, 1);  // other numbers
    check(3, a, 0, {1, 1}, 2);
    check(2, a, 0, {3, 1}, 3);
    check(2, a, 1, {1, 1}, 4);
    check(2, wave({DType::f64, {4, 8}}, 1), 1, {1, 1}, kMost);
    check(2, a, 0, {1, 1}, kMost);  // dropped meanwhile
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("groups with a pacer of their own leave others of the fabric alone", "[mesh]") {
  // Says when an operation may be done: at once; and counts.
  struct Counting final : Pacer {
    CommClock::time_point release(const CollectiveRequest&, const std::vector<int>&, int,
                                  CommClock::time_point arrived) override {
      ++operations;
      return arrived;
    }
    std::atomic<int> operations = 0;
  };
  const auto errors = on_ranks(testing::loopback_maker(), 2, Timeouts{}, [](Fabric& fabric) {
    const std::shared_ptr<Fabric> shared(&fabric, [](Fabric*) {});
    const auto pacer = std::make_shared<Counting>();
    const auto plain = std::make_shared<Groups>(shared);
    const auto paced = std::make_shared<Groups>(shared, "paced: ", pacer);
    const auto agreement = std::make_shared<Agreement>(plain->group(testing::all_ranks(2)));
    const Tensor x = wave({DType::f64, {4}}, 1);
    for (const auto& [groups, counted] : {std::pair{plain, 0}, {paced, 1}}) {
      const auto mesh = std::make_shared<const DeviceMesh>(
          groups, agreement, std::make_shared<MeshEager>(make_reference_device()),
          MeshLayout{{{"model", 2}}, {}, {}});
      const Tensor sum = all_reduce(*mesh, 0, x, Reduction::sum, "x");
      if (sum.at(1) != 2 * x.at(1)) fail_usage("the sum is wrong");
      if (pacer->operations != counted)
        fail_usage("{} operations, not {}", pacer->operations.load(), counted);
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("ranks that are about to do different things all get an error", "[mesh]") {
  constexpr int kRanks = 3;
  std::vector<std::string> reports(kRanks), ends(kRanks);
  const auto errors = on_ranks(testing::loopback_maker(), kRanks, Timeouts{}, [&](Fabric& fabric) {
    const auto rank = static_cast<size_t>(fabric.rank());
    const auto world = fabric.group("world", testing::all_ranks(kRanks));
    bool interrupted = false;
    Agreement agreement(*world, [&] { return interrupted; });
    const auto attempt = [&](const std::string& what, const std::string& detail) {
      try {
        agreement.on(what, detail);
        reports[rank] += "agreed|";
      } catch (const Error& error) {
        reports[rank] += error.sentence() + "|";
      }
    };
    attempt("add", "by rows");
    attempt(rank == 1 ? "mul" : "add", "");
    attempt("add", rank == 2 ? "by columns" : "by rows");
    interrupted = rank == 1;
    attempt("add", "");
    interrupted = false;
    if (rank != 0) attempt("sum", "");  // rank 0 is at the end already, and waits for the others there
    for (const std::string& each : agreement.at_end("the end", fmt::format("rank {}", rank)))
      ends[rank] += each + "|";
  });
  for (size_t rank = 0; rank < kRanks; ++rank) {
    CHECK(errors[rank] == "");
    const std::string same = "; lines on distributed tensors have to do the same on every rank|";
    std::string wanted = "agreed|ranks do different things: rank 0 is at add, rank 1 at mul" + same +
                         "ranks do different things: rank 0 is at add (by rows), rank 2 at add (by columns)" +
                         same + "interrupted|";
    if (rank != 0) wanted += "ranks do different things: rank 0 is at the end, rank 1 at sum" + same;
    CHECK(reports[rank] == wanted);
    CHECK(ends[rank] == "rank 0|rank 1|rank 2|");
  }
}

}  // namespace het
