#include "core/plan/plan.h"

#include <map>

#include <fmt/format.h>

namespace het {

Plan single_device_plan(const PlanSubject& subject, int microbatch, std::string device) {
  Stage stage;
  stage.devices = {std::move(device)};
  stage.layers = subject.layers;
  Plan plan;
  plan.microbatch = microbatch;
  plan.pipelines.push_back({microbatch > 0 ? subject.batch / microbatch : 0, {stage}});
  return plan;
}

std::vector<std::string> validate(const Plan& plan, const PlanSubject& subject) {
  std::vector<std::string> problems;
  const auto add = [&](std::string text) { problems.push_back(std::move(text)); };
  if (plan.tensor < 1) add(fmt::format("tensor = {}; the tensor-parallel degree is at least 1", plan.tensor));
  if (plan.microbatch < 1) add(fmt::format("microbatch = {}; a micro-batch has at least 1 sample", plan.microbatch));
  if (plan.pipelines.empty()) add("the plan has no pipeline; at least one is needed");

  int64_t samples = 0;
  std::map<std::string, std::string> used;  // device -> where
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    const Pipeline& pipeline = plan.pipelines[p];
    if (pipeline.microbatches < 1)
      add(fmt::format("pipeline {}: microbatches = {}; each pipeline runs at least 1", p + 1, pipeline.microbatches));
    samples += static_cast<int64_t>(pipeline.microbatches) * plan.microbatch;
    int next = 0;
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      const Stage& stage = pipeline.stages[s];
      const std::string where = fmt::format("pipeline {}, stage {}", p + 1, s + 1);
      if (stage.layers < 1) add(fmt::format("{}: layers = {}; a stage holds at least 1", where, stage.layers));
      if (stage.first_layer != next)
        add(fmt::format("{}: begins at layer {}, the stage before it ends at layer {}", where, stage.first_layer,
                        next));
      next = stage.first_layer + stage.layers;
      if (static_cast<int>(stage.devices.size()) != plan.tensor)
        add(fmt::format("{}: {} devices for tensor = {}; each stage has one device for each tensor-parallel rank",
                        where, stage.devices.size(), plan.tensor));
      for (const std::string& device : stage.devices) {
        const auto [entry, fresh] = used.emplace(device, where);
        if (!fresh) add(fmt::format("{}: device {} is already used by {}", where, device, entry->second));
      }
    }
    if (pipeline.stages.empty()) add(fmt::format("pipeline {} has no stage", p + 1));
    else if (next != subject.layers)
      add(fmt::format("pipeline {}: its stages hold {} layers, the model has {}", p + 1, next, subject.layers));
  }
  if (samples != subject.batch && !plan.pipelines.empty())
    add(fmt::format("the pipelines run {} samples in a step (micro-batches times microbatch), the batch is {}",
                    samples, subject.batch));
  return problems;
}

std::string to_lua(const Plan& plan) {
  std::string text = fmt::format("het.plan {{ tensor = {}, microbatch = {},\n", plan.tensor, plan.microbatch);
  for (const Pipeline& pipeline : plan.pipelines) {
    text += fmt::format("  het.pipeline {{ microbatches = {}", pipeline.microbatches);
    for (const Stage& stage : pipeline.stages) {
      text += ", het.stage { ";
      for (const std::string& device : stage.devices) text += fmt::format("\"{}\", ", device);
      text += fmt::format("layers = {}{} }}", stage.layers, stage.recompute ? ", recompute = true" : "");
    }
    text += " },\n";
  }
  return text + "}";
}

}  // namespace het
