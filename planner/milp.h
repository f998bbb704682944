// Linear and mixed-integer linear programs, solved by GLPK. A program is built up, solved once, and dropped;
// nothing is shared between programs. milp.cpp alone knows GLPK.
#pragma once

#include <limits>
#include <utility>
#include <vector>

namespace het::planner {

inline constexpr double kNoBound = std::numeric_limits<double>::infinity();

struct Variable {
  double lower = 0, upper = kNoBound;
  double cost = 0;  // in the objective, which is minimised
  bool integer = false;
};

struct Row {
  std::vector<std::pair<int, double>> terms;  // (variable, coefficient), each variable once
  double lower = -kNoBound, upper = kNoBound;
};

struct LinearProgram {
  std::vector<Variable> variables;
  std::vector<Row> rows;
  int add(Variable variable);  // returns its number
  void add(Row row) { rows.push_back(std::move(row)); }
};

struct LinearSolution {
  bool feasible = false;
  bool optimal = false;  // false when the node limit was reached first: then the best found so far
  double objective = 0;
  double bound = 0;  // no solution is below it
  std::vector<double> values;
};

// Nodes of the branch-and-bound tree are limited, not seconds, so that the same program gives the same answer
// on every machine.
struct SolveOptions {
  int nodes = 20000;
  double gap = 0;  // stop when proven within this share of the optimum
};
LinearSolution solve(const LinearProgram& program, const SolveOptions& options = {});

}  // namespace het::planner
