// Local searches of one network on several threads: that of the caller, the leader, and helpers. Each goes on
// from its own state; at times they exchange what they have found, and each joins the parts of the best
// choice that are better than its own (Search::cross). One that gains nothing any more starts elsewhere.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "planner/assignment/clock.h"
#include "planner/assignment/search.h"

namespace het::planner::assignment {

class Team {
 public:
  // Another start; called by one thread at a time, with its clock. False: there is none.
  using Another = std::function<bool(const Clock& clock, std::vector<int>& choice)>;

  // `network` outlives it. threads >= 1. `patience`: seconds without a gain until a search begins elsewhere.
  Team(const Network& network, uint64_t seed, int threads, double patience, Another another);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Helpers begin, from the leader's state. They search a copy of the network, whose costs may move meanwhile
  // (Dual).
  void begin(const Clock& clock);
  // The leader's search; only its own thread may use it.
  Search& leader() { return leader_; }
  // Go on from the leader's state until the clock has run out or a choice costs at most `target`.
  // `elsewhere`: that state is not the best choice's.
  void run(const Clock& clock, double target, bool elsewhere);

  // Let the leader and the helpers know what the others have found, or this choice.
  void share();
  void offer(const std::vector<int>& choice);
  void set_prices(const std::vector<double>& prices);
  // While one lives, helpers ask for no other start.
  std::unique_lock<std::mutex> no_starts() { return std::unique_lock(starting_); }

  bool found() const { return best_cost_ < kBlocked; }  // any thread may ask
  double best_cost() const { return best_cost_; }       // of all, as far as they have shared
  std::vector<int> best() const;
  int64_t moves() const { return leader_.moves() + helpers_moves_; }

 private:
  void work(Search& search, const Clock& clock, bool elsewhere);
  bool exchange(Search& search, std::vector<int>& better);
  void help(Search& search, const Clock& clock);

  const Network& network_;
  const uint64_t seed_;
  const int threads_wanted_;
  const double patience_;
  const Another another_;
  Search leader_;
  std::optional<Network> copy_;
  std::vector<Search> helpers_;
  mutable std::mutex mutex_;  // of what follows
  std::vector<int> best_;
  std::vector<double> prices_;
  std::exception_ptr failed_;
  std::atomic<double> best_cost_ = kBlocked, target_ = -kBlocked;
  std::atomic<int> pricings_ = 0;
  std::atomic<int64_t> helpers_moves_ = 0;
  std::atomic<bool> ended_ = false;
  std::mutex starting_;
  std::vector<std::jthread> threads_;
};

}  // namespace het::planner::assignment
