#include "core/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"

namespace het {
namespace {

constexpr int64_t kBlock = 65536;
constexpr size_t kMostSources = 1024;

// Whole numbers in these shares that sum to kBlock: the largest remainders are rounded up (Hamilton).
std::vector<int64_t> apportioned(const std::vector<double>& weights, double sum) {
  std::vector<int64_t> counts;
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (const double weight : weights)
    counts.push_back(static_cast<int64_t>(std::floor(weight / sum * static_cast<double>(kBlock))));
  const auto remainder = [&](size_t i) {
    return weights[i] / sum * static_cast<double>(kBlock) - static_cast<double>(counts[i]);
  };
  std::vector<double> remainders;
  for (size_t i = 0; i < weights.size(); ++i) remainders.push_back(remainder(i));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  int64_t left = kBlock - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % order.size())
    if (weights[order[i]] > 0) {
      ++counts[order[i]];
      --left;
    }
  return counts;
}

}  // namespace

Mixture::Mixture(const std::vector<double>& weights) {
  if (weights.empty() || weights.size() > kMostSources)
    fail_usage("a mixture of {} sources is not possible; 1 to {} are", weights.size(), kMostSources);
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight >= 0 && std::isfinite(weight)))
      fail_usage("the weight {} is no number of at least 0", weight);
    sum += weight;
  }
  if (!(sum > 0 && std::isfinite(sum))) fail_usage("the weights of a mixture sum to {}", sum);
  for (const double weight : weights)
    if (weight > 0 && weight / sum < 1.0 / static_cast<double>(kBlock))
      fail_usage("the weight {} is less than 1 / {} of all weights, {}: it would have no samples", weight,
                 kBlock, sum);

  counts_ = apportioned(weights, sum);
  std::vector<int64_t> taken(weights.size());
  for (int64_t i = 0; i < kBlock; ++i) {
    size_t next = 0;
    int64_t most = -kBlock * kBlock;
    for (size_t s = 0; s < counts_.size(); ++s) {
      const int64_t lacks = (i + 1) * counts_[s] - taken[s] * kBlock;
      if (counts_[s] == 0 || lacks <= most) continue;
      most = lacks;
      next = s;
    }
    source_.push_back(static_cast<uint16_t>(next));
    before_.push_back(static_cast<int32_t>(taken[next]++));
  }
}

Mixture::Place Mixture::place(int64_t sample) const {
  const auto at = static_cast<size_t>(sample % kBlock);
  const size_t source = source_[at];
  return {source, sample / kBlock * counts_[source] + before_[at]};
}

}  // namespace het
