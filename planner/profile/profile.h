// Measured seconds and bytes of layer kinds and seconds of messages, and what to say where nothing was
// measured: between two measured micro-batch sizes a line, beyond them the line of the nearest two or, of
// one, launches that stay and a rest that changes as the roofline; at another tensor-parallel degree the
// measured time scaled by the roofline's ratio; of a type with other kinds measured the roofline scaled by
// what those took over what it has for them; else the roofline itself. Each answer carries which of these it
// is. Plain data, read and written as JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"
#include "planner/cluster/cluster.h"
#include "planner/model/model.h"

namespace het::planner {

// One layer kind on one device of a tensor-parallel group, with one micro-batch. Negative: not measured.
struct ProfilePoint {
  std::string kind, type;
  int tensor = 1, microbatch = 1;
  double forward = 0, input = 0, weight = 0;  // input and weight: the two halves of the backward
  double update = -1;                         // optimizer step of the whole layer
  double recompute = -1;    // the part of `forward` that a stage which recomputes runs again
  bool collectives = true;  // `forward` and `input` hold the group's; if not, they are added from the link
  double weight_bytes = -1, gradient_bytes = -1, optimizer_bytes = -1;
  double activation_bytes = -1;  // kept from forward to backward
  bool operator==(const ProfilePoint&) const = default;
};

struct Message {
  double bytes = 0, seconds = 0;  // one way
  bool operator==(const Message&) const = default;
};

// Messages between two devices of a type: on one host, or on two.
struct ProfiledLink {
  std::string type, from, to;  // hosts
  std::vector<Message> messages;
  bool operator==(const ProfiledLink&) const = default;
};

struct ProfiledDevice {
  std::string type, name;  // what clusters call it, and what it is
  bool operator==(const ProfiledDevice&) const = default;
};

struct Profile {
  std::string model;  // Model::name it was measured for
  std::vector<ProfilePoint> points;
  std::string version, digest;  // hetrun's, and digest_of(model); empty: written by hand, the name counts
  std::vector<ProfiledDevice> devices;
  std::vector<ProfiledLink> links;
  bool operator==(const Profile&) const = default;
};

// What identifies the layers that were measured: their figures, whatever their number.
std::string digest_of(const Model& model);

// Latency and bandwidth that describe messages best, by least squares of relative errors. Throws Error(usage)
// when there are none.
Link fit(const std::vector<Message>& messages);
// Of the links inside a host between devices of a type the slowest; nothing when none was measured.
std::optional<Link> measured_inside(const Profile& profile, std::string_view type);
// Between hosts of two zones (or of one) of a cluster, the slowest of the links that were measured between
// hosts of these names; nothing when none was.
std::optional<Link> measured_between(const Profile& profile, const Cluster& cluster, std::string_view a,
                                     std::string_view b);
// The device types of a cluster and its zones take their measured links. A node that states the link between
// its devices keeps it.
void apply_links(const Profile& profile, Cluster& cluster);

// interpolated: between measured sizes, or at another degree than was measured; extrapolated: smaller or
// larger than any size that was measured. calibrated: of this kind nothing was measured on the type, of
// others something was.
enum class Source { measured, interpolated, extrapolated, calibrated, estimated };
std::string_view name_of(Source source);
// Kinds of `model` that were measured on a type and say something of others: they do work.
std::vector<std::string> calibrating_kinds(const Profile& profile, const Model& model, std::string_view type);

struct LayerSeconds {
  double forward = 0, input = 0, weight = 0, update = 0;
  Source source = Source::estimated;
  double recompute = 0;  // forward again
};

// From the data sheet: the larger of work / (peak x efficiency) and traffic / bandwidth, plus tensor-parallel
// all-reduces over the link inside node `node`, plus DeviceType::launch_seconds for each of a kind's passes.
LayerSeconds roofline(const Cluster& cluster, int node, const Model& model, const LayerKind& kind, int tensor,
                      int microbatch);

// The best of what the profile and the roofline know.
LayerSeconds layer_seconds(const Profile& profile, const Cluster& cluster, int node, const Model& model,
                           const LayerKind& kind, int tensor, int microbatch);

// Bytes that a device keeps of a layer from forward to backward: measured at this degree and scaled by
// samples, else as the model counts them.
double kept_bytes(const Profile& profile, const LayerKind& kind, int tensor, int microbatch);

// A collective of `bytes` in all over n members with this link between any two: by the mesh, else the better
// of a ring and a tree, as NCCL chooses (core/comm/steps.h).
double collective_seconds(CollectiveKind kind, bool mesh, const Link& link, int members, double bytes);

// All that keeps a profile from being used for any model, or for this one, each a sentence.
std::vector<std::string> validate(const Profile& profile);
std::vector<std::string> validate(const Profile& profile, const Model& model);
Json to_json(const Profile& profile);
// The profile in a file. Throws Error(usage) when it is none, or cannot be used (for this model).
Profile read_profile(const Path& path);
Profile read_profile(const Path& path, const Model& model);
Profile profile_from_json(const Json& json,
                          std::string_view what);  // throws Error(usage) naming every mistake

}  // namespace het::planner
