// Measured seconds of layer kinds, and what to say where nothing was measured: between two measured
// micro-batch sizes a line; at another tensor-parallel degree the measured time scaled by the roofline's
// ratio; else the roofline itself. Each answer carries which of these it is. Plain data, read and written as
// JSON.
#pragma once

#include <string>
#include <vector>

#include "core/io/json.h"
#include "planner/cluster.h"
#include "planner/model.h"

namespace het::planner {

// One layer kind on one tensor-parallel group; seconds of one micro-batch, communication inside the group
// included.
struct ProfilePoint {
  std::string kind, type;
  int tensor = 1, microbatch = 1;
  double forward = 0, input = 0, weight = 0;  // input and weight: the two halves of the backward
  double update = -1;                         // optimizer step of the whole layer; negative: not measured
  bool operator==(const ProfilePoint&) const = default;
};

struct Profile {
  std::string model;  // Model::name it was measured for
  std::vector<ProfilePoint> points;
  bool operator==(const Profile&) const = default;
};

enum class Source { measured, interpolated, estimated };
std::string_view name_of(Source source);

struct LayerSeconds {
  double forward = 0, input = 0, weight = 0, update = 0;
  Source source = Source::estimated;
};

// From the data sheet: the larger of work / (peak x efficiency) and traffic / bandwidth, plus tensor-parallel
// all-reduces over the link inside node `node`, plus a launch of kLaunchSeconds for each of a kind's passes.
inline constexpr double kLaunchSeconds = 20e-6;
LayerSeconds roofline(const Cluster& cluster, int node, const Model& model, const LayerKind& kind, int tensor,
                      int microbatch);

// The best of what the profile and the roofline know.
LayerSeconds layer_seconds(const Profile& profile, const Cluster& cluster, int node, const Model& model,
                           const LayerKind& kind, int tensor, int microbatch);

// All-reduce of `bytes` over n members of one link: the better of a ring and a tree.
double all_reduce_seconds(const Link& link, int members, double bytes);

std::vector<std::string> validate(const Profile& profile, const Model& model);
Json to_json(const Profile& profile);
Profile profile_from_json(const Json& json,
                          std::string_view what);  // throws Error(usage) naming every mistake

}  // namespace het::planner
