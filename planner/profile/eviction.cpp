#include "planner/profile/eviction.h"

#include <algorithm>
#include <set>
#include <utility>

namespace het::planner {
namespace {

// A layer's passes: forward, backward; the update is one of all layers.
enum class Pass : uint8_t { forward, backward, update };
Pass pass_of(Part part) {
  if (part == Part::forward) return Pass::forward;
  return part == Part::update ? Pass::update : Pass::backward;
}

// What forward and backward of a layer read and write: weights and activations twice, gradients once.
double traffic(const LayerMemory& layer) {
  return 2 * layer.weights + layer.gradients + 2 * layer.activations;
}

}  // namespace

// From a layer's forward to its backward the layers after it go forward and back, from there to its next
// forward those before it: either way half of all others on average.
Eviction::Eviction(const std::vector<Share>& shares, const std::vector<LayerMemory>& memory)
    : passes_(shares.size()) {
  std::set<int> here;
  std::pair<int, Pass> last{-1, Pass::update};
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].part == Part::apart) continue;
    here.insert(shares[i].layer);
    const Pass pass = pass_of(shares[i].part);
    const std::pair<int, Pass> own{pass == Pass::update ? -1 : shares[i].layer, pass};
    passes_[i] = own != last;
    last = own;
  }
  double bytes = 0;
  for (size_t layer = 0; layer < memory.size(); ++layer)
    if (!here.contains(static_cast<int>(layer))) bytes += traffic(memory[layer]);
  lines_.resize(static_cast<size_t>(std::min(bytes / 2, kMostBytes)) / sizeof(Line));
}

void Eviction::operator()(size_t i) {
  if (!passes_[i]) return;
  for (Line& line : lines_) line.word = line.word + 1;
}

}  // namespace het::planner
