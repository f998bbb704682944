#include "planner/measured/files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/io/json.h"

namespace het::planner {
namespace {

constexpr double kMostWhole = 1e6;  // micro-batch sizes, batches, degrees, layers: beyond it is damage

// Reads values of one file; each mistake becomes a sentence, and a value that does no harm.
class Reader {
 public:
  Reader(std::string path, std::vector<std::string>& problems)
      : path_(std::move(path)), problems_(problems) {}

  std::optional<Json> file() {
    try {
      Json json = read_json(path_);
      if (json.is_object()) return json;
      add("is no JSON object");
    } catch (const Error& error) {
      problems_.push_back(error.sentence().find(path_) == std::string::npos
                              ? fmt::format("{}: {}", path_, error.sentence())
                              : error.sentence());
    }
    return std::nullopt;
  }
  void add(const std::string& what) { problems_.push_back(fmt::format("{}: {}", path_, what)); }

  const Json* member(const Json& object, const std::string& key, const std::string& where) {
    const Json* value = find_member(object, key);
    if (value == nullptr) add(fmt::format("{}\"{}\" is missing", prefix(where), key));
    return value;
  }
  double number(const Json* value, const std::string& where) {
    if (value == nullptr) return 0;
    double result = -1;
    if (value->is_number()) result = value->get<double>();
    if (std::isfinite(result) && result >= 0) return result;
    add(fmt::format("{} is {}; it must be a number of 0 or more", where, dump(*value)));
    return 0;
  }
  int whole(const Json* value, const std::string& where) {
    if (value == nullptr) return 1;
    const int64_t* integer = as_integer(value);
    if (integer != nullptr && *integer >= 1 && static_cast<double>(*integer) <= kMostWhole)
      return static_cast<int>(*integer);
    add(fmt::format("{} is {}; it must be a whole number above 0", where, dump(*value)));
    return 1;
  }
  std::string text(const Json* value, const std::string& where) {
    if (value == nullptr) return {};
    if (value->is_string()) return *as_string(value);
    add(fmt::format("{} is {}; it must be a string", where, dump(*value)));
    return {};
  }
  const Json::array_t& list(const Json* value, const std::string& where) {
    static const Json::array_t none;
    if (value == nullptr) return none;
    if (value->is_array()) return *as_array(value);
    add(fmt::format("{} is no list", where));
    return none;
  }
  // Keys that are whole numbers above 0 ("8": a micro-batch size), with their values.
  void each_number(const Json& object, const std::string& where,
                   const std::function<void(int, const Json&)>& use) {
    if (!object.is_object()) return add(fmt::format("{} is no object", where));
    for (const auto& [key, value] : *as_object(object)) {
      int number = 0;
      const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), number);
      if (problem != std::errc() || end != key.data() + key.size() || number < 1 || number > kMostWhole)
        add(fmt::format("{} has \"{}\"; its keys are whole numbers above 0", where, key));
      else
        use(number, value);
    }
  }
  // Layers "0", "1", ... of an object; every one must be there.
  void each_layer(const Json& object, const std::string& where,
                  const std::function<void(const Json&, const std::string&)>& use) {
    if (!object.is_object()) return add(fmt::format("{} is no object", where));
    const size_t count = as_object(object)->size();
    if (count == 0) add(fmt::format("{} has no layers", where));
    for (size_t layer = 0; layer < count; ++layer) {
      const Json* value = find_member(object, std::to_string(layer));
      if (value == nullptr)
        return add(
            fmt::format("{} has {} entries, but no layer {}; layers count from 0", where, count, layer));
      use(*value, fmt::format("{}, layer {}", where, layer));
    }
  }

 private:
  static std::string prefix(const std::string& where) { return where.empty() ? where : where + ": "; }

  std::string path_;
  std::vector<std::string>& problems_;
};

PlanGroup read_group(Reader& read, const Json& json, const std::string& where) {
  PlanGroup group;
  const Json::array_t& pair = read.list(&json, where);
  if (pair.size() != 2) {
    read.add(fmt::format("{} is not [[machines], tensor-parallel degree]", where));
    return group;
  }
  group.tensor = read.whole(&pair[1], where + ", tensor-parallel degree");
  int gpus = 0;
  for (const Json& entry : read.list(&pair[0], where + ", machines")) {
    const Json::array_t& words = read.list(&entry, where + ", machine");
    if (words.size() != 3) {
      read.add(fmt::format("{}: a machine is not [GPU type, GPUs, zone]", where));
      continue;
    }
    group.machines.push_back({read.text(&words[0], where + ", GPU type"),
                              read.text(&words[2], where + ", zone"),
                              read.whole(&words[1], where + ", GPUs")});
    gpus += group.machines.back().gpus;
  }
  if (group.tensor > gpus)
    read.add(fmt::format("{}: a tensor-parallel group of {} has machines with {} GPUs", where, group.tensor,
                         gpus));
  return group;
}

// What a pipeline says of itself beside its lists, and otherwise than they do.
std::vector<std::string> contradictions(const Json& json, const std::string& where,
                                        const std::vector<PlanStage>& stages) {
  std::vector<std::string> notes;
  const Json* count = find_member(json, "num_stages");
  if (count != nullptr && *count != stages.size())
    notes.push_back(fmt::format("{}: num_stages is {}; layers_per_stage has {}, which count", where,
                                dump(*count), stages.size()));
  std::vector<size_t> listed;
  for (const PlanStage& stage : stages) listed.push_back(stage.replicas.size());
  const Json* replicas = find_member(json, "dp");
  if (replicas != nullptr && replicas->is_array() && *replicas != Json(listed))
    notes.push_back(fmt::format("{}: dp is {}; the stages of tmp_per_stage have {} replicas, which count",
                                where, dump(*replicas), fmt::join(listed, ", ")));
  return notes;
}

std::vector<PlanStage> read_pipeline(Reader& read, const Json& json, const std::string& where) {
  std::vector<PlanStage> stages;
  int next = 0;
  for (const Json& entry :
       read.list(read.member(json, "layers_per_stage", where), where + ", layers_per_stage")) {
    PlanStage stage;
    stage.first = next;
    for (const Json& layer :
         read.list(&entry, fmt::format("{}, layers of stage {}", where, stages.size() + 1))) {
      if (!layer.is_number_integer() || *as_integer(layer) != next)
        read.add(fmt::format("{}, stage {}: layer {} where {} follows; stages hold all layers in order",
                             where, stages.size() + 1, dump(layer), next));
      ++next;
      ++stage.layers;
    }
    if (stage.layers == 0) read.add(fmt::format("{}: stage {} has no layers", where, stages.size() + 1));
    stages.push_back(std::move(stage));
  }
  const Json::array_t& groups =
      read.list(read.member(json, "tmp_per_stage", where), where + ", tmp_per_stage");
  if (groups.size() != stages.size() || stages.empty())
    read.add(fmt::format("{}: layers_per_stage has {} stages, tmp_per_stage {}", where, stages.size(),
                         groups.size()));
  for (size_t s = 0; s < std::min(groups.size(), stages.size()); ++s) {
    const std::string at = fmt::format("{}, stage {}", where, s + 1);
    const Json::array_t& replicas = read.list(&groups[s], at);
    for (size_t r = 0; r < replicas.size(); ++r)
      stages[s].replicas.push_back(read_group(read, replicas[r], fmt::format("{}, replica {}", at, r + 1)));
    if (replicas.empty() || replicas.size() != stages[0].replicas.size())
      read.add(fmt::format("{} has {} replicas, stage 1 {}; all stages have as many, at least one", at,
                           replicas.size(), stages[0].replicas.size()));
  }
  return stages;
}

}  // namespace

int PlanFile::layers() const {
  if (pipelines.empty() || pipelines[0].empty()) return 0;
  return pipelines[0].back().first + pipelines[0].back().layers;
}

std::map<std::string, ModelSizes> read_model_sizes(const std::string& path,
                                                   std::vector<std::string>& problems) {
  std::map<std::string, ModelSizes> models;
  Reader read(path, problems);
  const auto json = read.file();
  if (!json) return models;
  for (const auto& [model, degrees] : *as_object(*json))
    read.each_number(degrees, model, [&, &model = model](int tensor, const Json& layers) {
      std::vector<LayerSize>& sizes = models[model][tensor];
      read.each_layer(
          layers, fmt::format("{}, degree {}", model, tensor),
          [&](const Json& layer, const std::string& where) {
            const auto value = [&](const char* key) {
              return read.number(read.member(layer, key, where), fmt::format("{}: {}", where, key));
            };
            const Json* input = find_member(layer, "act_input_bytes");
            sizes.push_back({value("params_floats"), value("act_mem_bytes"), value("act_output_bytes"),
                             input == nullptr ? 0 : value("act_input_bytes")});
          });
    });
  return models;
}

TypeTimes read_type_times(const std::string& path, int layers, std::vector<std::string>& problems) {
  const auto json = Reader(path, problems).file();
  return json ? type_times(*json, path, layers, problems) : TypeTimes{};
}

namespace {

// The first of many mistakes that are alike.
std::vector<std::string> shortened(std::vector<std::string> mistakes, const std::string& at) {
  constexpr size_t kShown = 3;
  if (mistakes.size() <= kShown + 1) return mistakes;
  const size_t more = mistakes.size() - kShown;
  mistakes.resize(kShown);
  mistakes.push_back(fmt::format("{}: and {} more mistakes", at, more));
  return mistakes;
}

}  // namespace

TypeTimes type_times(const Json& json, const std::string& path, int layers,
                     std::vector<std::string>& problems) {
  TypeTimes times;
  Reader whole(path, problems);
  whole.each_number(json, "the profile", [&](int microbatch, const Json& degrees) {
    whole.each_number(degrees, fmt::format("micro-batch {}", microbatch), [&](int tensor, const Json& table) {
      const std::string at = fmt::format("micro-batch {}, degree {}", microbatch, tensor);
      std::vector<LayerTimes> of;
      std::vector<std::string> mistakes;
      Reader read(path, mistakes);
      read.each_layer(table, at, [&](const Json& layer, const std::string& where) {
        const Json::array_t& three = read.list(&layer, where);
        if (three.size() != 3) return read.add(fmt::format("{} is not [forward, backward, update]", where));
        of.push_back({read.number(&three[0], where + ", forward"),
                      read.number(&three[1], where + ", backward"),
                      read.number(&three[2], where + ", update")});
      });
      if (mistakes.empty() && static_cast<int>(of.size()) != layers)
        read.add(fmt::format("{} has times of {} layers; the model has {}", at, of.size(), layers));
      for (const auto& [pass, seconds] :
           {std::pair{"forward", &LayerTimes::forward}, {"backward", &LayerTimes::backward}})
        if (mistakes.empty() &&
            std::none_of(of.begin(), of.end(), [&](const LayerTimes& layer) { return layer.*seconds > 0; }))
          read.add(fmt::format("{}: all {} times are 0; nothing was measured", at, pass));
      if (mistakes.empty())
        times.tables[tensor][microbatch] = std::move(of);
      else
        times.damaged[tensor][microbatch] = shortened(std::move(mistakes), fmt::format("{}: {}", path, at));
    });
  });
  return times;
}

bool no_plan(const std::string& path) {
  try {
    const Json json = read_json(path);
    return json.is_object() && find_member(json, "pipeline_list") == nullptr &&
           find_member(json, "mbs") == nullptr;
  } catch (const Error&) {
    return false;  // reading it as a plan says what is wrong
  }
}

PlanFile read_plan_file(const std::string& path) {
  PlanFile plan;
  plan.path = path;
  plan.name = std::filesystem::path(path).stem().string();
  Reader read(path, plan.problems);
  const auto json = read.file();
  if (!json) return plan;
  plan.microbatch = read.whole(read.member(*json, "mbs", ""), "mbs");
  plan.batch = read.whole(read.member(*json, "gbs", ""), "gbs");
  if (const Json* model = find_member(*json, "model")) plan.model = read.text(model, "model");
  const auto measured = [&](const char* key, std::optional<double>& value, bool positive) {
    const Json* found = find_member(*json, key);
    if (found == nullptr || found->is_null()) return;
    const double number = read.number(found, key);
    if (number > 0 || !positive)
      value = number;
    else
      read.add(fmt::format("{} is 0; leave it out where it was not measured", key));
  };
  measured("real", plan.seconds, true);
  measured("red_grads", plan.gradient_seconds, false);
  measured("max_mem", plan.memory_bytes, true);
  const Json::array_t& pipelines = read.list(read.member(*json, "pipeline_list", ""), "pipeline_list");
  for (size_t p = 0; p < pipelines.size(); ++p) {
    const std::string where = fmt::format("pipeline {}", p + 1);
    plan.pipelines.push_back(read_pipeline(read, pipelines[p], where));
    for (std::string& note : contradictions(pipelines[p], where, plan.pipelines.back()))
      plan.notes.push_back(std::move(note));
  }
  if (find_member(*json, "pipeline_list") != nullptr && plan.pipelines.empty())
    read.add("pipeline_list has no pipelines");
  for (size_t p = 1; p < plan.pipelines.size() && plan.problems.empty(); ++p)
    if (plan.pipelines[p].back().first + plan.pipelines[p].back().layers != plan.layers())
      read.add(fmt::format("pipeline {} has {} layers, pipeline 1 {}", p + 1,
                           plan.pipelines[p].back().first + plan.pipelines[p].back().layers, plan.layers()));
  return plan;
}

namespace {

template <class Iterator>
std::vector<std::string> json_files_of(const std::string& folder, std::vector<std::string>& problems) {
  std::vector<std::string> files;
  std::error_code problem;
  for (Iterator at(folder, problem), end; !problem && at != end; at.increment(problem))
    if (at->path().extension() == ".json") files.push_back(at->path().string());
  if (problem)
    problems.push_back(fmt::format("{}: cannot be read as a folder: {}", folder, problem.message()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<std::string> json_files(const std::string& folder, std::vector<std::string>& problems) {
  return json_files_of<std::filesystem::directory_iterator>(folder, problems);
}

std::vector<std::string> nested_json_files(const std::string& folder, std::vector<std::string>& problems) {
  return json_files_of<std::filesystem::recursive_directory_iterator>(folder, problems);
}

}  // namespace het::planner
