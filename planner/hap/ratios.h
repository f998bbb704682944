// The shares that suit a program: a linear program over the part that each kind of device gets.
#pragma once

#include "planner/hap/costs.h"

namespace het::planner::hap {

// Shares under which the program takes least, as whole units of the axis that most of its work is cut along.
// Only a candidate: units are rounded, and exchanges between different dimensions count as they are now.
// `most`: the part of a device of each kind at most, where its memory has room for no more; empty: any.
Shares best_shares(ShardingCosts& costs, const ShardingProgram& program,
                   const std::vector<double>& most = {});

// Shares in proportion to the devices' rates in the plan's precision, as whole numbers.
Shares proportional_shares(const DeviceGroup& group);
// Shares near these: of each kind a part of what it has goes to each other kind, a half of it to a 64th.
std::vector<Shares> moved_shares(const DeviceGroup& group, const Shares& shares);
Shares even_shares(const DeviceGroup& group);
// Equal shares for devices of a kind, which have together the middle of what a range allows.
Shares middle_shares(const DeviceGroup& group, const ShareRange& range);

}  // namespace het::planner::hap
