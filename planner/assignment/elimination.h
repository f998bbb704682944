// Exact minimisation of a pairwise model by eliminating one variable after the other (bucket elimination:
// Dechter, "Bucket elimination: a unifying framework for reasoning", 1999). Each elimination makes a table
// over the variable's neighbours; where a table would be larger than the limit, either a variable is held at
// a given strategy (conditioning: the rest is still exact), or the table is split (mini-buckets: a lower
// bound, and a good choice).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/assignment/clock.h"

namespace het::planner::assignment {

// Splitmix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  size_t below(size_t count) { return static_cast<size_t>(next() % count); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

// Variables with costs of their own (given when it is solved) and of pairs. The tables belong to the caller.
struct PairModel {
  struct Pair {
    int a = 0, b = 0;
    const double* cost = nullptr;  // [strategies of a, of b]
  };
  std::vector<int> sizes;  // strategies by variable
  std::vector<Pair> pairs;

  std::vector<size_t> offsets() const;  // of each variable's strategies in a flat list, and the count of all
};

enum class TooLarge { hold, split };

class Elimination {
 public:
  // Chooses the order. Tables of more than `most_entries` are avoided as `too_large` says, and all tables
  // together keep to `most_total`.
  // When the clock runs out meanwhile, run() gives nothing.
  Elimination(PairModel model, double most_entries, TooLarge too_large, Random& random,
              const Clock* clock = nullptr, double most_total = 3e7);

  bool exact() const { return exact_; }  // no variable is held, no table split
  const std::vector<int>& held() const { return held_; }
  double work() const { return work_; }  // entries that run() visits

  // Minimise. `unary`: costs of single variables, flat. `choice` has the strategies of held variables, and
  // gets those of the others. Returns the least cost (with split tables: a lower bound); nothing when the
  // clock has run out.
  bool run(const std::vector<double>& unary, std::vector<int>& choice, const Clock& clock, double& least);

  // After run(): for walking the choices in the reverse order of elimination, as branch and bound does.
  size_t variables() const { return order_.size(); }
  int variable(size_t depth) const { return order_[order_.size() - 1 - depth]; }
  // For each strategy of that variable the least cost of everything that is decided at this depth, given the
  // choice of the earlier ones. A strategy's excess over the smallest adds to the lower bound of the whole.
  void values(size_t depth, const std::vector<int>& choice, std::vector<double>& result) const;

 private:
  struct Factor {
    std::vector<int> scope;         // in the order of the table
    const double* table = nullptr;  // of a pair
    std::vector<double> message;    // of an elimination
    const double* data() const { return table ? table : message.data(); }
  };
  struct Bucket {
    int variable = 0, into = -1;  // the factor that it makes; -1: none, the result is of one variable or none
    std::vector<int> scope;       // neighbours, in the order of the table
    std::vector<int> factors;
    bool first = true;  // of this variable's buckets: it has the variable's own costs
  };

  bool plan(double most_entries, TooLarge too_large, Random& random, const Clock* clock);
  void arrange();
  void accumulate(const Bucket& bucket, const Factor& factor);
  bool solve_bucket(const Bucket& bucket, const Clock& clock);

  PairModel model_;
  std::vector<size_t> offsets_;
  std::vector<Factor> factors_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<int>> buckets_of_;  // by place in the order
  std::vector<int> order_, held_;
  std::vector<char> is_held_;
  std::vector<double> unary_, scratch_;
  double constant_ = 0, work_ = 0, total_ = 0;
  bool exact_ = true, planned_ = false;
};

}  // namespace het::planner::assignment
