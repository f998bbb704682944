#include "core/data/draw.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/base/error.h"

namespace het {

int64_t draw_token(std::span<const float> logits, const DrawOptions& options, double uniform) {
  if (logits.empty()) fail_usage("no token can be drawn: there are no logits");
  if (!(options.temperature >= 0)) fail_usage("temperature = {}; it is 0 or more", options.temperature);
  if (options.top_k && *options.top_k < 1) fail_usage("top_k = {}; it is 1 or more", *options.top_k);
  if (!(options.top_p >= 0)) fail_usage("top_p = {}; it is 0 to 1", options.top_p);
  if (!(uniform >= 0 && uniform < 1)) fail_usage("uniform = {}; it is from 0 to below 1", uniform);
  const bool numbers =
      std::none_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); });
  const auto likeliest = std::max_element(logits.begin(), logits.end());  // the first of equal ones
  if (!numbers || std::isinf(*likeliest))
    fail_usage("the model gives no probabilities for the next token: its logits are not finite");
  const int64_t best = likeliest - logits.begin();
  if (options.temperature == 0 || options.top_k.value_or(0) == 1) return best;

  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto likelier = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.top_k && *options.top_k < static_cast<int64_t>(order.size())) {
    std::nth_element(order.begin(), order.begin() + *options.top_k, order.end(), likelier);
    order.resize(static_cast<size_t>(*options.top_k));
    std::sort(order.begin(), order.end());
  }
  const auto weight = [&](int64_t id) {
    return std::exp((double{logits[static_cast<size_t>(id)]} - *likeliest) / options.temperature);
  };
  double total = 0;
  for (const int64_t id : order) total += weight(id);
  if (options.top_p < 1) {
    // A heap gives up the likeliest one by one: few of them usually have the share.
    const auto less = [&](int64_t a, int64_t b) { return likelier(b, a); };
    std::make_heap(order.begin(), order.end(), less);
    std::vector<int64_t> kept;
    double sum = 0;
    for (auto end = order.end(); end != order.begin() && sum < options.top_p * total; --end) {
      std::pop_heap(order.begin(), end, less);
      kept.push_back(*(end - 1));
      sum += weight(kept.back());
    }
    order = std::move(kept);
    total = sum;
  }
  double target = uniform * total;
  int64_t chosen = best;
  for (const int64_t id : order) {
    const double share = weight(id);
    if (share > 0) chosen = id;  // rounding may leave some of the target at the end
    target -= share;
    if (target < 0) break;
  }
  return chosen;
}

}  // namespace het
