#include "planner/measured/measured.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "planner/measured/files.h"
#include "planner/measured/prediction.h"
#include "planner/measured/profiles.h"

namespace het::planner {
namespace {

// The model of a plan: stated, named by the plan, or the only one with its number of layers.
std::string model_of(const PlanFile& file, const MeasuredRequest& request,
                     const std::map<std::string, ModelSizes>& models, const Profiles& profiles,
                     std::vector<std::string>& problems) {
  std::vector<std::string> known, fitting;
  for (const auto& [model, sizes] : models) {
    known.push_back(model);
    if (!sizes.empty() && static_cast<int>(sizes.begin()->second.size()) == file.layers() &&
        profiles.has(model))
      fitting.push_back(model);
  }
  const std::string& named = !request.model.empty() ? request.model : file.model;
  if (!named.empty()) {
    const auto found = models.find(named);
    if (found == models.end() || found->second.empty()) {
      problems.push_back(fmt::format("{}: no model \"{}\"; there are {}", request.model_info, named,
                                     fmt::join(known, ", ")));
      return {};
    }
    const auto layers = static_cast<int>(found->second.begin()->second.size());
    if (layers == file.layers() && profiles.has(named)) return named;
    if (layers != file.layers())
      problems.push_back(
          fmt::format("{}: the plan divides {} layers; {} has {}", file.path, file.layers(), named, layers));
    else
      problems.push_back(fmt::format("{}: no profiles of model {}", profiles.path(), named));
    return {};
  }
  if (fitting.size() == 1) return fitting[0];
  if (fitting.empty())
    problems.push_back(
        fmt::format("{}: the plan divides {} layers; no model of {} with profiles in {} has as many",
                    file.path, file.layers(), request.model_info, profiles.path()));
  else
    problems.push_back(
        fmt::format("{}: the plan divides {} layers, as many as each of {} has; --model says which",
                    file.path, file.layers(), fmt::join(fitting, ", ")));
  return {};
}

// Whether a number has more than three digits: coarser ones agree by chance.
bool is_fine(double value) { return std::stod(fmt::format("{:.3g}", value)) != value; }

// Two different plans do not take the same to the last digit: one was copied.
void mark_identical(std::vector<MeasuredPlan>& plans) {
  const auto mark = [&](const char* what, std::optional<double> MeasuredPlan::*value) {
    for (MeasuredPlan& plan : plans)
      for (const MeasuredPlan& other : plans)
        if (&plan != &other && plan.*value && is_fine(*(plan.*value)) && plan.*value == other.*value)
          plan.suspicious.push_back(
              fmt::format("its measured {} is that of {} to the last digit", what, other.name));
  };
  mark("step", &MeasuredPlan::measured_seconds);
  mark("memory", &MeasuredPlan::measured_memory_bytes);
}

// What a second profile of the same machines says of a plan.
void predict_again(const PlanFile& file, const ModelSizes& sizes, const MeasuredRequest& request,
                   Profiles& profiles, MeasuredPlan& plan) {
  MeasuredPlan other;
  other.model = plan.model;
  other.measured_seconds = plan.measured_seconds;
  predict(file, sizes, request, profiles, other);
  if (!other.problems.empty()) {
    plan.notes.push_back(fmt::format("no second prediction: {}", fmt::join(other.problems, "; ")));
    return;
  }
  plan.other_seconds = other.seconds;
  plan.other_contradicts = other.contradicts;
}

}  // namespace

std::vector<Ranking> rank(const std::vector<MeasuredPlan>& plans) {
  std::map<std::pair<std::string, int>, std::vector<RankedPlan>> alike;
  for (const MeasuredPlan& plan : plans) {
    if (!plan.problems.empty()) continue;
    std::vector<RankedPlan>& group = alike[{plan.model, plan.batch}];
    group.push_back({plan.name, plan.links});
    group.back().links.seconds = plan.seconds;
  }
  std::vector<Ranking> rankings;
  for (const auto& [key, group] : alike)
    if (group.size() > 1) rankings.push_back(rank(group, key.first, key.second));
  return rankings;
}

MeasuredReport simulate_measured(const MeasuredRequest& request) {
  MeasuredReport report;
  const auto models = read_model_sizes(request.model_info, report.problems);
  Profiles profiles(request.profiles, report.problems);
  std::optional<Profiles> others;
  if (!request.other_profiles.empty()) others.emplace(request.other_profiles, report.problems);
  std::vector<std::string> files = nested_json_files(request.plans, report.problems);
  for (const std::string& path : files)
    if (no_plan(path)) report.skipped.push_back(path + ": is no plan; it has neither mbs nor pipeline_list");
  std::erase_if(files, no_plan);
  if (files.empty() && report.problems.empty())
    report.problems.push_back(fmt::format("{}: has no plans (*.json)", request.plans));
  // A file of sizes with mistakes may still have the sizes that a plan needs; without profiles there is
  // nothing.
  for (const std::string& path : files) {
    const PlanFile file = read_plan_file(path);
    MeasuredPlan plan;
    plan.name = std::filesystem::relative(path, request.plans).replace_extension().string();
    plan.path = file.path;
    plan.microbatch = file.microbatch;
    plan.batch = file.batch;
    plan.measured_seconds = file.seconds;
    plan.measured_gradient_seconds = file.gradient_seconds;
    plan.measured_memory_bytes = file.memory_bytes;
    plan.notes = file.notes;
    plan.problems = file.problems;
    if (plan.problems.empty()) plan.model = model_of(file, request, models, profiles, plan.problems);
    if (plan.problems.empty()) predict(file, models.at(plan.model), request, profiles, plan);
    if (plan.problems.empty() && others) predict_again(file, models.at(plan.model), request, *others, plan);
    report.plans.push_back(std::move(plan));
  }
  mark_identical(report.plans);
  report.rankings = rank(report.plans);
  return report;
}

}  // namespace het::planner
