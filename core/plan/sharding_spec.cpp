#include "core/plan/sharding_spec.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/ops/op.h"

namespace het {
namespace {

int literals_in(std::string_view pattern) {
  return static_cast<int>(pattern.size() - std::count(pattern.begin(), pattern.end(), '*'));
}

// Of the entries whose pattern matches, the one with the most characters other than *; null: none matches.
template <class Entry>
const Entry* entry_for(const std::vector<Entry>& entries, std::string_view name) {
  const Entry* best = nullptr;
  for (const Entry& entry : entries)
    if (matches(entry.pattern, name) &&
        (best == nullptr || literals_in(entry.pattern) > literals_in(best->pattern)))
      best = &entry;
  return best;
}

// "x dim 0, weight dim 1 in 3 segments"
std::string list(const PlacementTable& table, const std::vector<ValueId>& ids,
                 const std::vector<OperandNotation>& operands, const std::vector<PlacementId>& lies) {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == kAbsent || lies[i] == kReplicated) continue;
    const Placement& placement = table.placements(ids[i])[lies[i]];
    text += text.empty() ? "" : ", ";
    text += operands.empty() ? fmt::format("{}", i + 1) : operands[i].name;
    if (placement.is_partial()) {
      text += " partial";
      continue;
    }
    text += fmt::format(" dim {}", placement.dim);
    if (placement.segments.size() > 1) text += fmt::format(" in {} segments", placement.segments.size());
  }
  return text.empty() ? "replicated" : text;
}

// Patterns and names that give each name its text, and none where the text is empty.
std::map<std::string, std::string> collapsed(const std::vector<std::pair<std::string, std::string>>& named) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, text] : named) {
    if (text.empty()) continue;
    const std::string pattern = pattern_of(name);
    const bool same = std::all_of(named.begin(), named.end(), [&, &text = text](const auto& other) {
      return !matches(pattern, other.first) || other.second == text;
    });
    texts[same ? pattern : name] = text;
  }
  return texts;
}

// "all_reduce *" of "all_reduce 12"; empty: the name has no number at its end.
std::string numbered_pattern_of(std::string_view name) {
  const size_t space = name.rfind(' ');
  if (space == std::string_view::npos || space + 1 == name.size()) return {};
  const std::string_view number = name.substr(space + 1);
  if (!std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; })) return {};
  return std::string(name.substr(0, space + 1)) + '*';
}

// The same with one entry for most of many nodes that differ in their number alone, where exceptions are
// fewer. `text_of`: of a node, whether or not it has an entry; nullopt: its words are read as another way.
void collapse_numbers(std::map<std::string, std::string>& entries, const std::vector<std::string>& names,
                      const std::function<std::optional<std::string>(size_t)>& text_of) {
  constexpr size_t kLeastSaved = 3;  // entries
  std::map<std::string, std::vector<std::string>> by_pattern;
  for (const auto& [name, text] : entries)
    if (const std::string pattern = numbered_pattern_of(name);
        name.find('*') == std::string::npos && !pattern.empty())
      by_pattern[pattern].push_back(name);
  for (const auto& [pattern, written] : by_pattern) {
    std::map<std::string, size_t> counts;
    for (const std::string& name : written) ++counts[entries.at(name)];
    const auto common = std::max_element(counts.begin(), counts.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
    std::map<std::string, std::string> others{{pattern, common->first}};
    bool is_read_back = true;
    for (size_t n = 0; n < names.size() && others.size() + kLeastSaved <= written.size(); ++n) {
      if (!matches(pattern, names[n])) continue;
      const std::optional<std::string> text = text_of(n);
      is_read_back = is_read_back && text;
      if (text && *text != common->first) others.emplace(names[n], *text);
    }
    if (!is_read_back || others.size() + kLeastSaved > written.size()) continue;
    for (const std::string& name : written) entries.erase(name);
    entries.merge(others);
  }
}

// What is not replicated if the parameters lie as they do in a program.
std::map<ValueId, PlacementId> given_by_parameters(const PlacementTable& table,
                                                   const ShardingProgram& program) {
  const Graph& graph = table.graph();
  std::map<ValueId, PlacementId> given;
  for (size_t i = 0; i < graph.values.size(); ++i)
    if (graph.values[i].role == Role::parameter)
      give(table, static_cast<ValueId>(i), program.values[i], given);
  return given;
}

// How a node runs by these words; nullopt: it does not run so.
std::optional<NodeSharding> way_of(const PlacementTable& table, NodeId n, std::string_view rule) {
  if (rule == "replicated") return table.replicated(n);
  for (const NodeSharding& way : table.shardings(n))
    if (describe(table, n, way) == rule) return way;
  return std::nullopt;
}

class Reader {
 public:
  Reader(const PlacementTable& table, const Shares& shares, const AxisSharding& sharding)
      : table_(table), graph_(table.graph()), shares_(shares), sharding_(sharding) {}

  ShardingHints run() {
    hints_.axes = fillable(table_, shares_);
    for (const bool parameters : {true, false})  // whose optimizer state follows, unless it is named itself
      for (size_t i = 0; i < graph_.values.size(); ++i)
        if ((graph_.values[i].role == Role::parameter) == parameters) read_value(static_cast<ValueId>(i));
    const std::vector<std::string> names = node_names(graph_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (const auto* entry = entry_for(sharding_.nodes, names[n]))
        read_node(static_cast<NodeId>(n), names[n], *entry);
    if (!problems_.empty())
      fail_usage("the plan's sharding does not fit the model:\n  {}", fmt::join(problems_, "\n  "));
    return std::move(hints_);
  }

 private:
  void read_value(ValueId id) {
    const Value& value = graph_.values[static_cast<size_t>(id)];
    if (value.role == Role::intermediate) return;
    const auto* cut = entry_for(is_state(value) ? sharding_.state : sharding_.inputs, value.name);
    if (cut == nullptr) return;
    std::string problem;
    const auto lies = cut->dim < 0 ? std::optional(kReplicated)
                                   : placement_of(table_, shares_, id, cut->dim, cut->segments, problem);
    if (!lies)
      refuse(cut->pattern, fmt::format("{}: {}", value.name, problem));
    else if (value.role == Role::parameter)
      give(table_, id, *lies, hints_.given);
    else
      hints_.given[id] = *lies;
  }

  void read_node(NodeId n, const std::string& name, const AxisSharding::Rule& entry) {
    if (auto way = way_of(table_, n, entry.rule)) {
      hints_.nodes[n] = *std::move(way);
      return;
    }
    std::vector<std::string> known{"replicated"};
    for (const NodeSharding& way : table_.shardings(n)) known.push_back(describe(table_, n, way));
    refuse(entry.pattern, fmt::format("{} does not run as '{}'; it runs as '{}'", name, entry.rule,
                                      fmt::join(known, "', '")));
  }

  // Of what a pattern matches, the first that does not fit is named.
  void refuse(const std::string& pattern, std::string problem) {
    if (refused_.insert(pattern).second) problems_.push_back(std::move(problem));
  }

  const PlacementTable& table_;
  const Graph& graph_;
  const Shares& shares_;
  const AxisSharding& sharding_;
  ShardingHints hints_;
  std::vector<std::string> problems_;
  std::set<std::string> refused_;  // patterns
};

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  // Where the last * was met, and what it has taken of the name: it takes more when the rest does not match.
  size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string pattern_of(std::string_view name, std::string_view before) {
  std::string pattern;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    const bool begins = i == 0 || before.find(name[i - 1]) != std::string_view::npos;
    const bool ends = end == name.size() || name[end] == '.' || name[end] == ' ';
    if (end > i && begins && ends) {
      pattern += '*';
      i = end;
    } else {
      pattern += name[i++];
    }
  }
  return pattern;
}

std::vector<std::string> node_names(const Graph& graph) {
  std::vector<std::string> names;
  std::map<std::string, int> count;
  for (const Node& node : graph.nodes) {
    std::string name = name_of(graph, node);
    const int number = ++count[name];
    names.push_back(number == 1 ? name : fmt::format("{} {}", name, number));
  }
  return names;
}

std::string describe(const PlacementTable& table, NodeId n, const NodeSharding& way) {
  if (way.rule < 0) return "replicated";
  const Graph& graph = table.graph();
  const Node& node = graph.nodes[static_cast<size_t>(n)];
  const auto types = types_of(graph, node.inputs), made = types_of(graph, node.outputs);
  const Notation notation = notation_of({*node.op, types, node.attributes}, made);
  return list(table, node.inputs, notation.inputs, way.inputs) + " -> " +
         list(table, node.outputs, notation.outputs, way.outputs);
}

std::optional<PlacementId> placement_of(const PlacementTable& table, const Shares& shares, ValueId id,
                                        int64_t dim, const std::vector<int64_t>& segments,
                                        std::string& problem) {
  std::optional<PlacementId> best;
  const Shape& shape = table.graph().type(id).shape;
  if (dim >= std::ssize(shape)) {
    problem = fmt::format("it has no dimension {}; its shape is [{}]", dim, fmt::join(shape, ", "));
    return best;
  }
  if (shape[static_cast<size_t>(dim)] == 1) {
    problem = fmt::format("its dimension {} is 1, too little for {} devices", dim, shares.size());
    return best;
  }
  problem = segments.empty() ? fmt::format("no operator runs on parts of its dimension {}", dim)
                             : fmt::format("its dimension {} is never cut in segments {{ {} }}", dim,
                                           fmt::join(segments, ", "));
  const auto& placements = table.placements(id);
  for (size_t p = kPartial + 1; p < placements.size(); ++p) {
    if (placements[p].dim != dim || (!segments.empty() && placements[p].segments != segments)) continue;
    const LogicalAxis& axis = table.axes()[static_cast<size_t>(placements[p].axis)];
    if (!fills(axis, shares)) {
      problem = fmt::format("its dimension {} has {} units, too few for {} devices{}", dim, axis.units,
                            shares.size(), show_uneven(shares));
      continue;
    }
    if (!best || axis.obstacle.empty()) best = static_cast<PlacementId>(p);
    if (axis.obstacle.empty()) break;
  }
  return best;
}

void give(const PlacementTable& table, ValueId parameter, PlacementId lies,
          std::map<ValueId, PlacementId>& given) {
  const Graph& graph = table.graph();
  const Placement& placement = table.placements(parameter)[lies];
  given[parameter] = lies;
  for (const Node& node : graph.nodes) {
    const auto changes = [&](const std::pair<int, int>& pair) {  // of result and operand
      return static_cast<size_t>(pair.second) < node.inputs.size() &&
             node.inputs[static_cast<size_t>(pair.second)] == parameter;
    };
    if (std::none_of(node.op->in_place.begin(), node.op->in_place.end(), changes)) continue;
    for (const auto& [output, input] : node.op->in_place) {
      if (static_cast<size_t>(input) >= node.inputs.size()) continue;
      const ValueId state = node.inputs[static_cast<size_t>(input)];
      if (state == kAbsent || graph.type(state).shape != graph.type(parameter).shape) continue;
      given[state] = placement.is_sharded()
                         ? table.find(state, placement.dim, placement.segments).value_or(kReplicated)
                         : kReplicated;
    }
  }
}

ShardingHints hints_of(const PlacementTable& table, const Shares& shares, const AxisSharding& sharding) {
  return Reader(table, shares, sharding).run();
}

std::vector<std::string> unmatched(const Graph& graph, const AxisSharding& sharding) {
  std::vector<std::string> state, inputs, problems;
  for (const Value& value : graph.values)
    if (value.role != Role::intermediate) (is_state(value) ? state : inputs).push_back(value.name);
  const auto check = [&](const auto& entries, const std::vector<std::string>& names, const char* what) {
    for (const auto& entry : entries) {
      if (std::any_of(names.begin(), names.end(),
                      [&](const std::string& name) { return matches(entry.pattern, name); }))
        continue;
      const std::string nearest = nearest_name(entry.pattern, names);
      constexpr size_t kMostShown = 4;
      const std::vector<std::string> first(names.begin(),
                                           names.begin() + std::min<size_t>(names.size(), kMostShown));
      problems.push_back(fmt::format("{}: '{}' matches nothing of the model; {}", what, entry.pattern,
                                     nearest.empty()
                                         ? fmt::format("there are '{}'{}", fmt::join(first, "', '"),
                                                       first.size() < names.size() ? ", ..." : "")
                                         : fmt::format("did you mean '{}'?", nearest)));
    }
  };
  check(sharding.state, state, "state");
  check(sharding.inputs, inputs, "inputs");
  check(sharding.nodes, node_names(graph), "nodes");
  return problems;
}

AxisSharding sharding_of(const PlacementTable& table, const ShardingProgram& program) {
  const Graph& graph = table.graph();
  AxisSharding result;
  ShardingHints hints;
  hints.axes = fillable(table, program.shares);
  const std::map<ValueId, PlacementId> following = given_by_parameters(table, program);
  std::vector<std::pair<std::string, std::string>> state, inputs;               // names, with how they lie
  std::map<std::string, AxisSharding::Cut> cuts{{"replicated", {"", -1, {}}}};  // by that text
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    const auto id = static_cast<ValueId>(i);
    if (value.role == Role::intermediate) continue;
    const Placement& placement = table.placements(id)[program.values[i]];
    hints.given[id] = program.values[i];
    const auto follows = following.find(id);
    const PlacementId otherwise = follows == following.end() ? kReplicated : follows->second;
    std::string text;
    if (placement.is_sharded()) {
      std::string problem;
      const bool usual =
          placement_of(table, program.shares, id, placement.dim, {}, problem) == program.values[i];
      AxisSharding::Cut cut{"", placement.dim, usual ? std::vector<int64_t>{} : placement.segments};
      text = fmt::format("{} in {}", cut.dim, fmt::join(cut.segments, ","));
      cuts[text] = std::move(cut);
    } else if (otherwise != kReplicated) {
      text = "replicated";
    }
    // The state of the optimizer that lies as its parameter needs no entry, and matches no pattern of others.
    if (value.role == Role::parameter || otherwise != program.values[i] || !is_state(value))
      (is_state(value) ? state : inputs).emplace_back(value.name, std::move(text));
  }
  const auto add = [&](std::vector<AxisSharding::Cut>& to, const auto& named) {
    for (const auto& [pattern, text] : collapsed(named)) {
      to.push_back(cuts.at(text));
      to.back().pattern = pattern;
    }
  };
  add(result.state, state);
  add(result.inputs, inputs);
  const std::vector<std::string> names = node_names(graph);
  const auto rule_of = [&](size_t n) { return describe(table, static_cast<NodeId>(n), program.nodes[n]); };
  const auto read_back = [&](size_t n) -> std::optional<std::string> {
    std::string rule = rule_of(n);
    return way_of(table, static_cast<NodeId>(n), rule) == program.nodes[n] ? std::optional(std::move(rule))
                                                                           : std::nullopt;
  };
  std::vector<std::pair<std::string, std::string>> rules;
  for (const std::string& name : names) rules.emplace_back(name, "");
  for (const NodeId n : differences(table, hints, program))
    rules[static_cast<size_t>(n)].second = rule_of(static_cast<size_t>(n));
  std::map<std::string, std::string> entries = collapsed(rules);
  collapse_numbers(entries, names, read_back);
  for (const auto& [pattern, rule] : entries) result.nodes.push_back({pattern, rule});
  return result;
}

}  // namespace het
