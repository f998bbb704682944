// What one published plan takes on its machines: from its file, the sizes of its model and profiles to a
// MeasuredPlan.
#pragma once

#include "planner/measured/files.h"
#include "planner/measured/measured.h"
#include "planner/measured/profiles.h"

namespace het::planner {

// Fills `plan`, whose name, model and measured figures are known; what hinders the prediction is among its
// problems.
void predict(const PlanFile& file, const ModelSizes& sizes, const MeasuredRequest& request,
             Profiles& profiles, MeasuredPlan& plan);

}  // namespace het::planner
