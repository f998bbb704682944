// Every sharding rule of every operator, executed: the parts of an operator's results, computed from the
// parts of its operands, are together what the whole operator computes. On all cases of the operators, cut
// over 2 to 4 parts by random shares, some of them 0.
#include "core/ops/sharding.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "core/comm/communicator.h"
#include "core/ops/op.h"
#include "core/ops/part.h"
#include "core/program/eager.h"
#include "tests/ops/devices.h"
#include "tests/ops/harness.h"

namespace het::ops_test {
namespace {

// A call as values.
struct Whole {
  Whole(const Case& test, const OpDef& op, DType dtype)
      : inputs(drawn_inputs(test, dtype)), attributes(test.attributes), definition(op) {
    for (const Tensor& input : inputs) input_types.push_back(input.type());
    output_types = op.infer(call());
  }
  OpCall call() const { return {definition, input_types, attributes}; }

  std::vector<Tensor> inputs;
  Attributes attributes;
  const OpDef& definition;
  std::vector<TensorType> input_types, output_types;
};

std::vector<Tensor> run(Eager& eager, const OpDef& op, const std::vector<Tensor>& inputs,
                        const Attributes& attributes) {
  std::vector<Tensor> results = eager.call(op, inputs, attributes);
  for (Tensor& result : results)
    if (result.present()) result = result.contiguous();
  return results;
}

// A result of all parts together. The error of a sum is one of its summands' sizes, which may be far larger.
struct Joined {
  Tensor value, summands;  // the sum of the summands' sizes; of results that are no sums absent
};

class Sharded {
 public:
  Sharded(Eager& eager, const Whole& whole, const ShardingInstance& instance, const Notation& notation,
          const std::vector<int64_t>& points, std::mt19937& random)
      : eager_(eager),
        whole_(whole),
        instance_(instance),
        notation_(notation),
        points_(points),
        random_(random) {}

  // The results of all parts together.
  std::vector<Joined> run_parts() {
    make_summands();
    std::vector<Part> parts;
    for (size_t part = 0; part + 1 < points_.size(); ++part) {
      if (points_[part] == points_[part + 1]) continue;
      Part own{slices(notation_.inputs, whole_.input_types, instance_.inputs, part),
               slices(notation_.outputs, whole_.output_types, instance_.outputs, part),
               {}};
      for (size_t i = 0; i < whole_.inputs.size(); ++i)
        own.operands.push_back(operand(i, part, own.in[i], parts.empty()));
      parts.push_back(std::move(own));
    }
    std::vector<std::vector<Tensor>> results;
    if (whole_.definition.sharding[instance_.rule].decompose != nullptr)
      results = decomposed(parts);
    else
      for (const Part& part : parts)
        results.push_back(
            run(eager_, whole_.definition, part.operands, localized(whole_.call(), part.in, part.out)));
    std::vector<Joined> together(whole_.output_types.size());
    for (size_t p = 0; p < parts.size(); ++p)
      for (size_t o = 0; o < together.size(); ++o)
        if (whole_.output_types[o].present())
          join(together[o], results[p][o], instance_.outputs[o], parts[p].out[o], p == 0);
    return together;
  }

 private:
  struct Part {
    std::vector<TensorSlice> in, out;
    std::vector<Tensor> operands;
  };

  // The results on each part of what a rule makes of the call: the graphs of all parts, which have the same
  // nodes but for sizes, run node by node.
  std::vector<std::vector<Tensor>> decomposed(const std::vector<Part>& parts) {
    std::vector<Graph> graphs(parts.size());
    std::vector<std::vector<ValueId>> made;
    std::vector<std::map<ValueId, Tensor>> values(parts.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      GraphBuilder builder(graphs[p]);
      std::vector<ValueId> inputs;
      for (size_t i = 0; i < parts[p].operands.size(); ++i) {
        const Tensor& operand = parts[p].operands[i];
        inputs.push_back(operand.present() ? builder.input(fmt::format("x{}", i), operand.type()) : kAbsent);
        values[p][inputs.back()] = operand;
      }
      made.push_back(whole_.definition.sharding[instance_.rule].decompose(
          {builder, whole_.call(), inputs, parts[p].in, parts[p].out, static_cast<int>(parts.size()),
           static_cast<int>(p)}));
      REQUIRE(graphs[p].nodes.size() == graphs[0].nodes.size());
    }
    for (size_t n = 0; n < graphs[0].nodes.size(); ++n) {
      const bool communicates = graphs[0].nodes[n].op->collective.has_value();
      Tensor gathered;
      if (communicates) {
        REQUIRE(graphs[0].nodes[n].op->name == "all_gather");
        std::vector<Tensor> operands;
        for (size_t p = 0; p < parts.size(); ++p)
          operands.push_back(values[p].at(graphs[p].nodes[n].inputs[0]));
        gathered = run(eager_, op_named("concat"), operands, {{"dim", int64_t{0}}})[0];
      }
      for (size_t p = 0; p < parts.size(); ++p) {
        const Node& node = graphs[p].nodes[n];
        std::vector<Tensor> operands;
        for (const ValueId id : node.inputs) operands.push_back(id == kAbsent ? Tensor() : values[p].at(id));
        const auto results =
            communicates ? std::vector{gathered} : run(eager_, *node.op, operands, node.attributes);
        for (size_t o = 0; o < node.outputs.size(); ++o)
          if (node.outputs[o] != kAbsent) values[p][node.outputs[o]] = results[o];
      }
    }
    std::vector<std::vector<Tensor>> results(parts.size());
    for (size_t p = 0; p < parts.size(); ++p)
      for (const ValueId id : made[p]) results[p].push_back(id == kAbsent ? Tensor() : values[p].at(id));
    return results;
  }

  std::vector<TensorSlice> slices(const std::vector<OperandNotation>& operands,
                                  const std::vector<TensorType>& types, const std::vector<Lies>& lies,
                                  size_t part) const {
    std::vector<TensorSlice> result;
    for (size_t i = 0; i < types.size(); ++i)
      result.push_back(lies[i] == Lies::sharded
                           ? *cut(operands[i], types[i].shape, notation_, instance_.letters, instance_.units,
                                  {points_[part], points_[part + 1]})
                           : TensorSlice::whole(types[i].shape));
    return result;
  }

  // Random summands of the operands that are partial.
  void make_summands() {
    summands_.resize(whole_.inputs.size());
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < whole_.inputs.size(); ++i) {
      if (instance_.inputs[i] != Lies::partial || !whole_.inputs[i].present()) continue;
      Tensor left = Tensor::zeros(whole_.inputs[i].type());
      left.copy_from(whole_.inputs[i]);
      for (size_t part = 0; part + 2 < points_.size(); ++part) {
        Tensor own(left.type());
        for (int64_t e = 0; e < own.elements(); ++e) {
          own.set(e, normal(random_));
          left.set(e, left.at(e) - own.at(e));
        }
        summands_[i].push_back(own);
      }
      summands_[i].push_back(left);
    }
  }

  Tensor operand(size_t i, size_t part, const TensorSlice& slice, bool first) const {
    const Tensor& whole = whole_.inputs[i];
    if (!whole.present()) return whole;
    switch (instance_.inputs[i]) {
      case Lies::replicated: return whole;
      case Lies::sharded: return take(whole.contiguous(), slice);
      case Lies::partial: return summands_[i][part];
      case Lies::once: return first ? whole : Tensor();
    }
    return whole;
  }

  static void join(Joined& together, const Tensor& own, Lies lies, const TensorSlice& slice, bool first) {
    Tensor& value = together.value;
    if (first)
      value = Tensor::zeros({own.dtype(), lies == Lies::sharded ? slice.whole_shape() : own.shape()});
    if (first && lies == Lies::partial) together.summands = Tensor::zeros({DType::f64, own.shape()});
    if (lies == Lies::sharded) put(value, own, slice);
    if (lies == Lies::replicated && first) value.copy_from(own);
    for (int64_t e = 0; e < own.elements() && lies == Lies::replicated; ++e)
      REQUIRE((value.at(e) == own.at(e) || std::isnan(own.at(e))));  // equal on all parts
    for (int64_t e = 0; e < own.elements() && lies == Lies::partial; ++e) {
      value.set(e, value.at(e) + own.at(e));
      together.summands.set(e, together.summands.at(e) + std::abs(own.at(e)));
    }
  }

  Eager& eager_;
  const Whole& whole_;
  const ShardingInstance& instance_;
  const Notation& notation_;
  const std::vector<int64_t>& points_;
  std::mt19937& random_;
  std::vector<std::vector<Tensor>> summands_;
};

// The largest error, relative to the size of the element, or of its summands, and to the root mean square of
// these.
double error_of(const Joined& joined, const Tensor& wanted) {
  const Tensor& result = joined.value;
  const Tensor& sizes = joined.summands.present() ? joined.summands : wanted;
  REQUIRE(result.shape() == wanted.shape());
  double square = 0, worst = 0;
  for (int64_t i = 0; i < sizes.elements(); ++i)
    if (std::isfinite(sizes.at(i))) square += sizes.at(i) * sizes.at(i);
  const double scale = std::sqrt(square / std::max<double>(1, static_cast<double>(wanted.elements())));
  for (int64_t i = 0; i < wanted.elements(); ++i) {
    const double r = result.at(i), w = wanted.at(i);
    if (r == w || (std::isnan(r) && std::isnan(w))) continue;
    const double error = std::abs(r - w) / (std::abs(sizes.at(i)) + scale);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

// Where units are cut at random: at least two parts have some.
std::vector<int64_t> random_points(int64_t units, std::mt19937& random) {
  const auto below = [&](int64_t bound) {
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(random);
  };
  for (;;) {
    Shares shares(static_cast<size_t>(2 + below(3)));
    for (int64_t& share : shares) share = below(4) == 0 ? 0 : 1 + below(5);
    if (std::count(shares.begin(), shares.end(), 0) == static_cast<std::ptrdiff_t>(shares.size())) continue;
    std::vector<int64_t> points = cut_points(units, shares);
    int filled = 0;
    for (size_t p = 0; p + 1 < points.size(); ++p) filled += points[p] < points[p + 1];
    if (filled >= 2) return points;
  }
}

// Letters of a call that neither a rule cuts nor the operator says never to be.
std::vector<std::string> forgotten(const OpDef& op, const Notation& notation) {
  std::vector<std::string> letters;
  for (const std::string& letter : notation.letters) {
    bool known = std::any_of(op.never_cut.begin(), op.never_cut.end(),
                             [&](const NeverCut& never) { return names(never.letter, letter); });
    for (const ShardingRule& rule : op.sharding)
      for (const auto& set :
           rule.cut.empty() ? std::vector<std::vector<std::string>>{} : letter_sets(notation, rule.cut))
        known = known || std::find(set.begin(), set.end(), letter) != set.end();
    if (!known) letters.push_back(letter);
  }
  return letters;
}

// The reference in f64, and the processor with all its instructions, or the GPU, in f32.
std::vector<Subject> two_subjects() {
  return {subjects().begin(), subjects().begin() + std::min<std::ptrdiff_t>(2, std::ssize(subjects()))};
}

// Dimensions in which operand 0 of a case is cut already.
int cut_dims(const Case& test) {
  const TensorSlice slice =
      test.inputs.empty() ? TensorSlice() : part_of(test.attributes, test.inputs[0].shape);
  int count = 0;
  for (size_t d = 0; d < slice.whole_shape().size(); ++d) count += slice.shape()[d] < slice.whole_shape()[d];
  return count;
}

// What a collective gives the ranks along its axis of a mesh, from their operands.
Tensor communicated(const OpDef& op, const std::vector<Tensor>& operands, int root) {
  Tensor result = Tensor::zeros(operands[0].type());
  for (int64_t e = 0; e < result.elements(); ++e) {
    double sum = 0;
    for (const Tensor& operand : operands) sum += operand.at(e);
    result.set(e,
               op.collective == CollectiveKind::broadcast ? operands[static_cast<size_t>(root)].at(e) : sum);
  }
  return result;
}

// The rules of collectives are for parts along another axis of the mesh than their own: three ranks along
// that, each cut in parts. Adds the rules that were executed.
void run_collectives(std::map<std::string, std::set<size_t>>& executed, std::mt19937& random) {
  std::normal_distribution<double> normal;
  const auto draw = [&](const TensorType& type) {
    Tensor drawn(type);
    for (int64_t e = 0; e < drawn.elements(); ++e) drawn.set(e, normal(random));
    return drawn;
  };
  constexpr int kRanks = 3, kRoot = 1;
  for (const OpDef& op : op_table()) {
    if (!op.collective || op.sharding.empty()) continue;
    const std::vector<TensorType> types{{DType::f64, {4, 6, 5}}};
    const Attributes attributes = op.collective == CollectiveKind::broadcast
                                      ? Attributes{{"root", int64_t{kRoot}}, {"axis", int64_t{1}}}
                                      : Attributes{{"axis", int64_t{1}}};
    const OpCall call{op, types, attributes};
    REQUIRE(op.infer(call) == types);
    const Notation notation = notation_of(call, types);
    CHECK(forgotten(op, notation) == std::vector<std::string>{});
    std::vector<Tensor> whole;  // by rank along the collective's axis
    for (int rank = 0; rank < kRanks; ++rank) whole.push_back(draw(types[0]));
    const Tensor wanted = communicated(op, whole, kRoot);
    for (const ShardingInstance& instance : sharding_of(call, types)) {
      const bool summands = instance.letters.empty();
      const auto points = summands ? std::vector<int64_t>{0, 1, 2, 3} : random_points(instance.units, random);
      INFO(op.name << ", rule " << instance.rule);
      Tensor joined = Tensor::zeros(types[0]);
      std::vector<Tensor> left = whole;  // what the last part has of each sum
      for (size_t part = 0; part + 1 < points.size(); ++part) {
        if (points[part] == points[part + 1]) continue;
        TensorSlice slice = TensorSlice::whole(types[0].shape);
        if (!summands)
          slice = *cut(notation.inputs[0], types[0].shape, notation, instance.letters, instance.units,
                       {points[part], points[part + 1]});
        std::vector<Tensor> operands;
        for (int rank = 0; rank < kRanks; ++rank) {
          Tensor& rest = left[static_cast<size_t>(rank)];
          Tensor own = summands && part + 2 < points.size() ? draw(types[0]) : take(rest, slice);
          Tensor less(types[0]);
          for (int64_t e = 0; e < less.elements() && summands; ++e) less.set(e, rest.at(e) - own.at(e));
          if (summands) rest = less;
          operands.push_back(own);
        }
        const Tensor made = communicated(op, operands, kRoot);
        CHECK(localized(call, std::vector{slice}, std::vector{slice}) == attributes);
        if (!summands) put(joined, made, slice);
        for (int64_t e = 0; e < joined.elements() && summands; ++e) joined.set(e, joined.at(e) + made.at(e));
      }
      for (int64_t e = 0; e < wanted.elements(); ++e) CHECK(std::abs(joined.at(e) - wanted.at(e)) < 1e-12);
      executed[std::string(op.name)].insert(instance.rule);
    }
  }
}

// Rows far from 0: what f32 rounds of their mean is no small part of what is left when it is subtracted.
bool is_ill_conditioned(const Case& test) {
  return std::any_of(test.inputs.begin(), test.inputs.end(),
                     [](const OperandCase& input) { return std::abs(input.draw.low) >= 1000; });
}

}  // namespace

TEST_CASE("every sharding rule of every operator gives what the whole operator gives", "[sharding]") {
  std::map<std::string, std::set<size_t>> executed;  // rules by operator, cut unevenly
  std::string devices;
  for (const Subject& subject : two_subjects()) {
    const DType dtype = subject.is_reference() ? DType::f64 : DType::f32;
    std::mt19937 random(static_cast<unsigned>(random_seed()));
    Eager eager(subject.device);
    int trials = 0;
    double worst = 0;
    for (const Case& test : all_cases()) {
      const OpDef& op = op_named(test.op);
      const bool in_dtype = dtype == DType::f64 ||
                            std::find(test.dtypes.begin(), test.dtypes.end(), dtype) != test.dtypes.end();
      if (op.sharding.empty() || !in_dtype) continue;
      if (cut_dims(test) >= SliceMap::kMostDims) continue;  // of a part that cannot be cut further
      INFO(subject.name << ": " << to_string(test));
      const Whole whole(test, op, dtype);
      int64_t elements = 0;
      for (const TensorType& type : whole.input_types) elements += type.present() ? type.elements() : 0;
      if (elements > 200'000) continue;
      const Notation notation = notation_of(whole.call(), whole.output_types);
      CHECK(forgotten(op, notation) == std::vector<std::string>{});
      std::vector<Tensor> wanted;
      for (const ShardingInstance& instance : sharding_of(whole.call(), whole.output_types)) {
        const ShardingRule& rule = op.sharding[instance.rule];
        const bool summands = instance.letters.empty();
        if (summands ? elements == 0 : instance.units < 2) continue;
        if (wanted.empty()) wanted = run(eager, op, whole.inputs, whole.attributes);
        const std::vector<int64_t> points =
            summands ? std::vector<int64_t>{0, 1, 2, 3} : random_points(instance.units, random);
        INFO("rule " << instance.rule << " cuts " << fmt::format("{}", fmt::join(instance.letters, " "))
                     << " of " << instance.units << " at " << het::to_string(Shape(points)));
        const std::vector<Joined> together =
            Sharded(eager, whole, instance, notation, points, random).run_parts();
        for (size_t o = 0; o < wanted.size(); ++o) {
          if (!whole.output_types[o].present()) continue;
          INFO("result " << o);
          const double error = error_of(together[o], wanted[o]);
          // A decomposition rounds the sum of each part, and each rounding costs what the case allows.
          const bool apart = rule.decompose != nullptr && is_ill_conditioned(test);
          const double narrow = apart ? static_cast<double>(points.size() - 1) * test.tolerance.f32 : 1e-5;
          CHECK(error <= (wanted[o].dtype() == DType::f64 ? 1e-12 : narrow));
          if (wanted[o].dtype() == dtype) worst = std::max(worst, error);
        }
        ++trials;
        if (instance.units >= 3 || summands) executed[test.op].insert(instance.rule);
      }
    }
    devices +=
        fmt::format("{}{{\"name\": \"{}\", \"dtype\": \"{}\", \"trials\": {}, \"worst_error\": {:.2g}}}",
                    devices.empty() ? "" : ", ", subject.name, name_of(dtype), trials, worst);
  }
  std::mt19937 random(static_cast<unsigned>(random_seed()));
  run_collectives(executed, random);
  size_t rules = 0, operators = 0, done = 0;
  std::string without;
  for (const OpDef& op : op_table()) {
    rules += op.sharding.size();
    operators += op.sharding.empty() ? 0 : 1;
    done += executed[std::string(op.name)].size();
    if (op.sharding.empty()) without += fmt::format("{}\"{}\"", without.empty() ? "" : ", ", op.name);
    for (size_t r = 0; r < op.sharding.size(); ++r) {
      INFO(op.name << ", rule " << r << " (cut " << op.sharding[r].cut << ", partial "
                   << op.sharding[r].partial << ")");
      CHECK(executed[std::string(op.name)].contains(r));
    }
  }
  // What `hetrun bench rules` prints.
  std::cout
      << fmt::format(
             R"({{"operators": {}, "rules": {}, "executed": {}, "devices": [{}], "without_rules": [{}]}})",
             operators, rules, done, devices, without)
      << "\n";
}

}  // namespace het::ops_test
