#include "planner/assignment/team.h"

#include <utility>

namespace het::planner::assignment {

Team::Team(const Network& network, uint64_t seed, int threads, double patience, Another another)
    : network_(network),
      seed_(seed),
      threads_wanted_(threads),
      patience_(patience),
      another_(std::move(another)),
      leader_(network, seed) {}

Team::~Team() { ended_ = true; }

void Team::begin(const Clock& clock) {
  if (threads_wanted_ < 2) return;
  copy_ = network_;
  helpers_.reserve(static_cast<size_t>(threads_wanted_ - 1));
  for (int i = 1; i < threads_wanted_; ++i) {
    Search& helper = helpers_.emplace_back(*copy_, seed_ + static_cast<uint64_t>(i));
    helper.set_prices(prices_);
    helper.start(leader_.state());
    threads_.emplace_back(
        [this, &helper, mine = Clock(clock, [this] { return ended_.load(); })] { help(helper, mine); });
  }
}

void Team::help(Search& search, const Clock& clock) {
  try {
    work(search, clock, false);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failed_ = std::current_exception();
  }
}

void Team::run(const Clock& clock, double target, bool elsewhere) {
  target_ = target;
  work(leader_, clock, elsewhere);
  share();
  const std::lock_guard lock(mutex_);
  if (failed_) std::rethrow_exception(failed_);
}

void Team::work(Search& search, const Clock& clock, bool elsewhere) {
  std::vector<int> choice;
  double least = search.cost(), gained_at = clock.now(), began_at = gained_at;
  int pricings = 0;
  const auto begin = [&] {
    least = search.cost();
    gained_at = began_at = clock.now();
  };
  while (!clock.passed() && best_cost_ > target_) {
    if (pricings_ != pricings && &search != &leader_) {
      const std::lock_guard lock(mutex_);
      pricings = pricings_;
      search.set_prices(prices_);
    }
    constexpr double kExchanges = 4;  // while a search has patience
    const int64_t moves = search.moves();
    search.run(clock.within(patience_ / kExchanges), target_, patience_);
    if (&search != &leader_) helpers_moves_ += search.moves() - moves;
    const bool behind = exchange(search, choice);
    const double now = clock.now();
    if (search.cost() < least) {
      least = search.cost();
      gained_at = now;
    }
    constexpr double kLongest = 4;  // times its patience elsewhere
    const bool stale = now - gained_at > patience_;
    if (behind && (stale || !elsewhere || now - began_at > kLongest * patience_)) {
      search.cross(choice);
      elsewhere = false;
      begin();
    } else if (stale && elsewhere && search.found()) {
      search.cross(search.best());
      elsewhere = false;
      begin();
    } else if (stale) {
      const std::unique_lock lock(starting_, std::try_to_lock);
      begin();
      if (!lock) continue;
      if (!another_(clock, choice)) return;
      search.start(choice);
      search.repair(clock.within(patience_));
      elsewhere = true;
      begin();
    }
  }
}

// Hand in the search's best choice when it is the team's. True: the team's is better, and is in `better`.
bool Team::exchange(Search& search, std::vector<int>& better) {
  const std::lock_guard lock(mutex_);
  if (search.found() && search.best_cost() < best_cost_) {
    best_ = search.best();
    best_cost_ = search.best_cost();
  }
  if (best_.empty() || (search.found() && search.best_cost() <= best_cost_)) return false;
  better = best_;
  return true;
}

void Team::share() {
  std::vector<int> better;
  if (exchange(leader_, better)) leader_.offer(better);
}

void Team::offer(const std::vector<int>& choice) {
  leader_.offer(choice);
  share();
}

void Team::set_prices(const std::vector<double>& prices) {
  leader_.set_prices(prices);
  const std::lock_guard lock(mutex_);
  prices_ = prices;
  ++pricings_;
}

std::vector<int> Team::best() const {
  const std::lock_guard lock(mutex_);
  return best_;
}

}  // namespace het::planner::assignment
