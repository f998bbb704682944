#include "planner/assignment/elimination.h"

#include <algorithm>
#include <limits>
#include <queue>

namespace het::planner::assignment {
namespace {

// Which variable goes next: the one with the smallest table. The tables are tracked as scopes.
class Order {
 public:
  Order(const PairModel& model, size_t variables)
      : sizes_(model.sizes), of_(variables), gone_(variables, 0), stamp_(variables, 0) {}

  void add(int factor, const std::vector<int>& scope) {
    if (static_cast<size_t>(factor) >= scopes_.size()) scopes_.resize(static_cast<size_t>(factor) + 1);
    scopes_[static_cast<size_t>(factor)] = scope;
    for (const int v : scope) of_[static_cast<size_t>(v)].push_back(factor);
  }
  std::vector<int>& factors_of(int v) { return of_[static_cast<size_t>(v)]; }
  const std::vector<int>& scope(int factor) const { return scopes_[static_cast<size_t>(factor)]; }
  // At least 2, so that scopes stay short.
  double size(int v) const { return std::max(2, sizes_[static_cast<size_t>(v)]); }
  bool gone(int v) const { return gone_[static_cast<size_t>(v)] != 0; }

  // Neighbours of v that are left.
  std::vector<int> neighbours(int v) {
    ++now_;
    stamp_[static_cast<size_t>(v)] = now_;
    std::vector<int> result;
    for (const int f : factors_of(v))
      for (const int u : scope(f))
        if (stamp_[static_cast<size_t>(u)] != now_ && !gone(u)) {
          stamp_[static_cast<size_t>(u)] = now_;
          result.push_back(u);
        }
    return result;
  }
  double entries(int v) {
    double product = size(v);
    for (const int u : neighbours(v)) product *= size(u);
    return product;
  }
  void push(int v) { queue_.push({entries(v), v}); }
  // Variables of many factors are looked at when their turn comes.
  void changed(int v) {
    constexpr size_t kMany = 40;
    if (factors_of(v).size() <= kMany) push(v);
  }
  bool pop(int& v, double& product) {
    while (!queue_.empty()) {
      const auto [key, top] = queue_.top();
      queue_.pop();
      if (gone(top)) continue;
      const double now = entries(top);
      if (now > key) {
        queue_.push({now, top});
        continue;
      }
      v = top;
      product = now;
      return true;
    }
    return false;
  }
  void remove(int v) {
    gone_[static_cast<size_t>(v)] = 1;
    factors_of(v).clear();
  }
  void drop_factor(int f, int except) {
    for (const int u : scope(f))
      if (u != except && !gone(u)) std::erase(factors_of(u), f);
  }

 private:
  struct Entry {
    double key;
    int variable;
    bool operator<(const Entry& other) const {
      return key != other.key ? key > other.key : variable > other.variable;
    }
  };
  const std::vector<int>& sizes_;
  std::vector<std::vector<int>> of_, scopes_;
  std::vector<char> gone_;
  std::vector<int> stamp_;
  int now_ = 0;
  std::priority_queue<Entry> queue_;
};

}  // namespace

std::vector<size_t> PairModel::offsets() const {
  std::vector<size_t> result{0};
  for (const int size : sizes) result.push_back(result.back() + static_cast<size_t>(size));
  return result;
}

Elimination::Elimination(PairModel model, double most_entries, TooLarge too_large, Random& random,
                         const Clock* clock, double most_total)
    : model_(std::move(model)), offsets_(model_.offsets()) {
  constexpr double kFewest = 64;
  do {
    planned_ = plan(most_entries, too_large, random, clock);
    most_entries /= 4;
  } while (planned_ && total_ > most_total && most_entries > kFewest);
  if (planned_)
    arrange();
  else
    exact_ = false;
}

bool Elimination::plan(double most_entries, TooLarge too_large, Random& random, const Clock* clock) {
  const size_t variables = model_.sizes.size();
  factors_.clear();
  buckets_.clear();
  buckets_of_.clear();
  order_.clear();
  held_.clear();
  is_held_.assign(variables, 0);
  total_ = work_ = 0;
  exact_ = true;
  Order order(model_, variables);
  for (const PairModel::Pair& pair : model_.pairs) {
    order.add(static_cast<int>(factors_.size()), {pair.a, pair.b});
    factors_.push_back({{pair.a, pair.b}, pair.cost, {}});
  }
  for (size_t v = 0; v < variables; ++v) order.push(static_cast<int>(v));
  int v = 0;
  size_t steps = 0;
  for (double entries = 0; order.pop(v, entries);) {
    constexpr size_t kOften = 255;
    if (clock && (++steps & kOften) == 0 && clock->passed()) return false;
    const std::vector<int> around = order.neighbours(v);
    if (entries > most_entries && too_large == TooLarge::hold) {
      // Held: of this variable and its neighbours the one that many tables have, by chance among the likely
      // ones.
      int held = v;
      double best = -1;
      for (size_t i = 0; i <= around.size(); ++i) {
        const int u = i < around.size() ? around[i] : v;
        const double weight = static_cast<double>(order.factors_of(u).size()) * (0.3 + random.uniform());
        if (weight > best) {
          best = weight;
          held = u;
        }
      }
      const std::vector<int> others = order.neighbours(held);
      exact_ = false;
      held_.push_back(held);
      is_held_[static_cast<size_t>(held)] = 1;
      order.remove(held);
      for (const int u : others) order.changed(u);
      if (held != v) order.push(v);
      continue;
    }
    // The tables of this variable, in one bucket or, where that is too large, in several.
    std::vector<int> factors = order.factors_of(v);
    const bool split = entries > most_entries;
    if (split)
      std::sort(factors.begin(), factors.end(), [&](int f, int g) {
        return std::pair(order.scope(g).size(), f) < std::pair(order.scope(f).size(), g);
      });
    const size_t begin = buckets_.size();
    std::vector<double> products;
    if (!split) {
      buckets_.push_back({v, -1, around, factors, true});
      products.push_back(entries);
    } else {
      for (const int f : factors) {
        size_t into = begin;
        double product = 0;
        std::vector<int> added;
        for (; into <= buckets_.size(); ++into) {
          const bool fresh = into == buckets_.size();
          product = fresh ? order.size(v) : products[into - begin];
          added.clear();
          for (const int u : order.scope(f)) {
            if (u == v || order.gone(u)) continue;
            if (!fresh && std::find(buckets_[into].scope.begin(), buckets_[into].scope.end(), u) !=
                              buckets_[into].scope.end())
              continue;
            product *= order.size(u);
            added.push_back(u);
          }
          if (fresh || product <= most_entries) break;
        }
        if (into == buckets_.size()) {
          buckets_.push_back({v, -1, {}, {}, into == begin});
          products.push_back(order.size(v));
        }
        products[into - begin] = product;
        buckets_[into].scope.insert(buckets_[into].scope.end(), added.begin(), added.end());
        buckets_[into].factors.push_back(f);
      }
      exact_ = exact_ && buckets_.size() == begin + 1;
    }
    for (const int f : factors) order.drop_factor(f, v);
    order.remove(v);
    buckets_of_.emplace_back();
    for (size_t b = begin; b < buckets_.size(); ++b) {
      Bucket& bucket = buckets_[b];
      buckets_of_.back().push_back(static_cast<int>(b));
      work_ += products[b - begin] * static_cast<double>(bucket.factors.size() + 1);
      if (bucket.scope.size() < 2) continue;
      bucket.into = static_cast<int>(factors_.size());
      factors_.push_back({bucket.scope, nullptr, {}});
      order.add(bucket.into, bucket.scope);
      total_ += products[b - begin] / order.size(v);
    }
    order_.push_back(v);
    for (const int u : around) order.changed(u);
  }
  return true;
}

// In each table the variable that goes next varies fastest.
void Elimination::arrange() {
  std::vector<int> place(model_.sizes.size(), -1);
  for (size_t i = 0; i < order_.size(); ++i) place[static_cast<size_t>(order_[i])] = static_cast<int>(i);
  for (Bucket& bucket : buckets_) {
    std::erase_if(bucket.scope, [&](int u) { return is_held_[static_cast<size_t>(u)] != 0; });
    std::sort(bucket.scope.begin(), bucket.scope.end(),
              [&](int a, int b) { return place[static_cast<size_t>(a)] > place[static_cast<size_t>(b)]; });
    if (bucket.scope.size() < 2) bucket.into = -1;
    if (bucket.into >= 0) factors_[static_cast<size_t>(bucket.into)].scope = bucket.scope;
  }
  // A message that lost all but one variable to held ones is that variable's own cost; a pair with a held
  // end, too.
  for (Bucket& bucket : buckets_)
    std::erase_if(bucket.factors, [&](int f) {
      const Factor& factor = factors_[static_cast<size_t>(f)];
      if (factor.table)
        return is_held_[static_cast<size_t>(factor.scope[0])] ||
               is_held_[static_cast<size_t>(factor.scope[1])];
      return std::count_if(factor.scope.begin(), factor.scope.end(),
                           [&](int u) { return !is_held_[static_cast<size_t>(u)]; }) < 2;
    });
}

// Add the factor to the bucket's table, [scope..., variable].
void Elimination::accumulate(const Bucket& bucket, const Factor& factor) {
  const int own = model_.sizes[static_cast<size_t>(bucket.variable)];
  constexpr size_t kMostDimensions = 64;
  std::ptrdiff_t strides[kMostDimensions] = {};
  std::ptrdiff_t stride = 1, own_stride = 1;
  const size_t dimensions = bucket.scope.size();
  for (size_t k = factor.scope.size(); k-- > 0;) {
    const int u = factor.scope[k];
    if (u == bucket.variable) {
      own_stride = stride;
    } else {
      for (size_t d = 0; d < dimensions; ++d)
        if (bucket.scope[d] == u) strides[d] = stride;
    }
    stride *= model_.sizes[static_cast<size_t>(u)];
  }
  const double* data = factor.data();
  double* out = scratch_.data();
  if (dimensions == 0) {
    for (int s = 0; s < own; ++s) out[s] += data[s * own_stride];
    return;
  }
  const size_t last = dimensions - 1;
  const int last_size = model_.sizes[static_cast<size_t>(bucket.scope[last])];
  int index[kMostDimensions] = {};
  std::ptrdiff_t offset = 0;
  while (true) {
    const double* row = data + offset;
    for (int i = 0; i < last_size; ++i, row += strides[last], out += own) {
      if (own_stride == 1)
        for (int s = 0; s < own; ++s) out[s] += row[s];
      else
        for (int s = 0; s < own; ++s) out[s] += row[s * own_stride];
    }
    size_t d = last;
    while (d > 0) {
      --d;
      offset += strides[d];
      if (++index[d] < model_.sizes[static_cast<size_t>(bucket.scope[d])]) break;
      offset -= strides[d] * index[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (last == 0) return;
  }
}

bool Elimination::solve_bucket(const Bucket& bucket, const Clock& clock) {
  const auto own = static_cast<size_t>(model_.sizes[static_cast<size_t>(bucket.variable)]);
  size_t count = 1;
  for (const int u : bucket.scope) count *= static_cast<size_t>(model_.sizes[static_cast<size_t>(u)]);
  if (scratch_.size() < count * own) scratch_.resize(count * own);
  const double* cost = unary_.data() + offsets_[static_cast<size_t>(bucket.variable)];
  if (bucket.first)
    for (size_t i = 0; i < count; ++i) std::copy(cost, cost + own, scratch_.data() + i * own);
  else
    std::fill(scratch_.begin(), scratch_.begin() + static_cast<std::ptrdiff_t>(count * own), 0.0);
  for (const int f : bucket.factors) accumulate(bucket, factors_[static_cast<size_t>(f)]);
  double* out = nullptr;
  double one = 0;
  if (bucket.into >= 0) {
    std::vector<double>& message = factors_[static_cast<size_t>(bucket.into)].message;
    message.resize(count);
    out = message.data();
  } else if (bucket.scope.empty()) {
    out = &one;
  }
  double* single =
      bucket.scope.size() == 1 ? unary_.data() + offsets_[static_cast<size_t>(bucket.scope[0])] : nullptr;
  for (size_t i = 0; i < count; ++i) {
    const double* values = scratch_.data() + i * own;
    double least = values[0];
    for (size_t s = 1; s < own; ++s) least = std::min(least, values[s]);
    if (single)
      single[i] += least;
    else
      out[i] = least;
  }
  if (bucket.scope.empty()) constant_ += one;
  constexpr size_t kOften = 1 << 16;
  return count * own < kOften || !clock.passed();
}

bool Elimination::run(const std::vector<double>& unary, std::vector<int>& choice, const Clock& clock,
                      double& least) {
  if (!planned_) return false;
  unary_ = unary;
  constant_ = 0;
  for (const PairModel::Pair& pair : model_.pairs) {
    const bool a = is_held_[static_cast<size_t>(pair.a)] != 0, b = is_held_[static_cast<size_t>(pair.b)] != 0;
    const int n = model_.sizes[static_cast<size_t>(pair.a)], m = model_.sizes[static_cast<size_t>(pair.b)];
    const int s = choice[static_cast<size_t>(pair.a)], t = choice[static_cast<size_t>(pair.b)];
    if (a && b)
      constant_ += pair.cost[s * m + t];
    else if (a)
      for (int k = 0; k < m; ++k)
        unary_[offsets_[static_cast<size_t>(pair.b)] + static_cast<size_t>(k)] += pair.cost[s * m + k];
    else if (b)
      for (int k = 0; k < n; ++k)
        unary_[offsets_[static_cast<size_t>(pair.a)] + static_cast<size_t>(k)] += pair.cost[k * m + t];
  }
  for (const int v : held_)
    constant_ +=
        unary[offsets_[static_cast<size_t>(v)] + static_cast<size_t>(choice[static_cast<size_t>(v)])];
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!solve_bucket(buckets_[b], clock)) return false;
    constexpr size_t kOften = 1023;
    if ((b & kOften) == kOften && clock.passed()) return false;
  }
  std::vector<double> costs;
  for (size_t depth = 0; depth < order_.size(); ++depth) {
    values(depth, choice, costs);
    choice[static_cast<size_t>(variable(depth))] =
        static_cast<int>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  }
  least = constant_;
  return true;
}

void Elimination::values(size_t depth, const std::vector<int>& choice, std::vector<double>& result) const {
  const size_t at = order_.size() - 1 - depth;
  const int v = order_[at];
  const auto own = static_cast<size_t>(model_.sizes[static_cast<size_t>(v)]);
  const double* cost = unary_.data() + offsets_[static_cast<size_t>(v)];
  result.assign(cost, cost + own);
  for (const int b : buckets_of_[at])
    for (const int f : buckets_[static_cast<size_t>(b)].factors) {
      const Factor& factor = factors_[static_cast<size_t>(f)];
      std::ptrdiff_t stride = 1, own_stride = 1, offset = 0;
      for (size_t k = factor.scope.size(); k-- > 0;) {
        const int u = factor.scope[k];
        if (u == v)
          own_stride = stride;
        else
          offset += stride * choice[static_cast<size_t>(u)];
        stride *= model_.sizes[static_cast<size_t>(u)];
      }
      const double* row = factor.data() + offset;
      for (size_t s = 0; s < own; ++s) result[s] += row[static_cast<std::ptrdiff_t>(s) * own_stride];
    }
}

}  // namespace het::planner::assignment
