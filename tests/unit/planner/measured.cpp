// Plans that were really run, by the authors of Sailor (eth-easl/sailor, MIT): seconds of a step on GH200
// nodes, with the profile of the same machines. The files lie beside the repository or where HETRUN_MEASURED
// says; without them the test says so and passes.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "core/io/json.h"
#include "planner/simulate.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;

namespace {

double number(const Json& json) {
  return json.integer() != nullptr ? static_cast<double>(*json.integer()) : std::get<double>(json.value);
}
int whole(const Json& json) { return static_cast<int>(number(json)); }

struct MeasuredPlan {
  std::string name;
  Cluster cluster;
  Model model;
  Profile profile;
  Layout layout;
  double seconds = 0;
};

// One kind for each layer; half of the measured backward is counted to each of its parts.
MeasuredPlan read_plan(const std::string& folder, const std::string& file) {
  MeasuredPlan plan;
  plan.name = std::filesystem::path(file).stem().string();
  const Json json = read_json(file);
  plan.layout.microbatch = whole(*json.find("mbs"));
  plan.seconds = number(*json.find("real"));
  const Json& pipeline = (*json.find("pipeline_list")->array())[0];
  const Json::Array& groups = *pipeline.find("tmp_per_stage")->array();
  const Json& first = (*groups[0].array())[0];
  plan.layout.tensor = whole((*first.array())[1]);
  const std::string type = *(*(*(*first.array())[0].array())[0].array())[0].string();
  const std::string tensor = std::to_string(plan.layout.tensor);

  const Json sizes = read_json(folder + "/model_info.json"),
             times = read_json(folder + "/profiles/OPT-350/" + type + ".json");
  const Json& info = *sizes.find("OPT-350")->find(tensor);
  const Json& measured = *times.find(std::to_string(plan.layout.microbatch))->find(tensor);
  plan.model.name = plan.profile.model = "OPT-350";
  plan.model.precision = Precision::f32;
  plan.model.weight_bytes = plan.model.gradient_bytes = 4;
  plan.model.optimizer_bytes = 8;
  plan.model.heads = plan.model.kv_heads = 16;
  for (int layer = 0; info.find(std::to_string(layer)) != nullptr; ++layer) {
    const std::string name = std::to_string(layer);
    const Json& size = *info.find(name);
    const Json::Array& time = *measured.find(name)->array();
    LayerKind kind;
    kind.name = name;
    kind.parameters = number(*size.find("params_floats")) * plan.layout.tensor;
    kind.activation_bytes = number(*size.find("act_mem_bytes")) * plan.layout.tensor;
    kind.boundary_bytes = number(*size.find("act_output_bytes"));
    plan.model.kinds.push_back(kind);
    plan.model.layers.push_back(layer);
    plan.profile.points.push_back({name, type, plan.layout.tensor, plan.layout.microbatch, number(time[0]),
                                   number(time[1]) / 2, number(time[1]) / 2, number(time[2])});
  }

  const Json::Array& stages = *pipeline.find("layers_per_stage")->array();
  const int replicas = whole((*pipeline.find("dp")->array())[0]);
  DeviceType device = het::testing::plain_type(type, 60, 96);
  device.inside = {5e-6, 450e9};
  plan.cluster.types = {device};
  plan.cluster.nodes = {
      het::testing::plain_node("n", type, plan.layout.tensor, replicas * static_cast<int>(stages.size()))};
  // Not in the data: 200 Gb/s, which is also about what the plans of depth 4 and 2 suggest together.
  plan.cluster.between = {20e-6, 25e9};
  const int microbatches = whole(*json.find("gbs")) / plan.layout.microbatch / replicas;
  for (int r = 0; r < replicas; ++r) {
    PipelineLayout out;
    out.microbatches = microbatches;
    for (size_t s = 0; s < stages.size(); ++s) {
      const Json::Array& layers = *stages[s].array();
      out.stages.push_back({0, r * static_cast<int>(stages.size()) + static_cast<int>(s), whole(layers[0]),
                            static_cast<int>(layers.size())});
    }
    plan.layout.pipelines.push_back(std::move(out));
  }
  return plan;
}

std::string data_folder() {
  if (const char* given = std::getenv("HETRUN_MEASURED"); given != nullptr) return given;
  std::filesystem::path at = std::filesystem::current_path();
  for (int up = 0; up < 6; ++up, at = at.parent_path())
    if (std::filesystem::exists(at / "shared/data/measured/plans"))
      return (at / "shared/data/measured").string();
  return {};
}

}  // namespace

TEST_CASE("measured plans are predicted within 10 %, those whose own profile contradicts them apart") {
  const std::string folder = data_folder();
  if (folder.empty()) {
    WARN("skipped: no measured plans beside the repository; set HETRUN_MEASURED to their folder");
    return;
  }
  // One or four devices, or micro-batches of 1, 2 or 4: what was measured at these sizes as a profile and as
  // a run differs by 20 to 45 % before any communication (planning.md, section 3). Not judged, and not tuned
  // to.
  int judged = 0, apart = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/plans")) {
    const MeasuredPlan plan = read_plan(folder, entry.path().string());
    const CostTable costs =
        make_costs(plan.cluster, plan.model, plan.profile, plan.layout.tensor, plan.layout.microbatch);
    Simulator simulator(costs, plan.cluster);
    SimulateOptions options;
    options.blocking_transfers = true;
    options.details = true;
    const Simulation predicted = simulator.run(plan.layout, options);
    const double error = predicted.seconds / plan.seconds - 1;
    INFO(plan.name << ": predicted " << predicted.seconds << " s, measured " << plan.seconds << " s, "
                   << 100 * error << " %");
    if (std::getenv("HETRUN_SHOW") != nullptr) WARN("error " << 100 * error);
    if (plan.layout.microbatch < 8) {
      ++apart;
      continue;
    }
    ++judged;
    CHECK(std::abs(error) <= 0.10);
  }
  CHECK(judged == 9);
  CHECK(apart == 6);
}
