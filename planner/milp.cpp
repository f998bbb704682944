#include "planner/milp.h"

#include <cmath>
#include <memory>

#include <glpk.h>

#include "core/base/error.h"

namespace het::planner {
namespace {

using Problem = std::unique_ptr<glp_prob, decltype(&glp_delete_prob)>;

int bound_kind(double lower, double upper) {
  if (std::isinf(lower)) return std::isinf(upper) ? GLP_FR : GLP_UP;
  if (std::isinf(upper)) return GLP_LO;
  return lower == upper ? GLP_FX : GLP_DB;
}

struct NodeLimit {
  int left = 0;
  bool reached = false;
};

void stop_at_limit(glp_tree* tree, void* info) {
  auto* limit = static_cast<NodeLimit*>(info);
  if (glp_ios_reason(tree) == GLP_ISELECT && --limit->left < 0) {
    limit->reached = true;
    glp_ios_terminate(tree);
  }
}

}  // namespace

int LinearProgram::add(Variable variable) {
  variables.push_back(variable);
  return static_cast<int>(variables.size()) - 1;
}

LinearSolution solve(const LinearProgram& program, const SolveOptions& options) {
  glp_term_out(GLP_OFF);
  const Problem problem(glp_create_prob(), &glp_delete_prob);
  glp_prob* lp = problem.get();
  glp_set_obj_dir(lp, GLP_MIN);
  bool integer = false;
  if (!program.variables.empty()) glp_add_cols(lp, static_cast<int>(program.variables.size()));
  for (size_t i = 0; i < program.variables.size(); ++i) {
    const Variable& variable = program.variables[i];
    const int column = static_cast<int>(i) + 1;
    HET_REQUIRE(variable.lower <= variable.upper, i, variable.lower, variable.upper);
    glp_set_col_bnds(lp, column, bound_kind(variable.lower, variable.upper), variable.lower, variable.upper);
    glp_set_obj_coef(lp, column, variable.cost);
    if (variable.integer) glp_set_col_kind(lp, column, GLP_IV);
    integer = integer || variable.integer;
  }
  if (!program.rows.empty()) glp_add_rows(lp, static_cast<int>(program.rows.size()));
  std::vector<int> columns;
  std::vector<double> coefficients;
  for (size_t r = 0; r < program.rows.size(); ++r) {
    const Row& row = program.rows[r];
    const int index = static_cast<int>(r) + 1;
    glp_set_row_bnds(lp, index, bound_kind(row.lower, row.upper), row.lower, row.upper);
    columns.assign(1, 0);  // GLPK counts from 1
    coefficients.assign(1, 0);
    for (const auto& [variable, coefficient] : row.terms) {
      columns.push_back(variable + 1);
      coefficients.push_back(coefficient);
    }
    glp_set_mat_row(lp, index, static_cast<int>(row.terms.size()), columns.data(), coefficients.data());
  }

  LinearSolution solution;
  glp_smcp simplex;
  glp_init_smcp(&simplex);
  simplex.msg_lev = GLP_MSG_OFF;
  if (glp_simplex(lp, &simplex) != 0) return solution;
  const int status = glp_get_status(lp);
  if (status == GLP_UNBND) fail(ErrorKind::bug, "a linear program of the planner is unbounded");
  if (status != GLP_OPT && status != GLP_FEAS) return solution;
  solution.bound = glp_get_obj_val(lp);
  if (!integer) {
    solution.feasible = solution.optimal = true;
    solution.objective = solution.bound;
    for (int i = 1; i <= static_cast<int>(program.variables.size()); ++i)
      solution.values.push_back(glp_get_col_prim(lp, i));
    return solution;
  }
  NodeLimit limit{options.nodes, false};
  glp_iocp branch;
  glp_init_iocp(&branch);
  branch.msg_lev = GLP_MSG_OFF;
  branch.cb_func = stop_at_limit;
  branch.cb_info = &limit;
  branch.mip_gap = options.gap;
  const int code = glp_intopt(lp, &branch);
  const int outcome = glp_mip_status(lp);
  if (outcome != GLP_OPT && outcome != GLP_FEAS) return solution;
  solution.feasible = true;
  solution.optimal = code == 0 && outcome == GLP_OPT && !limit.reached;
  solution.objective = glp_mip_obj_val(lp);
  if (solution.optimal) solution.bound = solution.objective;
  for (int i = 1; i <= static_cast<int>(program.variables.size()); ++i) {
    const double value = glp_mip_col_val(lp, i);
    solution.values.push_back(program.variables[static_cast<size_t>(i) - 1].integer ? std::round(value)
                                                                                    : value);
  }
  return solution;
}

}  // namespace het::planner
