#include "planner/relation.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "core/ops/part.h"

namespace het {
namespace {

int64_t product(const Shape& shape, size_t begin, size_t end) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), int64_t{1}, std::multiplies<>());
}

// What the rules below see of one node, and the list that they add to.
class Rules {
 public:
  Rules(const Graph& graph, const Node& node, const std::vector<Relation>& given, const Relation& wanted,
        const Division& division)
      : graph_(graph),
        node_(node),
        given_(given),
        wanted_(wanted),
        division_(division),
        parts_(division.parts) {}

  std::vector<Way> run() {
    apply();
    if (division_.sequence && by_tokens()) apply();
    ways_.push_back(all_whole());
    return std::move(ways_);
  }

 private:
  using Rule = void (Rules::*)();
  static const std::map<std::string_view, Rule>& rules() {
    static const std::map<std::string_view, Rule> table{
        {"linear", &Rules::linear},
        {"linear_input_gradient", &Rules::linear_input_gradient},
        {"linear_weight_gradient", &Rules::linear_weight_gradient},
        {"matmul", &Rules::matmul},
        {"embedding", &Rules::embedding},
        {"embedding_gradient", &Rules::embedding_gradient},
        {"linear_cross_entropy", &Rules::classifier},
        {"linear_cross_entropy_training", &Rules::classifier},
        {"attention", &Rules::attention},
        {"attention_gradient", &Rules::attention},
        {"rotary", &Rules::rotary},
        {"layer_norm", &Rules::norm},
        {"layer_norm_gradient", &Rules::norm_gradient},
        {"rms_norm", &Rules::norm},
        {"rms_norm_gradient", &Rules::norm_gradient},
        {"dropout", &Rules::dropout},
        {"softmax", &Rules::softmax},
        {"softmax_gradient", &Rules::softmax},
        {"sum", &Rules::sum},
        {"reshape", &Rules::reshape},
        {"transpose", &Rules::transpose},
        {"slice", &Rules::slice},
        {"split", &Rules::split},
        {"concat", &Rules::concat},
    };
    return table;
  }

  void apply() {
    const std::string_view name = node_.op->name;
    const auto found = rules().find(name);
    if (found != rules().end())
      (this->*found->second)();
    else if (is_pointwise())
      elementwise();
  }

  bool is_pointwise() const {
    const std::string_view name = node_.op->name;
    return node_.op->elementwise || name == "add_n" || name == "adamw" || name == "sgd" || name == "copy" ||
           name == "stochastic_cast";
  }

  // Sums that are still to be made over the ranks, as if they were divided by tokens; false: there are none,
  // or the operator is none of those that lie between the projections.
  bool by_tokens() {
    const std::string_view name = node_.op->name;
    if (!is_pointwise() && name != "dropout" && name.find("_norm") == std::string_view::npos) return false;
    bool any = false;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      if (!given_[i].is_partial() || rank(i) != 3 || size(i, 1) % parts_ != 0) continue;
      given_[i] = Relation::shard(1, {size(i, 1)});
      any = true;
    }
    return any;
  }

  // --- the node

  bool has(size_t i) const { return i < node_.inputs.size() && node_.inputs[i] != kAbsent; }
  const Shape& shape(size_t i) const { return graph_.type(node_.inputs[i]).shape; }
  int64_t rank(size_t i) const { return static_cast<int64_t>(shape(i).size()); }
  int64_t size(size_t i, int64_t dim) const { return shape(i)[static_cast<size_t>(dim)]; }
  const Shape& result(size_t o) const { return graph_.type(node_.outputs[o]).shape; }
  int64_t attribute_dim(int64_t rank) const {
    const auto dim = node_.attributes.get<int64_t>("dim", -1);
    return from_start(dim, rank);
  }

  Way all_whole() const {
    return {std::vector<Relation>(node_.inputs.size()), std::vector<Relation>(node_.outputs.size())};
  }
  // A way with some operands and results divided, by index; the others are whole.
  void add(std::initializer_list<std::pair<size_t, Relation>> inputs,
           std::initializer_list<std::pair<size_t, Relation>> outputs) {
    Way way = all_whole();
    for (const auto& [i, relation] : inputs)
      if (has(i)) way.inputs[i] = relation;
    for (const auto& [o, relation] : outputs)
      if (o < way.outputs.size() && node_.outputs[o] != kAbsent) way.outputs[o] = relation;
    add(std::move(way));
  }
  void add(Way way) {
    for (const Way& known : ways_)
      if (known.inputs == way.inputs) return;
    ways_.push_back(std::move(way));
  }

  bool even(const std::vector<int64_t>& segments) const { return divides_evenly(segments, parts_); }

  // The dimension along which operand `input` is divided, if it is: visit(dim, segments).
  template <typename Visit>
  void each_shard(size_t input, const Visit& visit) const {
    if (has(input) && given_[input].is_shard()) visit(given_[input].dim, given_[input].segments);
  }

  // --- operators, each adding the ways that divide its work

  static bool is_linear(std::string_view op) {
    return op == "add" || op == "sub" || op == "add_n" || op == "neg" || op == "scale" || op == "copy";
  }

  void elementwise() {
    const int64_t out = static_cast<int64_t>(result(0).size());
    for (size_t given = 0; given < node_.inputs.size(); ++given)
      each_shard(given, [&](int64_t own, const std::vector<int64_t>& segments) {
        const int64_t dim = own + out - rank(given);  // of the result
        Way way = all_whole();
        for (size_t i = 0; i < node_.inputs.size(); ++i) {
          const int64_t there = dim - out + (has(i) ? rank(i) : 0);
          if (has(i) && there >= 0 && size(i, there) == result(0)[static_cast<size_t>(dim)])
            way.inputs[i] = Relation::shard(there, segments);
        }
        for (size_t o = 0; o < node_.outputs.size(); ++o)
          if (node_.outputs[o] != kAbsent) way.outputs[o] = Relation::shard(dim, segments);
        add(std::move(way));
      });
    if (!is_linear(node_.op->name)) return;
    Way way = all_whole();
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      if (!given_[i].is_partial()) return;
      way.inputs[i] = Relation::partial();
    }
    way.outputs[0] = Relation::partial();
    add(std::move(way));
  }

  // y = x weightᵀ + bias: columns of y from rows of weight, or summands of y from columns of it. An
  // activation of y, and what it is of, lies as y does; there is none of a summand.
  void linear() {
    const int64_t last = rank(0) - 1;
    const auto summands = [&](const std::vector<int64_t>& s) {
      if (is_activated(node_)) return;
      add({{0, Relation::shard(last, s)}, {1, Relation::shard(1, s)}}, {{0, Relation::partial()}});
    };
    each_shard(1, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (!even(s)) return;
      const Relation y = Relation::shard(last, s);
      if (dim == 0)
        add({{1, Relation::shard(0, s)}, {2, Relation::shard(0, s)}}, {{0, y}, {1, y}});
      else
        summands(s);
    });
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (!even(s)) return;
      const Relation rows = Relation::shard(dim, s);
      if (dim == last)
        summands(s);
      else
        add({{0, rows}}, {{0, rows}, {1, rows}});
    });
  }

  // dx = dy weight, perhaps times an activation's derivative at an operand that lies as dx does.
  void linear_input_gradient() {
    const int64_t last = rank(0) - 1;
    const auto contracted = [&](const std::vector<int64_t>& s) {
      if (is_activated(node_)) return;
      add({{0, Relation::shard(last, s)}, {1, Relation::shard(0, s)}}, {{0, Relation::partial()}});
    };
    each_shard(1, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (!even(s)) return;
      const Relation dx = Relation::shard(last, s);
      if (dim == 0)
        contracted(s);
      else
        add({{1, Relation::shard(1, s)}, {2, dx}}, {{0, dx}});
    });
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (!even(s)) return;
      const Relation rows = Relation::shard(dim, s);
      if (dim == last)
        contracted(s);
      else
        add({{0, rows}, {2, rows}}, {{0, rows}});
    });
  }

  // dweight = dyᵀ x, dbias = the sum of the rows of dy.
  void linear_weight_gradient() {
    const int64_t last = rank(0) - 1;
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (dim == last && even(s))
        add({{0, Relation::shard(last, s)}}, {{0, Relation::shard(0, s)}, {1, Relation::shard(0, s)}});
    });
    each_shard(1, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (dim == last && even(s)) add({{1, Relation::shard(last, s)}}, {{0, Relation::shard(1, s)}});
    });
    for (const size_t input : {size_t{0}, size_t{1}})
      each_shard(input, [&](int64_t dim, const std::vector<int64_t>& s) {
        if (dim != last)
          add({{0, Relation::shard(dim, s)}, {1, Relation::shard(dim, s)}},
              {{0, Relation::partial()}, {1, Relation::partial()}});
      });
  }

  // Leading dimensions only: projections are `linear`.
  void matmul() {
    for (const size_t input : {size_t{0}, size_t{1}})
      each_shard(input, [&](int64_t dim, const std::vector<int64_t>& s) {
        if (dim >= rank(0) - 2 || (input == 1 && rank(1) == 2)) return;
        Way way = all_whole();
        way.inputs[0] = way.outputs[0] = Relation::shard(dim, s);
        if (rank(1) != 2) way.inputs[1] = Relation::shard(dim, s);
        add(std::move(way));
      });
  }

  void embedding() {
    const int64_t width = static_cast<int64_t>(result(0).size()) - 1;
    each_shard(1, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (dim == 1)
        add({{1, Relation::shard(1, s)}}, {{0, Relation::shard(width, s)}});
      else if (s.size() == 1)
        add({{1, Relation::shard(0, s)}}, {{0, Relation::partial()}});
    });
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      add({{0, Relation::shard(dim, s)}}, {{0, Relation::shard(dim, s)}});
    });
  }

  void embedding_gradient() {
    const int64_t width = rank(0) - 1;
    if (wanted_.is_shard() && wanted_.dim == 0 && wanted_.segments.size() == 1) add({}, {{0, wanted_}});
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (dim == width)
        add({{0, Relation::shard(width, s)}}, {{0, Relation::shard(1, s)}});
      else
        add({{0, Relation::shard(dim, s)}, {1, Relation::shard(dim, s)}}, {{0, Relation::partial()}});
    });
  }

  // The classifier's classes are divided; partition() replaces the operator by those that work on parts.
  void classifier() {
    each_shard(1, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (dim != 0 || s.size() != 1) return;
      const Relation classes = Relation::shard(0, s);
      add({{1, classes}, {2, classes}}, {{1, Relation::partial()}, {2, classes}, {3, classes}});
    });
  }

  // Heads are divided, or samples. q, k, v and of the gradient dout and out have [b, t, heads, d]; lse has
  // [b, heads, t].
  void attention() {
    const bool gradient = node_.op->name == "attention_gradient";
    const size_t q = gradient ? 1 : 0;
    const auto over = [&](int64_t dim) {
      Way way = all_whole();
      const auto divided = [&](int64_t at, const Shape& own) {
        return Relation::shard(at, {own[static_cast<size_t>(at)]});
      };
      for (size_t i = 0; i < node_.inputs.size(); ++i) {
        const bool lse = rank(i) == 3;
        way.inputs[i] = divided(lse && dim == 2 ? 1 : dim, shape(i));
        if (!even(way.inputs[i].segments)) return;
      }
      for (size_t o = 0; o < node_.outputs.size(); ++o) {
        if (node_.outputs[o] == kAbsent) continue;
        way.outputs[o] = divided(result(o).size() == 3 && dim == 2 ? 1 : dim, result(o));
      }
      add(std::move(way));
    };
    for (size_t i = 0; i < node_.inputs.size(); ++i)
      each_shard(i, [&](int64_t dim, const std::vector<int64_t>& s) {
        if (s.size() != 1) return;
        const bool lse = i > q + 2 && rank(i) == 3;
        if (dim == 0) over(0);
        if (dim == (lse ? 1 : 2)) over(2);
      });
  }

  void rotary() {
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (dim == 0 || dim == 2) add({{0, Relation::shard(dim, s)}}, {{0, Relation::shard(dim, s)}});
      if (dim == 1)
        add({{0, Relation::shard(1, s)}, {1, Relation::shard(0, s)}}, {{0, Relation::shard(1, s)}});
    });
  }

  // Statistics have one entry for each row, in the rows' order.
  Relation statistics(size_t input, int64_t dim, const std::vector<int64_t>& s) const {
    const size_t at = static_cast<size_t>(dim);
    const int64_t outer = product(shape(input), 0, at),
                  inner = product(shape(input), at + 1, shape(input).size() - 1);
    std::vector<int64_t> segments;
    for (int64_t i = 0; i < outer; ++i)
      for (const int64_t size : s) segments.push_back(size * inner);
    return Relation::shard(0, std::move(segments));
  }

  // Rows are divided, evenly, so that the statistics' parts are the rows'. Those of an operand that is added
  // are too.
  void norm() {
    const auto residual = static_cast<size_t>(node_.op->adds_before);  // and, as result, the sum
    for (const size_t input : {size_t{0}, residual})
      each_shard(input, [&](int64_t dim, const std::vector<int64_t>& s) {
        if (dim == rank(0) - 1 || !even(s)) return;
        const Relation rows = Relation::shard(dim, s);
        Way way = all_whole();
        for (const size_t i : {size_t{0}, residual})
          if (has(i)) way.inputs[i] = rows;
        for (size_t o = 0; o < node_.outputs.size(); ++o)
          if (node_.outputs[o] != kAbsent)
            way.outputs[o] = o == 0 || o == residual ? rows : statistics(0, dim, s);
        add(std::move(way));
      });
  }

  void norm_gradient() {
    const auto skip = static_cast<size_t>(node_.op->adds_after);
    for (const size_t input : {size_t{0}, size_t{1}, skip})
      each_shard(input, [&](int64_t dim, const std::vector<int64_t>& s) {
        if (dim == rank(0) - 1 || !even(s)) return;
        const Relation rows = Relation::shard(dim, s);
        Way way = all_whole();
        way.inputs[0] = way.inputs[1] = way.outputs[0] = rows;
        for (size_t i = 3; i < node_.inputs.size(); ++i)
          if (has(i)) way.inputs[i] = i == skip ? rows : statistics(0, dim, s);
        for (size_t o = 1; o < node_.outputs.size(); ++o)
          if (node_.outputs[o] != kAbsent) way.outputs[o] = Relation::partial();
        add(std::move(way));
      });
  }

  // Masks are drawn by place in the sample: a part of its first dimension is one stretch of it.
  void dropout() {
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (dim != 1 || s.size() != 1 || !even(s)) return;
      if (s[0] / parts_ * product(shape(0), 2, shape(0).size()) % 4 != 0) return;
      add({{0, Relation::shard(1, s)}}, {{0, Relation::shard(1, s)}});
    });
  }

  void softmax() {
    for (size_t i = 0; i < node_.inputs.size(); ++i)
      each_shard(i, [&](int64_t dim, const std::vector<int64_t>& s) {
        if (dim == attribute_dim(rank(i))) return;
        Way way = all_whole();
        for (Relation& relation : way.inputs) relation = Relation::shard(dim, s);
        way.outputs[0] = Relation::shard(dim, s);
        add(std::move(way));
      });
  }

  void sum() {
    const auto dims = node_.attributes.get<std::vector<int64_t>>("dims", {});
    const bool keep = node_.attributes.get<bool>("keep", false);
    std::vector<bool> reduced(shape(0).size(), dims.empty());
    for (const int64_t dim : dims) reduced[static_cast<size_t>(from_start(dim, rank(0)))] = true;
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (reduced[static_cast<size_t>(dim)])
        return add({{0, Relation::shard(dim, s)}}, {{0, Relation::partial()}});
      const int64_t before =
          keep ? 0 : std::count(reduced.begin(), reduced.begin() + static_cast<std::ptrdiff_t>(dim), true);
      add({{0, Relation::shard(dim, s)}}, {{0, Relation::shard(dim - before, s)}});
    });
    if (given_[0].is_partial()) add({{0, Relation::partial()}}, {{0, Relation::partial()}});
  }

  // A dimension that is cut into several, or several joined into one, stays divided by the outermost of them.
  void reshape() {
    if (given_[0].is_partial()) return add({{0, Relation::partial()}}, {{0, Relation::partial()}});
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (!even(s)) return;
      const Shape &from = shape(0), &to = result(0);
      const size_t d = static_cast<size_t>(dim);
      const int64_t before = product(from, 0, d);
      size_t e = 0;
      int64_t passed = 1;
      while (e < to.size() && passed < before) passed *= to[e++];
      while (e < to.size() && to[e] == 1 && from[d] != 1) ++e;
      if (e == to.size() || passed != before) return;
      std::vector<int64_t> segments = s;
      if (to[e] < from[d]) {  // cut: whole entries of the outer dimension
        const int64_t inner = from[d] / to[e];
        if (inner * to[e] != from[d]) return;
        for (int64_t& size : segments) {
          if (size % inner != 0) return;
          size /= inner;
        }
      } else if (to[e] > from[d]) {  // joined with what follows it
        const int64_t inner = to[e] / from[d];
        if (inner * from[d] != to[e]) return;
        for (int64_t& size : segments) size *= inner;
      }
      if (!even(segments)) return;
      add({{0, Relation::shard(dim, s)}}, {{0, Relation::shard(static_cast<int64_t>(e), segments)}});
    });
  }

  void transpose() {
    if (given_[0].is_partial()) return add({{0, Relation::partial()}}, {{0, Relation::partial()}});
    const auto order = node_.attributes.get<std::vector<int64_t>>("order");
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      for (size_t i = 0; i < order.size(); ++i)
        if (from_start(order[i], rank(0)) == dim)
          add({{0, Relation::shard(dim, s)}}, {{0, Relation::shard(static_cast<int64_t>(i), s)}});
    });
  }

  void slice() {
    if (given_[0].is_partial()) return add({{0, Relation::partial()}}, {{0, Relation::partial()}});
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      if (dim != attribute_dim(rank(0))) add({{0, Relation::shard(dim, s)}}, {{0, Relation::shard(dim, s)}});
    });
  }

  // The segments of a divided dimension have to end where the parts that it is split into do.
  void split() {
    Way way = all_whole();
    if (given_[0].is_partial()) {
      way.inputs[0] = Relation::partial();
      for (Relation& relation : way.outputs) relation = Relation::partial();
      return add(std::move(way));
    }
    each_shard(0, [&](int64_t dim, const std::vector<int64_t>& s) {
      way.inputs[0] = Relation::shard(dim, s);
      if (dim != attribute_dim(rank(0))) {
        for (Relation& relation : way.outputs) relation = Relation::shard(dim, s);
        return add(way);
      }
      size_t next = 0;
      const auto sizes = node_.attributes.get<std::vector<int64_t>>("sizes");
      for (size_t o = 0; o < sizes.size(); ++o) {
        std::vector<int64_t> own;
        int64_t left = sizes[o];
        while (left > 0 && next < s.size()) {
          left -= s[next];
          own.push_back(s[next++]);
        }
        if (left != 0) return;
        way.outputs[o] = Relation::shard(dim, std::move(own));
      }
      add(way);
    });
  }

  void concat() {
    const int64_t along = attribute_dim(rank(0));
    Way way = all_whole();
    if (std::all_of(given_.begin(), given_.end(), [](const Relation& r) { return r.is_partial(); })) {
      way.inputs = given_;
      way.outputs[0] = Relation::partial();
      return add(std::move(way));
    }
    for (size_t given = 0; given < node_.inputs.size(); ++given)
      each_shard(given, [&](int64_t dim, const std::vector<int64_t>& s) {
        std::vector<int64_t> joined;
        for (size_t i = 0; i < node_.inputs.size(); ++i) {
          std::vector<int64_t> own = s;
          if (dim == along && i != given)
            own = given_[i].is_shard() && given_[i].dim == dim ? given_[i].segments
                                                               : std::vector<int64_t>{size(i, dim)};
          if (!even(own)) return;
          way.inputs[i] = Relation::shard(dim, own);
          joined.insert(joined.end(), own.begin(), own.end());
        }
        way.outputs[0] = Relation::shard(dim, dim == along ? joined : s);
        add(way);
      });
  }

  const Graph& graph_;
  const Node& node_;
  std::vector<Relation> given_;
  const Relation& wanted_;
  const Division& division_;
  int parts_;
  std::vector<Way> ways_;
};

}  // namespace

std::string to_string(const Relation& relation) {
  switch (relation.kind) {
    case Relation::Kind::whole: return "whole";
    case Relation::Kind::partial: return "partial";
    case Relation::Kind::shard: break;
  }
  return fmt::format("shard of {} in {}", relation.dim, to_string(Shape(relation.segments)));
}

bool divides_evenly(const std::vector<int64_t>& segments, int parts) {
  return std::all_of(segments.begin(), segments.end(), [&](int64_t size) { return size % parts == 0; });
}

std::vector<Way> ways_of(const Graph& graph, const Node& node, const std::vector<Relation>& given,
                         const Relation& wanted, const Division& division) {
  return Rules(graph, node, given, wanted, division).run();
}

Ranges ranges_of(const std::vector<int64_t>& segments, int parts, int part) {
  Ranges ranges;
  int64_t start = 0;
  for (const int64_t size : segments) {
    const Range own = share_of(size, parts, part);
    ranges.push_back({start + own.begin, start + own.end});
    start += size;
  }
  return ranges;
}

int64_t share_of(const std::vector<int64_t>& segments, int parts, int part) {
  return size_of(ranges_of(segments, parts, part));
}

TensorSlice slice_of(const Shape& whole, const Relation& relation, int parts, int part) {
  const TensorSlice slice = TensorSlice::whole(whole);
  return relation.is_shard() ? slice.narrowed(relation.dim, ranges_of(relation.segments, parts, part))
                             : slice;
}

Shape local_shape(const Shape& whole, const Relation& relation, int parts, int part) {
  Shape shape = whole;
  if (relation.is_shard())
    shape[static_cast<size_t>(relation.dim)] = share_of(relation.segments, parts, part);
  return shape;
}

Attributes attributes_of(const Graph& graph, const Node& node, const Way& way, int parts, int part) {
  Attributes attributes = node.attributes;
  const std::string_view name = node.op->name;
  const auto rows = [&](const Relation& table, int64_t of) {
    attributes.set("first", ranges_of(table.segments, parts, part)[0].begin);
    attributes.set("of", of);
  };
  if (name == "reshape") {
    attributes.set("shape", local_shape(graph.type(node.outputs[0]).shape, way.outputs[0], parts, part));
  } else if (name == "split") {
    auto sizes = node.attributes.get<std::vector<int64_t>>("sizes");
    const int64_t rank = static_cast<int64_t>(graph.type(node.inputs[0]).shape.size());
    const int64_t dim = from_start(node.attributes.get<int64_t>("dim"), rank);
    for (size_t o = 0; o < sizes.size(); ++o)
      if (way.outputs[o].is_shard() && way.outputs[o].dim == dim)
        sizes[o] = share_of(way.outputs[o].segments, parts, part);
    attributes.set("sizes", sizes);
  } else if (name == "embedding" && way.inputs[1].is_shard() && way.inputs[1].dim == 0) {
    rows(way.inputs[1], graph.type(node.inputs[1]).shape[0]);
  } else if (name == "embedding_gradient" && way.outputs[0].is_shard() && way.outputs[0].dim == 0) {
    rows(way.outputs[0], node.attributes.get<int64_t>("rows"));
    attributes.set("rows", share_of(way.outputs[0].segments, parts, part));
  } else if ((name == "stochastic_cast" || name == "dropout") && way.inputs[0].is_shard()) {
    set_part(attributes, slice_of(graph.type(node.inputs[0]).shape, way.inputs[0], parts, part));
  }
  return attributes;
}

}  // namespace het
