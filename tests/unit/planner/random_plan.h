// Valid plans by chance, and the simplest one that still shows what a plan showed.
#pragma once

#include <functional>
#include <random>

#include "core/plan/plan.h"

namespace het::testing {

// For a model of `layers` layers: up to three pipelines of up to three groups of up to four devices, with all
// that a plan can say. Micro-batches have `samples` samples. With `uneven`, tensor-parallel ranks may have
// shares.
Plan random_plan(std::mt19937& random, int layers, int samples, bool uneven = false);

// Of a plan whose devices are of one host: the same with a host for each group of devices.
Plan with_a_host_for_each_stage(Plan plan);

int devices_in(const Plan& plan);

// Of a plan that fails: one that fails too, and that no single simplification leaves failing. Every
// simplification takes something out: a pipeline, a stage, micro-batches, a degree, a switch.
Plan simplest_failing(Plan plan, const std::function<bool(const Plan&)>& fails);

}  // namespace het::testing
