// Every case of every operator: devices against the oracle, gradients against differences.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <utility>

#include "core/base/parallel.h"
#include "core/ops/op.h"
#include "tests/ops/devices.h"
#include "tests/ops/harness.h"

namespace het::ops_test {
namespace {

const std::vector<std::string> kNone;

std::vector<const Case*> cases_of(std::string_view op) {
  std::vector<const Case*> found;
  for (const Case& test : all_cases())
    if (test.op == op) found.push_back(&test);
  return found;
}

// Views and concat are lowered to layouts and copies, collectives to communication (tests/unit/planner):
// devices have nothing to do for them.
bool has_kernel(const OpDef& op) { return !op.view && op.name != "concat" && !op.collective; }

std::vector<Placing> placings_of(const OpDef& op, const Subject& subject) {
  std::vector<Placing> placings{Placing::packed};
  if (op.strided_inputs != 0 || op.strided_outputs != 0)
    placings.insert(placings.end(), {Placing::padded, Placing::permuted});
  if (op.name == "copy") placings.push_back(Placing::reversed);
  if (subject.is_gpu()) placings.push_back(Placing::spaced);  // its fast paths want accesses of 16 bytes
  return placings;
}

std::vector<uint32_t> accumulations_of(const OpDef& op) {
  std::vector<uint32_t> masks{0};
  if (op.accumulates != 0) masks.push_back(op.accumulates);
  for (uint32_t bit = 1; bit <= op.accumulates; bit <<= 1)
    if ((op.accumulates & bit) != 0 && op.accumulates != bit) masks.push_back(bit);
  return masks;
}

// Of each result that the operator can leave out.
std::vector<uint32_t> absences_of(const OpDef& op) {
  std::vector<uint32_t> masks;
  for (uint32_t bit = 1; bit != 0 && bit <= op.optional_outputs; bit <<= 1)
    if ((op.optional_outputs & bit) != 0) masks.push_back(bit);
  return masks;
}

// Devices may leave f16 out; f32 and bf16 they all have.
bool may_lack(DType dtype) { return dtype == DType::f16; }

// Of the operator's arithmetic, without running it.
double flops_of(const Case& test) {
  std::vector<TensorType> types;
  for (const OperandCase& operand : test.inputs) types.push_back(type_of(operand, DType::f64));
  const OpDef& op = op_named(test.op);
  const OpCall call{op, types, test.attributes};
  return cost_of(call, op.infer(call)).flops;
}

// Of `all_cases`: what a case should give is computed once for all devices and numbers of threads.
const TypedCase& known_case(const Case& test, DType dtype) {
  static std::map<std::pair<const Case*, DType>, TypedCase> known;
  const auto entry = known.find({&test, dtype});
  if (entry != known.end()) return entry->second;
  return known.emplace(std::pair{&test, dtype}, typed_case(test, dtype)).first->second;
}

void compare_all(const Subject& subject, const OpDef& op) {
  for (const Case* test : cases_of(op.name)) {
    // The reference in another dtype runs the loops of the oracle: on large cases that shows nothing new.
    if (subject.is_reference() && flops_of(*test) > 100'000) continue;
    for (const DType dtype : test->dtypes) {
      const TypedCase& typed = known_case(*test, dtype);
      const auto check = [&](Placing placing, uint32_t accumulate, uint32_t absent) {
        INFO(to_string(*test) << ", " << name_of(dtype) << ", " << name_of(placing) << ", accumulating into "
                              << accumulate << ", without " << absent << ", seed " << random_seed());
        bool supported = false;
        const auto problems = compare(
            *subject.device, {typed, placing, accumulate, placing == Placing::spaced, absent}, supported);
        if (!supported && !may_lack(dtype)) FAIL_CHECK("the device has no kernel for it");
        CHECK(problems == kNone);
      };
      for (const Placing placing : placings_of(op, subject))
        for (const uint32_t accumulate : accumulations_of(op)) check(placing, accumulate, 0);
      for (const uint32_t absent : absences_of(op)) check(Placing::packed, op.accumulates & ~absent, absent);
    }
  }
}

// Differences run the graph hundreds of times: large cases are left to the comparison of kernels.
bool small(const Case& test) {
  double elements = 0;
  for (const OperandCase& operand : test.inputs) elements += static_cast<double>(elements_of(operand.shape));
  return elements <= 1000 && flops_of(test) <= 20'000;
}

class Threads {
 public:
  explicit Threads(int count) : before_(thread_count()) { set_thread_count(count); }
  ~Threads() { set_thread_count(before_); }

 private:
  int before_;
};

}  // namespace

TEST_CASE("every operator has a case, and every case an operator") {
  std::set<std::string_view> tested;
  for (const Case& test : all_cases()) tested.insert(op_named(test.op).name);
  for (const OpDef& op : op_table()) {
    if (op.collective) continue;
    INFO("add cases of '" << op.name << "' to the file of its family in tests/ops");
    CHECK(tested.count(op.name) == 1);
  }
}

TEST_CASE("what operators say of themselves is consistent") {
  const auto has = [](const OpDef& op, std::string_view attribute) {
    return std::count(op.attributes.begin(), op.attributes.end(), attribute) == 1;
  };
  for (const OpDef& op : op_table()) {
    INFO(op.name);
    CHECK((!op.view_source || op.view));
    CHECK((!op.casts || op.copies_operand));
    CHECK((!op.concatenates || has(op, "dim")));
    CHECK(has(op, "activation") == (op.preactivation_result >= 0 || op.preactivation_operand >= 0));
    if (op.joined_as.op.empty()) continue;
    const OpDef& joined = op_named(op.joined_as.op);
    CHECK(has(op, op.joined_as.attribute));
    CHECK(has(joined, op.joined_as.list));
    CHECK(joined.in_place_group.first == static_cast<int>(op.in_place.size()));
    CHECK(joined.in_place == op.in_place);
  }
}

TEST_CASE("a view's operand lies where its result has to be") {
  const TensorType operand{DType::f32, {4, 6}};
  const Layout wanted = sliced(Layout::contiguous({DType::f32, {4, 5, 2}}), 1, 1, 3);
  const auto source = op_named("reshape").view_source(wanted, operand);
  REQUIRE(source.has_value());
  CHECK(op_named("reshape").view(*source, {{"shape", wanted.type.shape}}).value() == std::vector{wanted});
  const Layout apart = sliced(Layout::contiguous({DType::f32, {4, 3, 3}}), 1, 0, 2);
  CHECK_FALSE(op_named("reshape").view_source(apart, {DType::f32, {24}}).has_value());
}

TEST_CASE("a device computes what plain loops in f64 do") {
  for (const Subject& subject : subjects())
    for (const OpDef& op : op_table()) {
      if (!has_kernel(op)) continue;
      DYNAMIC_SECTION(subject.name << ": " << op.name) { compare_all(subject, op); }
    }
}

TEST_CASE("a device computes the same with one thread and with many") {
  for (const int count : {1, 3}) {
    const Threads threads(count);
    for (const Subject& subject : subjects()) {
      if (subject.is_reference() || subject.is_gpu()) continue;
      for (const OpDef& op : op_table()) {
        if (!has_kernel(op)) continue;
        DYNAMIC_SECTION(subject.name << " with " << count << " threads: " << op.name) {
          compare_all(subject, op);
        }
      }
    }
  }
}

TEST_CASE("an operator runs through lowering") {
  for (const Subject& subject : subjects())
    for (const OpDef& op : op_table()) {
      if (op.collective) continue;
      DYNAMIC_SECTION(subject.name << ": " << op.name) {
        for (const Case* test : cases_of(op.name))
          for (const DType dtype : test->dtypes) {
            if (may_lack(dtype) || flops_of(*test) > 100'000) continue;
            INFO(to_string(*test) << ", " << name_of(dtype) << ", seed " << random_seed());
            CHECK(check_graph(subject.device, *test, dtype) == kNone);
          }
      }
    }
}

TEST_CASE("a gradient agrees with central differences") {
  for (const OpDef& op : op_table()) {
    if (!op.gradient || op.name == "stochastic_cast") continue;  // a step function; gradients.cpp has another
    DYNAMIC_SECTION(op.name) {
      bool checked = false;
      for (const Case* test : cases_of(op.name)) {
        if (!test->gradient || !small(*test)) continue;
        checked = true;
        for (const bool fused : {false, true}) {
          INFO(to_string(*test) << (fused ? ", fused" : "") << ", seed " << random_seed());
          CHECK(check_gradient(*test, fused) == kNone);
        }
      }
      CHECK(checked);
    }
  }
}

}  // namespace het::ops_test
