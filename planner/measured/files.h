// The files of plans that were really run, as eth-easl/sailor publishes them, read into plain data. Nothing
// here predicts. A damaged file costs only what depends on it: its mistakes are sentences that name it, and
// all of a file's come at once.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/io/json.h"

namespace het::planner {

// model_info.json: of one layer on one GPU of a tensor-parallel group, for one sample.
struct LayerSize {
  double parameters = 0;        // elements
  double activation_bytes = 0;  // kept from forward to backward
  double output_bytes = 0;
  double input_bytes = 0;  // 0 where the file does not say
};
using ModelSizes = std::map<int, std::vector<LayerSize>>;  // by tensor-parallel degree

// profiles/MODEL/TYPE.json or profiles/MODEL/TYPE/profile.json: seconds of one layer and one micro-batch.
struct LayerTimes {
  double forward = 0, backward = 0, update = 0;
};
// By degree, by micro-batch. A table with mistakes costs only what needs it.
struct TypeTimes {
  std::map<int, std::map<int, std::vector<LayerTimes>>> tables;
  std::map<int, std::map<int, std::vector<std::string>>> damaged;  // the mistakes of tables that are left out
};

// plans/*.json. A stage lists its data-parallel replicas; each is a tensor-parallel group that takes `tensor`
// GPUs of the machines it names, which are of several types where plans mix them inside a group.
struct PlanMachine {
  std::string type, zone;
  int gpus = 0;
  bool operator==(const PlanMachine&) const = default;
};
struct PlanGroup {
  std::vector<PlanMachine> machines;
  int tensor = 0;
  bool operator==(const PlanGroup&) const = default;
};
struct PlanStage {
  int first = 0, layers = 0;
  std::vector<PlanGroup> replicas;
};
struct PlanFile {
  std::string name, path, model;  // model: empty where the file names none
  int microbatch = 0, batch = 0;  // samples
  std::vector<std::vector<PlanStage>> pipelines;
  std::optional<double> seconds;           // of a step
  std::optional<double> gradient_seconds;  // of it, spent on gradient synchronisation by the run's own clock
  std::optional<double> memory_bytes;      // the peak of the fullest GPU
  std::vector<std::string> notes;          // where it contradicts itself
  std::vector<std::string> problems;
  int layers() const;  // of the model, as its first pipeline divides it
};

std::map<std::string, ModelSizes> read_model_sizes(const std::string& path,
                                                   std::vector<std::string>& problems);
// `layers`: how many the model has; a table with others is a problem.
TypeTimes read_type_times(const std::string& path, int layers, std::vector<std::string>& problems);
// The same of a part of a file that is read already; `path` names it in problems.
TypeTimes type_times(const Json& json, const std::string& path, int layers,
                     std::vector<std::string>& problems);
PlanFile read_plan_file(const std::string& path);
// Whether a file is an object that has nothing of a plan, such as a table of results beside plans.
bool no_plan(const std::string& path);
// The *.json of a folder, sorted; a folder that cannot be read is a problem.
std::vector<std::string> json_files(const std::string& folder, std::vector<std::string>& problems);
// Those of its folders too.
std::vector<std::string> nested_json_files(const std::string& folder, std::vector<std::string>& problems);

}  // namespace het::planner
