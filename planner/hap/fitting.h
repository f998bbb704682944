// Programs for devices that have too little memory for the fastest one: state, what the backward pass needs
// of the forward pass and sums of gradients get a price for each byte on the devices that lack memory, and
// shares leave these devices no more than they have room for.
#pragma once

#include <optional>

#include "planner/hap/hap.h"
#include "planner/simulate/programs.h"

namespace het::planner::hap {

struct Fitting {
  Synthesised made;  // its costs are seconds, without prices
  ProgramsTime time;
  Plan plan;
};

// The fastest that was found to fit, as it is run; nullopt: none was. `start`: a program that does not, and
// what it takes of each device. `known_seconds`: a step of another plan that fits. Programs whose
// computing and communication together take more than twice as long as a plan that fits are left out, since
// overlap hides at most half: with thousands of exchanges of parts they take longest to be lowered.
std::optional<Fitting> fit(const Request& request, const ShardingProgram& start, const ProgramsTime& time,
                           std::optional<double> known_seconds = std::nullopt);

// A program that holds little: for shares like the devices' memory, with the highest price of a byte that
// fit() tries, of those with the least lack. Whether it fits is not said.
Fitting frugal(const Request& request, const ShardingProgram& start, const ProgramsTime& time);

// How much the device lacks that lacks most, as a part of what it has; 0: it fits.
double lack_of(const ProgramsTime& time);

// Bytes that some device has to hold whatever the program: parameters, and the state of their updates.
double state_bytes(const Graph& graph);

}  // namespace het::planner::hap
