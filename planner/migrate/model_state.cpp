#include "planner/migrate/model_state.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace het::planner {
namespace {

// Elements of a tensor that stands for so many parameters. They are the finest that a share can be cut to:
// cuts by elements differ from those by heads and features, which a model of numbers does not know, by less
// than one of these, and not at all where shares come out even.
int64_t elements_for(double parameters) {
  constexpr double kMost = 9007199254740992.0;  // 2^53: up to here doubles are whole numbers
  return parameters > 0 ? std::max<int64_t>(1, std::llround(std::min(parameters, kMost))) : 0;
}

StateTensor tensor_of(double parameters, double parameter_bytes, bool trained) {
  const int64_t elements = elements_for(parameters);
  // All elements together have the bytes of all parameters, also where these are no whole number.
  const double bytes = elements > 0 ? parameter_bytes * (parameters / static_cast<double>(elements)) : 0;
  return {{elements}, bytes, trained, !trained};
}

constexpr size_t kDivided[] = {0, 2};  // of the four tensors of a layer

std::vector<StateTensor> tensors_of(const Model& model, const LayerKind& kind) {
  const double divided = kind.parameters - kind.whole_parameters, whole = kind.whole_parameters;
  const double weight_bytes = model.weight_bytes - model.made_bytes;
  return {tensor_of(divided, weight_bytes, true), tensor_of(whole, weight_bytes, true),
          tensor_of(divided, model.optimizer_bytes, false), tensor_of(whole, model.optimizer_bytes, false)};
}

std::vector<std::vector<TensorSlice>> slices_of(const std::vector<StateTensor>& tensors,
                                                const StageCut& cut) {
  if (!cut.is_megatron())
    fail_usage(
        "it cuts layers by `sharding`; which parameters that cuts, only the model's graph shows, and this "
        "model is given by numbers");
  std::vector<TensorSlice> whole;
  for (const StateTensor& tensor : tensors) whole.push_back(TensorSlice::whole(tensor.shape));
  std::vector<std::vector<TensorSlice>> slices(static_cast<size_t>(cut.parts()), whole);
  for (const size_t t : kDivided) {
    const std::vector<int64_t> points = cut_points(tensors[t].shape[0], cut.axes[0].shares);
    for (size_t part = 0; part < slices.size(); ++part)
      slices[part][t] = whole[t].narrowed(0, Range{points[part], points[part + 1]});
  }
  return slices;
}

}  // namespace

ModelState state_of(const Model& model) {
  ModelState state;
  for (const LayerKind& kind : model.kinds) state.kinds.push_back(tensors_of(model, kind));
  state.layers = model.layers;
  state.slices = [kinds = state.kinds, layers = state.layers](int layer, const StageCut& cut) {
    return slices_of(kinds[static_cast<size_t>(layers[static_cast<size_t>(layer)])], cut);
  };
  return state;
}

}  // namespace het::planner
