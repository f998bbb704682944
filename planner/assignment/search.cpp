#include "planner/assignment/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "planner/assignment/branch.h"

namespace het::planner::assignment {
namespace {

constexpr std::array<size_t, 9> kSizes{1, 4, 10, 25, 60, 200, 600, 2000, 10000};
constexpr int kAttempts = 8;  // prices in a move

// Differences below this are rounding: costs of choices are whole numbers, which sums of doubles miss by
// little.
double negligible(double cost) { return 1e-14 * std::abs(cost) + 0.5; }

double excess_of(int64_t usage, int64_t capacity) {
  return usage > capacity ? static_cast<double>(usage) - static_cast<double>(capacity) : 0;
}

}  // namespace

void RowRoom::build(const std::vector<int64_t>& room) {
  leaves_ = 1;
  while (leaves_ < room.size()) leaves_ *= 2;
  nodes_.assign(2 * leaves_, {std::numeric_limits<int64_t>::max() / 4, 0});
  for (size_t i = 0; i < room.size(); ++i) nodes_[leaves_ + i].least = room[i];
  for (size_t i = leaves_; --i > 0;) nodes_[i].least = std::min(nodes_[2 * i].least, nodes_[2 * i + 1].least);
}

void RowRoom::add(int first, int last, int64_t amount) {
  if (first < last) add(1, 0, leaves_, static_cast<size_t>(first), static_cast<size_t>(last), amount);
}
void RowRoom::add(size_t node, size_t begin, size_t end, size_t first, size_t last, int64_t amount) {
  Node& here = nodes_[node];
  if (first <= begin && end <= last) {
    here.least += amount;
    here.pending += amount;
    return;
  }
  const size_t middle = (begin + end) / 2;
  if (first < middle) add(2 * node, begin, middle, first, last, amount);
  if (middle < last) add(2 * node + 1, middle, end, first, last, amount);
  here.least = std::min(nodes_[2 * node].least, nodes_[2 * node + 1].least) + here.pending;
}

int64_t RowRoom::least(int first, int last) const {
  return least(1, 0, leaves_, static_cast<size_t>(first), static_cast<size_t>(last));
}
int64_t RowRoom::least(size_t node, size_t begin, size_t end, size_t first, size_t last) const {
  const Node& here = nodes_[node];
  if (first <= begin && end <= last) return here.least;
  const size_t middle = (begin + end) / 2;
  int64_t result = std::numeric_limits<int64_t>::max() / 2;
  if (first < middle) result = least(2 * node, begin, middle, first, last);
  if (middle < last) result = std::min(result, least(2 * node + 1, middle, end, first, last));
  return result + here.pending;
}

void Search::set_prices(const std::vector<double>& prices) {
  prices_ = prices;
  prices_before_.assign(prices.size() + 1, 0.0);
  std::partial_sum(prices.begin(), prices.end(), prices_before_.begin() + 1);
}

Search::Search(const Network& network, uint64_t seed)
    : network_(network),
      random_(seed),
      incident_(network.variables.size()),
      prices_(network.capacity.size(), 0.0),
      place_(network.variables.size(), -1),
      gain_rate_(kSizes.size(), 0.0),
      seconds_(gain_rate_),
      gained_(gain_rate_),
      spent_(gain_rate_) {
  for (size_t e = 0; e < network.pairs.size(); ++e) {
    incident_[static_cast<size_t>(network.pairs[e].a)].push_back(static_cast<int>(e));
    incident_[static_cast<size_t>(network.pairs[e].b)].push_back(static_cast<int>(e));
  }
  set_prices(prices_);
  for (size_t v = 0; v < network.variables.size(); ++v)
    if (!network.variables[v].items.empty()) users_.push_back(static_cast<int>(v));
}

bool Search::offer(const std::vector<int>& choice) {
  const double cost = cost_of(network_, choice);
  if (is_blocked(cost) || (best_ && cost >= best_cost_ - negligible(best_cost_))) return false;
  if (!fits(network_, usage_of(network_, choice))) return false;
  best_ = choice;
  best_cost_ = cost;
  return true;
}

bool Search::construct() {
  const size_t count = network_.variables.size();
  std::vector<int> choice(count, -1), least(count, 0);
  for (size_t v = 0; v < count; ++v) {
    // The strategy that uses least: of several items, weighed by their rows.
    double smallest = std::numeric_limits<double>::infinity();
    for (int s = 0; s < network_.size(static_cast<int>(v)); ++s) {
      double use = 0;
      for (const UsageItem& item : network_.variables[v].items)
        use += static_cast<double>(item.use[static_cast<size_t>(s)]) * (item.last - item.first);
      if (use >= smallest) continue;
      smallest = use;
      least[v] = s;
    }
  }
  const std::vector<int64_t> usage = usage_of(network_, least);
  std::vector<int64_t> room = network_.capacity;
  for (size_t row = 0; row < room.size(); ++row) room[row] -= usage[row];
  room_.build(room);
  for (size_t v = 0; v < count; ++v) {
    const NetworkVariable& variable = network_.variables[v];
    std::vector<double> cost = variable.cost;
    const auto own = static_cast<int>(cost.size());
    for (const int e : incident_[v]) {
      const PairCost& pair = network_.pairs[static_cast<size_t>(e)];
      const int u = neighbour(e, static_cast<int>(v)), other = choice[static_cast<size_t>(u)];
      if (other < 0) continue;
      for (int s = 0; s < own; ++s)
        cost[static_cast<size_t>(s)] += static_cast<size_t>(pair.a) == v
                                            ? pair.cost[static_cast<size_t>(s * network_.size(u) + other)]
                                            : pair.cost[static_cast<size_t>(other * own + s)];
    }
    for (const UsageItem& item : variable.items) {
      room_.add(item.first, item.last, item.use[static_cast<size_t>(least[v])]);
    }
    choice[v] = least[v];
    double best = std::numeric_limits<double>::infinity();
    for (int s = 0; s < own; ++s) {
      if (cost[static_cast<size_t>(s)] >= best) continue;
      // A variable's items may share rows: then what they use together counts, which this overestimates.
      int64_t together = 0;
      for (const UsageItem& item : variable.items) together += item.use[static_cast<size_t>(s)];
      const bool fitting =
          std::all_of(variable.items.begin(), variable.items.end(), [&](const UsageItem& item) {
            return item.use[static_cast<size_t>(s)] == 0 || together <= room_.least(item.first, item.last);
          });
      if (!fitting && s != least[v]) continue;
      best = cost[static_cast<size_t>(s)];
      choice[v] = s;
    }
    for (const UsageItem& item : variable.items)
      room_.add(item.first, item.last, -item.use[static_cast<size_t>(choice[v])]);
  }
  return offer(choice);
}

void Search::start(const std::vector<int>& choice) {
  choice_ = choice;
  recount();
  penalty_ = 0;
  without_ = 0;
  for (const double price : prices_) penalty_ = std::max(penalty_, 2 * price);
  if (excess_ > 0)
    penalty_ = std::max(penalty_, 0.1 * (std::abs(is_blocked(cost_) ? 0 : cost_) + 1) / excess_);
  note_state();
}

void Search::recount() {
  usage_ = usage_of(network_, choice_);
  cost_ = cost_of(network_, choice_);
  excess_ = 0;
  std::vector<int64_t> room(usage_.size());
  for (size_t row = 0; row < usage_.size(); ++row) {
    excess_ += excess_of(usage_[row], network_.capacity[row]);
    room[row] = network_.capacity[row] - usage_[row];
  }
  room_.build(room);
}

void Search::note_state() {
  if (excess_ > 0 || is_blocked(cost_) || (best_ && cost_ >= best_cost_ - negligible(best_cost_))) return;
  recount();  // without what rounding has added up
  if (is_blocked(cost_) || (best_ && cost_ >= best_cost_ - negligible(best_cost_))) return;
  best_ = choice_;
  best_cost_ = cost_;
}

int Search::draw_row() {
  if (usage_.empty()) return -1;
  // A row that is exceeded, has a price or is nearly full.
  int best = static_cast<int>(random_.below(usage_.size()));
  double best_weight = -1;
  constexpr int kTries = 12;
  for (int i = 0; i < kTries; ++i) {
    const size_t row = random_.below(usage_.size());
    double weight = static_cast<double>(usage_[row]) / (static_cast<double>(network_.capacity[row]) + 1.0) +
                    random_.uniform();
    if (prices_[row] > 0) weight += 1;
    if (weight > best_weight) {
      best_weight = weight;
      best = static_cast<int>(row);
    }
  }
  if (excess_ <= 0) return best;
  // The first exceeded one from a random row on.
  const size_t from = random_.below(usage_.size());
  for (size_t i = 0; i < usage_.size(); ++i) {
    const size_t row = (from + i) % usage_.size();
    if (usage_[row] > network_.capacity[row]) return static_cast<int>(row);
  }
  return best;
}

int Search::draw_user_of_row(int row) {
  constexpr int kTries = 60;
  for (int i = 0; i < kTries && !users_.empty(); ++i) {
    const int v = users_[random_.below(users_.size())];
    for (const UsageItem& item : network_.variables[static_cast<size_t>(v)].items)
      if (item.first <= row && row < item.last) return v;
  }
  return draw_variable();
}

int Search::draw_variable() { return static_cast<int>(random_.below(network_.variables.size())); }

// Add variables around `seed` to the piece until it has `wanted`.
void Search::grow(size_t wanted, int seed) {
  std::vector<int> frontier{seed};
  const bool compact = random_.below(2) == 0;
  size_t next = 0;
  while (next < frontier.size() && piece_.variables.size() < wanted) {
    if (!compact) std::swap(frontier[next], frontier[next + random_.below(frontier.size() - next)]);
    const int v = frontier[next++];
    if (place_[static_cast<size_t>(v)] >= 0) continue;
    place_[static_cast<size_t>(v)] = static_cast<int>(piece_.variables.size());
    piece_.variables.push_back(v);
    const std::vector<int>& pairs = incident_[static_cast<size_t>(v)];
    const size_t shift = pairs.empty() ? 0 : random_.below(pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
      const int u = neighbour(pairs[(i + shift) % pairs.size()], v);
      if (place_[static_cast<size_t>(u)] < 0) frontier.push_back(u);
    }
  }
}

void Search::choose_piece(size_t wanted) {
  for (const int v : piece_.variables) place_[static_cast<size_t>(v)] = -1;
  piece_.variables.clear();
  const bool rows = !users_.empty() && (excess_ > 0 || random_.below(2) == 0);
  if (!rows) return grow(wanted, draw_variable());
  const int row = draw_row();
  const size_t parts = std::min<size_t>(1 + random_.below(4), wanted);
  for (size_t i = 1; i <= parts; ++i) grow(wanted * i / parts, draw_user_of_row(row));
}

// The piece's model, its costs, and the room in its rows.
PairModel Search::describe() {
  PairModel model;
  piece_.offsets.assign(1, 0);
  piece_.base.clear();
  piece_.choice.clear();
  for (const int v : piece_.variables) {
    const NetworkVariable& variable = network_.variables[static_cast<size_t>(v)];
    const int current = choice_[static_cast<size_t>(v)];
    const size_t at = piece_.base.size();
    model.sizes.push_back(static_cast<int>(variable.cost.size()));
    piece_.choice.push_back(current);
    piece_.base.insert(piece_.base.end(), variable.cost.begin(), variable.cost.end());
    piece_.offsets.push_back(piece_.base.size());
    for (const int e : incident_[static_cast<size_t>(v)]) {
      const PairCost& pair = network_.pairs[static_cast<size_t>(e)];
      const int u = neighbour(e, v);
      if (place_[static_cast<size_t>(u)] >= 0) {
        if (pair.a == v)
          model.pairs.push_back(
              {place_[static_cast<size_t>(pair.a)], place_[static_cast<size_t>(pair.b)], pair.cost.data()});
        continue;
      }
      const auto size = static_cast<std::ptrdiff_t>(variable.cost.size());
      const auto other = static_cast<std::ptrdiff_t>(network_.size(u));
      const std::ptrdiff_t stays = choice_[static_cast<size_t>(u)];
      double* base = piece_.base.data() + at;
      if (pair.a == v)
        for (std::ptrdiff_t s = 0; s < size; ++s)
          base[s] += pair.cost[static_cast<size_t>(s * other + stays)];
      else
        for (std::ptrdiff_t s = 0; s < size; ++s) base[s] += pair.cost[static_cast<size_t>(stays * size + s)];
    }
  }
  find_segments();
  piece_.cost = piece_cost(piece_.choice, model);
  return model;
}

// Calls visit(variable of the piece, item, its span in segments).
template <typename Visit>
void Search::each_item(const Visit& visit) const {
  size_t at = 0;
  for (size_t i = 0; i < piece_.variables.size(); ++i)
    for (const UsageItem& item : network_.variables[static_cast<size_t>(piece_.variables[i])].items)
      visit(i, item, piece_.segment_span[at++]);
}

void Search::find_segments() {
  std::vector<int>& borders = piece_.borders;
  borders.clear();
  for (const int v : piece_.variables)
    for (const UsageItem& item : network_.variables[static_cast<size_t>(v)].items) {
      borders.push_back(item.first);
      borders.push_back(item.last);
    }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  const bool dense = excess_ > 0 && !borders.empty();
  if (dense) {
    const int first = borders.front(), last = borders.back();
    borders.resize(static_cast<size_t>(last - first) + 1);
    std::iota(borders.begin(), borders.end(), first);
  }
  piece_.segment_span.clear();
  for (const int v : piece_.variables)
    for (const UsageItem& item : network_.variables[static_cast<size_t>(v)].items) {
      const auto place = [&](int row) {
        return dense ? row - borders.front()
                     : static_cast<int>(std::lower_bound(borders.begin(), borders.end(), row) -
                                        borders.begin());
      };
      piece_.segment_span.push_back({place(item.first), place(item.last), {}});
    }
  const size_t segments = borders.empty() ? 0 : borders.size() - 1;
  std::vector<int64_t> used(segments + 1, 0);
  std::vector<int> covering(segments + 1, 0);
  each_item([&](size_t i, const UsageItem& item, const UsageItem& span) {
    const int64_t use = item.use[static_cast<size_t>(piece_.choice[i])];
    used[static_cast<size_t>(span.first)] += use;
    used[static_cast<size_t>(span.last)] -= use;
    ++covering[static_cast<size_t>(span.first)];
    --covering[static_cast<size_t>(span.last)];
  });
  piece_.room.resize(segments);
  piece_.covered.resize(segments);
  int64_t sum = 0;
  int count = 0;
  for (size_t i = 0; i < segments; ++i) {
    sum += used[i];
    count += covering[i];
    piece_.covered[i] = count > 0 ? 1 : 0;
    const auto row = static_cast<size_t>(borders[i]);
    piece_.room[i] =
        sum + (dense ? network_.capacity[row] - usage_[row] : room_.least(borders[i], borders[i + 1]));
  }
}

double Search::piece_cost(const std::vector<int>& choice, const PairModel& model) const {
  double cost = 0;
  for (size_t i = 0; i < choice.size(); ++i)
    cost += piece_.base[piece_.offsets[i] + static_cast<size_t>(choice[i])];
  for (const PairModel::Pair& pair : model.pairs)
    cost += pair.cost[choice[static_cast<size_t>(pair.a)] * model.sizes[static_cast<size_t>(pair.b)] +
                      choice[static_cast<size_t>(pair.b)]];
  return cost;
}

// Add what the strategies' usage costs at the prices of the segments.
void Search::price(std::vector<double>& unary) const {
  std::vector<double> before(segment_price_.size() + 1, 0.0);
  std::partial_sum(segment_price_.begin(), segment_price_.end(), before.begin() + 1);
  each_item([&](size_t i, const UsageItem& item, const UsageItem& span) {
    const double all =
        personal_[i] * (before[static_cast<size_t>(span.last)] - before[static_cast<size_t>(span.first)]);
    if (all == 0) return;
    for (size_t s = 0; s < item.use.size(); ++s)
      unary[piece_.offsets[i] + s] += all * static_cast<double>(item.use[s]);
  });
}

// The state with another strategy of one variable: its usage, but not its cost.
void Search::decide(int variable, int strategy) {
  int& current = choice_[static_cast<size_t>(variable)];
  for (const UsageItem& item : network_.variables[static_cast<size_t>(variable)].items) {
    const int64_t more = item.use[static_cast<size_t>(strategy)] - item.use[static_cast<size_t>(current)];
    if (more == 0) continue;
    for (int row = item.first; row < item.last; ++row) usage_[static_cast<size_t>(row)] += more;
    room_.add(item.first, item.last, -more);
  }
  current = strategy;
}

void Search::apply(const std::vector<int>& choice) {
  const bool exceeded = excess_ > 0;
  for (size_t i = 0; i < choice.size(); ++i) {
    if (choice_[static_cast<size_t>(piece_.variables[i])] != choice[i])
      decide(piece_.variables[i], choice[i]);
  }
  if (!exceeded) return;
  excess_ = 0;
  for (size_t row = 0; row < usage_.size(); ++row) excess_ += excess_of(usage_[row], network_.capacity[row]);
}

// One neighbourhood of `wanted` variables. True: the state is better.
bool Search::move(size_t wanted, const Clock& clock) {
  choose_piece(wanted);
  PairModel model = describe();
  const size_t segments = piece_.room.size();
  const bool feasible = excess_ <= 0;
  // Large pieces get small tables, so that a move takes no more than a part of a second.
  constexpr double kSmallTables = 1e3, kLargeTables = 2e5, kAllTables = 3e7;
  const double largest =
      std::clamp(kAllTables / static_cast<double>(piece_.variables.size()), kSmallTables, kLargeTables);
  const double most_entries = kSmallTables * std::pow(largest / kSmallTables, random_.uniform());
  const PairModel described = model;
  Elimination elimination(std::move(model), most_entries, TooLarge::hold, random_, &clock);

  constexpr std::array<double, 6> kScales{1, 1, 1, 0, 0.5, 1.3};
  const double scale = kScales[random_.below(kScales.size())];
  segment_price_.resize(segments);
  double excess_before = 0;
  for (size_t i = 0; i < segments; ++i) {
    segment_price_[i] = 0;
    if (!piece_.covered[i]) continue;
    segment_price_[i] = scale * (prices_before_[static_cast<size_t>(piece_.borders[i + 1])] -
                                 prices_before_[static_cast<size_t>(piece_.borders[i])]);
    if (feasible) continue;
    const auto row = static_cast<size_t>(piece_.borders[i]);
    const double excess = excess_of(usage_[row], network_.capacity[row]);
    if (excess > 0) segment_price_[i] = std::max(segment_price_[i], penalty_);
    excess_before += excess;
  }
  std::vector<double> unary, gradient(segments);
  std::vector<int> choice;
  std::vector<int64_t> used(segments + 1);
  // Equal layers would all switch at the same price, and only all or none of them fit: each variable has its
  // own.
  constexpr std::array<double, 6> kSpreads{0, 0, 0.003, 0.02, 0.1, 0.3};
  const double spread = kSpreads[random_.below(kSpreads.size())];
  personal_.resize(piece_.variables.size());
  for (double& factor : personal_) factor = 1 + spread * (random_.uniform() - 0.5);
  const double rounding = negligible(piece_.cost);
  const bool plateau = random_.below(4) != 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    unary = piece_.base;
    price(unary);
    choice = piece_.choice;
    double least = 0;
    if (!elimination.run(unary, choice, clock, least)) return false;
    if (choice == piece_.choice && attempt == 0 && feasible && scale > 0) return false;
    const double change = piece_cost(choice, described) - piece_.cost;
    std::fill(used.begin(), used.end(), 0);
    each_item([&](size_t i, const UsageItem& item, const UsageItem& span) {
      const int64_t use = item.use[static_cast<size_t>(choice[i])];
      used[static_cast<size_t>(span.first)] += use;
      used[static_cast<size_t>(span.last)] -= use;
    });
    double excess = 0, bound = least - piece_.cost, norm = 0;
    int64_t sum = 0;
    for (size_t i = 0; i < segments; ++i) {
      sum += used[i];
      excess += excess_of(sum, piece_.room[i]);
      gradient[i] = static_cast<double>(sum) - static_cast<double>(piece_.room[i]);
      bound -= segment_price_[i] * static_cast<double>(piece_.room[i]);
      if (gradient[i] > 0 || segment_price_[i] > 0) norm += gradient[i] * gradient[i];
    }
    const double gain = feasible ? -change : -change - penalty_ * (excess - excess_before);
    const bool fitting = !feasible || excess <= 0;
    if (fitting && (gain > rounding || (plateau && gain >= 0 && choice != piece_.choice))) {
      apply(choice);
      cost_ += change;
      if (is_blocked(piece_.cost)) recount();
      return gain > rounding;
    }
    if (segments == 0 || norm <= 0) return false;
    if (feasible) {
      if (bound >= -rounding) return false;  // no choice of this piece is better and fits
      if (attempt + 1 == kAttempts) return spread == 0 && walk(elimination, described, bound, clock);
      const double step = (0.5 + random_.uniform()) * -bound / norm;
      for (size_t i = 0; i < segments; ++i)
        segment_price_[i] = std::max(0.0, segment_price_[i] + step * gradient[i]);
    } else {
      for (size_t i = 0; i < segments; ++i)
        if (gradient[i] > 0) segment_price_[i] += penalty_ * (1 << std::min(attempt, 4));
    }
  }
  return false;
}

// The best choice of the piece that fits, by branch and bound; or the best that some nodes find.
bool Search::walk(const Elimination& elimination, const PairModel& model, double bound, const Clock& clock) {
  Branching branching;
  branching.elimination = &elimination;
  branching.room = piece_.room;
  branching.choice = piece_.choice;
  // Items in segments instead of rows.
  std::vector<std::vector<UsageItem>> items(piece_.variables.size());
  each_item([&](size_t i, const UsageItem& item, const UsageItem& span) {
    items[i].push_back({span.first, span.last, item.use});
  });
  for (const std::vector<UsageItem>& each : items) branching.items.push_back(&each);
  for (const int held : elimination.held())
    for (const UsageItem& item : items[static_cast<size_t>(held)])
      for (int segment = item.first; segment < item.last; ++segment)
        branching.room[static_cast<size_t>(segment)] -=
            item.use[static_cast<size_t>(piece_.choice[static_cast<size_t>(held)])];
  branching.bound = bound;
  branching.least_gain = negligible(piece_.cost);
  constexpr int64_t kMostNodes = 4000;
  branching.most_nodes = kMostNodes + 2 * std::ssize(piece_.variables);
  double best = 0;
  std::vector<int> found;
  branch_and_bound(std::move(branching), clock, [&](const std::vector<int>& choice) {
    const double change = piece_cost(choice, model) - piece_.cost;
    if (change < best) {
      best = change;
      found = choice;
    }
    return best;
  });
  if (best >= -negligible(piece_.cost)) return false;
  apply(found);
  cost_ += best;
  return true;
}

void Search::run(const Clock& clock, double target, double patience) {
  size_t sizes = 1;
  while (sizes < kSizes.size() && kSizes[sizes - 1] < network_.variables.size()) ++sizes;
  double last_gain = clock.seconds_left(), begun = clock.now();
  // A state that fits never gets worse, so that it is enough to note it at the end.
  while (!clock.passed() && !(excess_ <= 0 && cost_ <= target) && !(best_ && best_cost_ <= target) &&
         last_gain - clock.seconds_left() <= patience) {
    // Each size gets time by what it gained lately, and a little in any case.
    const double all = std::accumulate(gain_rate_.begin(), gain_rate_.end(), 0.0);
    size_t size = 0;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < sizes; ++i) {
      constexpr double kAlways = 0.07;
      const double share = kAlways + (all > 0 ? gain_rate_[i] / all : 0);
      if (seconds_[i] / share >= least) continue;
      least = seconds_[i] / share;
      size = i;
    }
    const double before = cost_ + penalty_ * excess_;
    const bool better = move(std::min(kSizes[size], network_.variables.size()), clock);
    const double ended = clock.now(), seconds = ended - std::exchange(begun, ended);
    const double gain = before - cost_ - penalty_ * excess_;
    // What is long ago counts less, in seconds of this size.
    constexpr double kForget = 0.3;
    const double old = std::exp(-kForget * seconds);
    gained_[size] = gained_[size] * old + (is_blocked(gain) ? 0 : std::max(gain, 0.0));
    spent_[size] = spent_[size] * old + seconds;
    gain_rate_[size] = gained_[size] / (spent_[size] + 0.05);
    for (double& each : seconds_) each *= old;
    seconds_[size] += seconds;
    if (better) last_gain = clock.seconds_left();
    ++moves_;
    without_ = better ? 0 : without_ + 1;
    constexpr int kPatience = 60;
    if (excess_ > 0 && without_ >= kPatience) {
      penalty_ *= 2;
      without_ = 0;
    }
  }
  note_state();
}

bool Search::repair(const Clock& clock) {
  // As run(), but done with the first state that fits.
  int without = 0;
  while ((excess_ > 0 || is_blocked(cost_)) && !clock.passed()) {
    constexpr size_t kMostSizes = 6;
    const size_t size = kSizes[random_.below(kMostSizes)];
    const bool better = move(std::min(size, network_.variables.size()), clock);
    ++moves_;
    without = better ? 0 : without + 1;
    constexpr int kPatience = 30;
    if (without >= kPatience) {
      penalty_ *= 2;
      without = 0;
    }
  }
  note_state();
  return excess_ <= 0 && !is_blocked(cost_);
}

// What the state costs more when these variables have what they have in `choice`; kBlocked: it may not be.
double Search::change_to(const std::vector<int>& part, const std::vector<int>& choice) const {
  double before = 0, after = 0;
  for (const int v : part) {
    const auto at = static_cast<size_t>(v);
    const std::vector<double>& own = network_.variables[at].cost;
    before += own[static_cast<size_t>(choice_[at])];
    after += own[static_cast<size_t>(choice[at])];
    for (const int e : incident_[at]) {
      const PairCost& pair = network_.pairs[static_cast<size_t>(e)];
      // A pair within the part counts once.
      const auto u = static_cast<size_t>(neighbour(e, v));
      if (u < at && choice[u] != choice_[u]) continue;
      before += network_.cost(pair, choice_);
      after += network_.cost(pair, choice);
    }
  }
  return is_blocked(after) ? kBlocked : after - before;
}

void Search::cross(const std::vector<int>& other) {
  const std::vector<int> mine = std::move(choice_);
  start(other);
  struct Part {
    double change = 0;
    std::vector<int> variables;
  };
  std::vector<Part> parts;
  std::vector<char> seen(mine.size(), 0);
  for (size_t first = 0; first < mine.size(); ++first) {
    if (seen[first] || mine[first] == choice_[first]) continue;
    Part part;
    part.variables.push_back(static_cast<int>(first));
    seen[first] = 1;
    for (size_t next = 0; next < part.variables.size(); ++next)
      for (const int e : incident_[static_cast<size_t>(part.variables[next])]) {
        const auto u = static_cast<size_t>(neighbour(e, part.variables[next]));
        if (seen[u] || mine[u] == choice_[u]) continue;
        seen[u] = 1;
        part.variables.push_back(static_cast<int>(u));
      }
    parts.push_back(std::move(part));
  }
  for (Part& part : parts) part.change = change_to(part.variables, mine);
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.change < b.change; });
  const double rounding = negligible(cost_);
  for (const Part& part : parts) {
    if (part.change >= -rounding) break;
    const auto decide_all = [&](const std::vector<int>& choice) {
      for (const int v : part.variables) decide(v, choice[static_cast<size_t>(v)]);
    };
    decide_all(mine);
    const bool fitting = std::all_of(part.variables.begin(), part.variables.end(), [&](int v) {
      const std::vector<UsageItem>& items = network_.variables[static_cast<size_t>(v)].items;
      return std::all_of(items.begin(), items.end(),
                         [&](const UsageItem& item) { return room_.least(item.first, item.last) >= 0; });
    });
    if (fitting)
      cost_ += part.change;
    else
      decide_all(other);
  }
  note_state();
}

}  // namespace het::planner::assignment
