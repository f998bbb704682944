// Local search on a network: large neighbourhoods, each solved exactly by elimination. A neighbourhood is a
// connected piece of the graph, or a few that share a row; the rest stays. Usage enters as prices of rows
// (Lagrange multipliers), which are raised within a move until what is found fits, or until the bound of the
// piece shows that no better choice of it fits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/assignment/clock.h"
#include "planner/assignment/elimination.h"
#include "planner/assignment/network.h"

namespace het::planner::assignment {

// The least room of any range of rows, and usage that changes over ranges: a tree of intervals.
class RowRoom {
 public:
  void build(const std::vector<int64_t>& room);
  void add(int first, int last, int64_t amount);  // to rows first, ..., last - 1
  int64_t least(int first, int last) const;

 private:
  struct Node {
    int64_t least = 0, pending = 0;  // of the rows below it; to be added to them
  };
  size_t leaves_ = 1;
  std::vector<Node> nodes_;
  void add(size_t node, size_t begin, size_t end, size_t first, size_t last, int64_t amount);
  int64_t least(size_t node, size_t begin, size_t end, size_t first, size_t last) const;
};

class Search {
 public:
  // `network` outlives the search. Its costs may move between variables and pairs meanwhile
  // (reparametrisation), but not what a choice costs.
  Search(const Network& network, uint64_t seed);

  // What a unit of each row is worth; the best known multipliers.
  void set_prices(const std::vector<double>& prices);
  // Take the choice as the best when it is. True: it was.
  bool offer(const std::vector<int>& choice);
  // Decide one variable after the other, each as cheaply as it can be with those before, where all later ones
  // use least; and take the result as offer() does.
  bool construct();
  bool found() const { return best_.has_value(); }
  const std::vector<int>& best() const { return *best_; }
  double best_cost() const { return best_cost_; }  // kBlocked and above: none

  // Go on from this choice, which may exceed rows.
  void start(const std::vector<int>& choice);
  // Improve until the clock has run out, the best costs at most `target`, or nothing was gained for
  // `patience` seconds.
  void run(const Clock& clock, double target, double patience);
  // Until the state fits. True: it does.
  bool repair(const Clock& clock);
  // Go on from `other`, which fits, with each part of the present state that costs less there and fits. The
  // parts are the connected pieces of the variables in which both differ: what one of them gains does not
  // depend on the others, but for the rows. (Partition crossover: Tinós, Whitley, Chicano, "Partition
  // crossover for pseudo-Boolean optimization", 2015.)
  void cross(const std::vector<int>& other);
  const std::vector<int>& state() const { return choice_; }
  double cost() const { return cost_ + penalty_ * excess_; }  // of the state, with its penalty
  int64_t moves() const { return moves_; }

 private:
  struct Piece {
    std::vector<int> variables;
    std::vector<size_t> offsets;
    std::vector<double> base;  // unary: own costs, and those with the neighbours that stay
    std::vector<int> choice;   // current
    // Rows between which no item of the piece begins or ends are one segment, with the least room of its
    // rows. In a state that exceeds rows, each row is a segment: then the sum of what is exceeded counts.
    std::vector<int> borders;             // rows; segment i is borders[i], ..., borders[i + 1] - 1
    std::vector<UsageItem> segment_span;  // of the items in order, in segments; without their usage
    std::vector<int64_t> room;            // of these segments, what the others leave
    std::vector<char> covered;            // some item uses it
    double cost = 0;                      // of the current choice, within the piece and with its neighbours
  };

  int neighbour(int pair, int v) const {
    const PairCost& p = network_.pairs[static_cast<size_t>(pair)];
    return p.a == v ? p.b : p.a;
  }
  void grow(size_t wanted, int seed);
  int draw_variable();
  int draw_user_of_row(int row);
  int draw_row();
  void choose_piece(size_t wanted);
  void find_segments();
  template <typename Visit>
  void each_item(const Visit& visit) const;
  PairModel describe();
  void price(std::vector<double>& unary) const;
  double piece_cost(const std::vector<int>& choice, const PairModel& model) const;
  bool move(size_t wanted, const Clock& clock);
  bool walk(const Elimination& elimination, const PairModel& model, double bound, const Clock& clock);
  void apply(const std::vector<int>& choice);
  void decide(int variable, int strategy);
  double change_to(const std::vector<int>& part, const std::vector<int>& choice) const;
  void recount();
  void note_state();

  const Network& network_;
  Random random_;
  std::vector<std::vector<int>> incident_;
  std::vector<int> users_;  // variables with usage
  std::vector<double> prices_;

  std::vector<int> choice_;
  std::vector<int64_t> usage_;
  RowRoom room_;
  std::vector<double> prices_before_;  // sums of the prices of all rows before each
  double cost_ = 0, excess_ = 0;       // excess: the sum over rows of usage above capacity
  double penalty_ = 0;                 // of a unit of excess
  std::optional<std::vector<int>> best_;
  double best_cost_ = kBlocked;

  Piece piece_;
  std::vector<int> place_;  // by variable, in the piece; -1: not in it
  std::vector<double> segment_price_,
      personal_;     // in a move: of the segments, and a factor for each variable
  int without_ = 0;  // moves since the last gain
  int64_t moves_ = 0;
  // By size of neighbourhood: gain by second; seconds, gains and seconds again, what is long ago counting
  // less.
  std::vector<double> gain_rate_, seconds_, gained_, spent_;
};

}  // namespace het::planner::assignment
