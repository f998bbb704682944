// The contest's JSON form, read in one pass over the mapped file: instances have hundreds of megabytes of
// numbers, for which a general JSON value would take ten times the memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/io/file.h"
#include "planner/assignment/problem.h"

namespace het::planner::assignment {
namespace {

using Rows = std::vector<std::vector<int64_t>>;  // a list of lists of numbers

class Reader {
 public:
  explicit Reader(std::string_view text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text.starts_with(kByteOrderMark)) at_ += kByteOrderMark.size();
  }

  AssignmentProblem read() {
    object("", [&](const std::string& key) {
      if (key == "problem") return once(has_problem_, "problem"), read_problem(), true;
      return false;
    });
    space();
    if (at_ != end_) fail_here("the file goes on after its value");
    if (!has_problem_) fail_usage("the field problem is missing");
    return assemble();
  }

 private:
  [[noreturn]] void fail_here(const std::string& what) const {
    fail_usage("byte {}: {}", at_ - begin_, what);
  }
  // False: the field is another program's.
  static bool refuse_misspelt(const char* place, const std::string& key,
                              const std::vector<std::string>& names) {
    const std::string near = nearest_name(key, names);
    if (!near.empty()) fail_usage("{}{} is no field; did you mean {}?", place, key, near);
    return false;
  }
  static void once(bool& seen, const char* field) {
    if (seen) fail_usage("the field {} appears twice", field);
    seen = true;
  }

  void space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  bool take(char wanted) {
    space();
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted, const std::string& place) {
    if (take(wanted)) return;
    const std::string found = at_ == end_ ? "the file ends" : "there is '" + std::string(1, *at_) + "'";
    fail_here(fmt::format("{}{}'{}' is expected, but {}", place, place.empty() ? "" : ": ", wanted, found));
  }

  // Escapes are kept as they are: names are printed only.
  std::string text(const std::string& place) {
    expect('"', place);
    const char* from = at_;
    for (; at_ != end_ && *at_ != '"'; ++at_)
      if (*at_ == '\\' && at_ + 1 != end_) ++at_;
    if (at_ == end_) fail_here("a string does not end");
    return {from, at_++};
  }

  template <typename Field>
  void object(const std::string& place, const Field& field) {
    expect('{', place);
    if (take('}')) return;
    do {
      const std::string key = text(place);
      expect(':', place);
      if (!field(key)) skip(0);
    } while (take(','));
    expect('}', place);
  }

  // Calls element(i) at the start of each element.
  template <typename Place, typename Element>
  size_t list(const Place& place, const Element& element) {
    if (!take('[')) expect('[', place());
    if (take(']')) return 0;
    size_t count = 0;
    do element(count++);
    while (take(','));
    if (!take(']')) expect(']', place());
    return count;
  }

  // A value that nothing here needs.
  void skip(int depth) {
    constexpr int kDeepest = 200;
    if (depth > kDeepest) fail_here("lists are nested too deeply");
    space();
    if (at_ == end_) fail_here("a value is expected, but the file ends");
    if (*at_ == '{') {
      object("", [&](const std::string&) { return skip(depth + 1), true; });
    } else if (*at_ == '[') {
      list([] { return std::string(); }, [&](size_t) { skip(depth + 1); });
    } else if (*at_ == '"') {
      text("");
    } else {
      const char* from = at_;
      while (at_ != end_ && *at_ > ' ' && *at_ != ',' && *at_ != ']' && *at_ != '}') ++at_;
      if (at_ == from) fail_here("a value is expected");
    }
  }

  // A whole number of 64 bits; 1e18 and 3.0 are whole, too.
  template <typename Place>
  int64_t number(const Place& place) {
    space();
    const char* from = at_;
    const bool negative = at_ != end_ && *at_ == '-';
    if (negative) ++at_;
    uint64_t value = 0;
    const char* digits = at_;
    bool fits = true;
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    for (; at_ != end_ && *at_ >= '0' && *at_ <= '9'; ++at_) {
      const auto digit = static_cast<uint64_t>(*at_ - '0');
      fits = fits && value <= (kMost - digit) / 10;
      value = value * 10 + digit;
    }
    if (at_ == digits) {
      at_ = from;
      fail_here(fmt::format("{}: a whole number is expected", place()));
    }
    if (at_ != end_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E')) return decimal(from, place);
    if (!fits)
      fail_here(fmt::format("{}: {} does not fit into 64 bits", place(),
                            std::string_view(from, static_cast<size_t>(at_ - from))));
    return negative ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
  }
  template <typename Place>
  int64_t decimal(const char* from, const Place& place) {
    while (at_ != end_ && ((*at_ >= '0' && *at_ <= '9') || *at_ == '.' || *at_ == 'e' || *at_ == 'E' ||
                           *at_ == '+' || *at_ == '-'))
      ++at_;
    const std::string word(from, at_);
    char* stop = nullptr;
    const double value = std::strtod(word.c_str(), &stop);
    constexpr double kMost = 9.2e18;
    if (*stop != '\0' || !(std::abs(value) <= kMost) || value != std::floor(value))
      fail_here(fmt::format("{}: {} is not a whole number of 64 bits", place(), word));
    return static_cast<int64_t>(value);
  }

  Rows rows(const char* field) {
    Rows result;
    list([&] { return std::string(field); },
         [&](size_t i) {
           scratch_.clear();
           list([&] { return fmt::format("{}[{}]", field, i); },
                [&](size_t k) {
                  scratch_.push_back(number([&] { return fmt::format("{}[{}][{}]", field, i, k); }));
                });
           result.emplace_back(scratch_);
         });
    return result;
  }

  void read_problem() {
    object("problem", [&](const std::string& key) {
      if (key == "name") return once(has_name_, "problem.name"), problem_.name = text("problem.name"), true;
      if (key == "usage_limit") return once(has_limit_, "problem.usage_limit"), read_limit(), true;
      if (key == "nodes") return once(has_nodes_, "problem.nodes"), read_nodes(), true;
      if (key == "edges") return once(has_edges_, "problem.edges"), read_edges(), true;
      return refuse_misspelt("problem.", key, {"name", "usage_limit", "nodes", "edges"});
    });
  }
  void read_limit() {
    space();
    constexpr std::string_view kNull = "null";
    if (std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(kNull))
      return void(at_ += kNull.size());
    problem_.usage_limit = number([] { return std::string("problem.usage_limit"); });
  }
  void read_nodes() {
    object("problem.nodes", [&](const std::string& key) {
      if (key == "intervals")
        return once(has_intervals_, "problem.nodes.intervals"), intervals_ = rows("problem.nodes.intervals"),
                                                                true;
      if (key == "costs")
        return once(has_costs_, "problem.nodes.costs"), costs_ = rows("problem.nodes.costs"), true;
      if (key == "usages")
        return once(has_usages_, "problem.nodes.usages"), usages_ = rows("problem.nodes.usages"), true;
      return refuse_misspelt("problem.nodes.", key, {"intervals", "costs", "usages"});
    });
  }
  void read_edges() {
    object("problem.edges", [&](const std::string& key) {
      if (key == "nodes")
        return once(has_edge_nodes_, "problem.edges.nodes"), edge_nodes_ = rows("problem.edges.nodes"), true;
      if (key == "costs")
        return once(has_edge_costs_, "problem.edges.costs"), edge_costs_ = rows("problem.edges.costs"), true;
      return false;
    });
  }

  AssignmentProblem assemble() {
    for (const auto& [there, field] : {std::pair(has_nodes_, "nodes"),
                                       {has_edges_, "edges"},
                                       {has_intervals_, "nodes.intervals"},
                                       {has_costs_, "nodes.costs"},
                                       {has_usages_, "nodes.usages"},
                                       {has_edge_nodes_, "edges.nodes"},
                                       {has_edge_costs_, "edges.costs"}})
      if (!there) fail_usage("the field problem.{} is missing", field);
    if (costs_.size() != intervals_.size() || usages_.size() != intervals_.size()) {
      const size_t first = std::min({intervals_.size(), costs_.size(), usages_.size()});
      std::vector<std::string> lacks;
      if (intervals_.size() == first) lacks.emplace_back("interval");
      if (costs_.size() == first) lacks.emplace_back("costs");
      if (usages_.size() == first) lacks.emplace_back("usages");
      fail_usage("node {} has no {}: problem.nodes has {} intervals, {} lists of costs and {} of usages",
                 first, fmt::join(lacks, " and no "), intervals_.size(), costs_.size(), usages_.size());
    }
    if (edge_nodes_.size() != edge_costs_.size())
      fail_usage("edge {} has no {}: problem.edges has {} lists of nodes and {} of costs",
                 std::min(edge_nodes_.size(), edge_costs_.size()),
                 edge_nodes_.size() < edge_costs_.size() ? "nodes" : "costs", edge_nodes_.size(),
                 edge_costs_.size());
    problem_.nodes.resize(intervals_.size());
    for (size_t i = 0; i < intervals_.size(); ++i) {
      if (intervals_[i].size() != 2)
        fail_usage("node {}: problem.nodes.intervals[{}] has {} numbers; an interval has 2", i, i,
                   intervals_[i].size());
      problem_.nodes[i] = {intervals_[i][0], intervals_[i][1], std::move(costs_[i]), std::move(usages_[i])};
    }
    problem_.edges.resize(edge_nodes_.size());
    for (size_t e = 0; e < edge_nodes_.size(); ++e) {
      for (const int64_t node : edge_nodes_[e]) {
        if (node < 0 || node >= std::ssize(problem_.nodes))
          fail_usage("edge {}: problem.edges.nodes[{}] names node {}; nodes are 0 to {}", e, e, node,
                     std::ssize(problem_.nodes) - 1);
        problem_.edges[e].nodes.push_back(static_cast<int>(node));
      }
      problem_.edges[e].costs = std::move(edge_costs_[e]);
    }
    const std::vector<std::string> mistakes = problem_.validate();
    if (!mistakes.empty()) fail_usage("{}", fmt::join(mistakes, "\n"));
    return std::move(problem_);
  }

  const char *begin_, *at_, *end_;
  std::vector<int64_t> scratch_;
  AssignmentProblem problem_;
  Rows intervals_, costs_, usages_, edge_nodes_, edge_costs_;
  bool has_problem_ = false, has_name_ = false, has_limit_ = false, has_nodes_ = false, has_edges_ = false;
  bool has_intervals_ = false, has_costs_ = false, has_usages_ = false, has_edge_nodes_ = false,
       has_edge_costs_ = false;
};

}  // namespace

AssignmentProblem parse_instance(std::string_view text, const std::string& name) {
  return with_context([&] { return name; }, [&] { return Reader(text).read(); });
}

AssignmentProblem read_instance(const Path& path) {
  const MappedFile file(path);
  return parse_instance(file.text(), path.text);
}

}  // namespace het::planner::assignment
