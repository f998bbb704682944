#include "kernels/cpu/pointwise.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"

namespace het::cpu {
namespace {

bool is_function(Pointwise code) {
  switch (code) {
    case Pointwise::exp:
    case Pointwise::log:
    case Pointwise::sin:
    case Pointwise::cos:
    case Pointwise::pow:
    case Pointwise::power:
    case Pointwise::tanh:
    case Pointwise::sigmoid:
    case Pointwise::silu:
    case Pointwise::gelu_tanh:
    case Pointwise::gelu_erf:
    case Pointwise::gelu_tanh_gradient:
    case Pointwise::gelu_erf_gradient:
    case Pointwise::silu_gradient: return true;
    default: return false;
  }
}

// Elements after which the operand repeats: 1 for a scalar, all for a packed one; 0 when it does not just
// repeat.
int64_t period_of(const Loops& loops, int operand) {
  int64_t period = 1;
  int d = loops.rank - 1;
  for (; d >= 0 && loops.stride[operand][d] == period; --d) period *= loops.size[d];
  for (; d >= 0; --d)
    if (loops.stride[operand][d] != 0) return 0;
  return period;
}

// Gives out scratch tiles, reusing those whose content is not read any more.
class Slots {
 public:
  int take() {
    if (!free_.empty()) {
      const int slot = free_.back();
      free_.pop_back();
      return slot;
    }
    return count_++;
  }
  void give_back(int slot) { free_.push_back(slot); }
  int count() const { return count_; }

 private:
  std::vector<int> free_;
  int count_ = 0;
};

// Kinds of operands. The first repeating pattern sets the tile; others repeat in it or are gathered.
void choose_loads(PointwisePlan& plan) {
  bool tiled = false;
  for (int i = 0; i < plan.inputs; ++i) {
    auto& input = plan.input[i];
    const int64_t period = period_of(plan.loops, i);
    input.period = period;
    if (period == plan.elements && period != 1) {
      input.load = input.dtype == DType::f32 ? PointwisePlan::Load::direct : PointwisePlan::Load::convert;
    } else if (period > 0 && period <= PointwisePlan::kTile &&
               (period == 1 || !tiled || plan.tile % period == 0)) {
      input.load = PointwisePlan::Load::once;
      if (period > 1 && !tiled) {
        plan.tile = PointwisePlan::kTile / period * period;
        tiled = true;
      }
    } else {
      input.load = PointwisePlan::Load::gather;
    }
  }
}

// The step that uses each operand and each step's value last; plan.steps: the end of the tile.
std::vector<int> last_uses(const PointwiseProgram& program, const PointwisePlan& plan) {
  std::vector<int> last_use(plan.inputs + plan.steps, -1);
  for (int s = 0; s < plan.steps; ++s)
    for (const int source : {program.steps[s].a, program.steps[s].b})
      if (source >= 0) last_use[source] = s;
  for (const int source : program.results) last_use[source] = plan.steps;
  return last_use;
}

// Where operands and the values of steps lie: in the tensors themselves, or in slots of a tile that are used
// again.
void assign_places(const PointwiseProgram& program, PointwisePlan& plan) {
  std::vector<int> last_use = last_uses(program, plan);
  // -1000 - i and -2000 - i stand for direct operands and results until the number of slots is known.
  constexpr int kDirectInput = -1000, kDirectResult = -2000;
  Slots slots;
  std::vector<int> place(plan.inputs + plan.steps);
  for (int i = 0; i < plan.inputs; ++i)
    place[i] = plan.input[i].load == PointwisePlan::Load::direct ? kDirectInput - i : slots.take();
  const auto release = [&](int source, int step) {
    if (source < 0 || last_use[source] != step || place[source] < 0) return;
    if (source < plan.inputs && plan.input[source].load == PointwisePlan::Load::once) return;
    slots.give_back(place[source]);
    last_use[source] = -1;
  };
  for (int s = 0; s < plan.steps; ++s) {
    const PointwiseStep& step = program.steps[s];
    const int source = plan.inputs + s;
    // A step may write over its operands: it reads each element before it writes it.
    const int from_a = place[step.a], from_b = step.b >= 0 ? place[step.b] : -1;
    release(step.a, s);
    release(step.b, s);
    place[source] = 0;
    bool direct = false;
    for (int r = 0; r < plan.results && !direct; ++r)
      if (program.results[r] == source && plan.result[r].dtype == DType::f32) {
        place[source] = kDirectResult - r;
        direct = true;
      }
    if (!direct) place[source] = slots.take();
    plan.step[s] = {step.code, from_a, from_b, place[source], step.immediate};
  }
  plan.slots = slots.count();

  const auto resolve = [&](int p) {
    return p <= kDirectResult  ? plan.result_place(kDirectResult - p)
           : p <= kDirectInput ? plan.input_place(kDirectInput - p)
                               : p;
  };
  for (int i = 0; i < plan.inputs; ++i) plan.input[i].place = resolve(place[i]);
  for (int s = 0; s < plan.steps; ++s) {
    plan.step[s].a = resolve(plan.step[s].a);
    plan.step[s].b = plan.step[s].b == -1 ? -1 : resolve(plan.step[s].b);
    plan.step[s].to = resolve(plan.step[s].to);
  }
  for (int r = 0; r < plan.results; ++r) {
    plan.result[r].place = resolve(place[program.results[r]]);
    plan.result[r].direct = plan.result[r].place == plan.result_place(r);
  }
}

// Wide types are computed element by element: each operand and step has a separate place.
void number_places(const PointwiseProgram& program, PointwisePlan& plan) {
  for (int i = 0; i < plan.inputs; ++i) plan.input[i].place = i;
  for (int i = 0; i < plan.steps; ++i)
    plan.step[i] = {program.steps[i].code, program.steps[i].a, program.steps[i].b, plan.inputs + i,
                    program.steps[i].immediate};
  for (int i = 0; i < plan.results; ++i) plan.result[i].place = program.results[i];
}

}  // namespace

PointwisePlan plan_pointwise(const KernelRequest& request) {
  const PointwiseProgram program = pointwise_program(request.op, request.attributes, request.inputs.size());
  PointwisePlan plan;
  plan.inputs = program.inputs;
  plan.steps = static_cast<int>(program.steps.size());
  plan.results = static_cast<int>(program.results.size());
  const Shape& shape = request.outputs[0].type.shape;
  plan.elements = elements_of(shape);
  std::vector<const Layout*> operands;
  for (const Layout& input : request.inputs) operands.push_back(&input);
  // The result takes part in the merging, so that the loops run over its elements in order.
  operands.push_back(&request.outputs[0]);
  for (const Layout& output : request.outputs) require_packed(request, output);
  plan.loops = merge_loops(request, shape, operands);

  for (int i = 0; i < plan.inputs; ++i) plan.input[i].dtype = request.inputs[i].type.dtype;
  for (int i = 0; i < plan.results; ++i) plan.result[i].dtype = request.outputs[i].type.dtype;
  for (int i = 0; i < plan.inputs; ++i) plan.wide |= !is_narrow(plan.input[i].dtype);
  for (int i = 0; i < plan.results; ++i) plan.wide |= !is_narrow(plan.result[i].dtype);
  for (const PointwiseStep& step : program.steps) plan.heavy |= is_function(step.code);

  if (plan.wide) {
    number_places(program, plan);
    return plan;
  }
  choose_loads(plan);
  assign_places(program, plan);
  return plan;
}

}  // namespace het::cpu
