#include "planner/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/cluster/secret.h"

namespace het::planner {
namespace {

constexpr int kFormat = 2;

double at(double x, double x0, double y0, double x1, double y1) {
  return std::max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), 0.0);
}

double again(const ProfilePoint& p) { return p.recompute < 0 ? p.forward : p.recompute; }

LayerSeconds between(const ProfilePoint& a, const ProfilePoint& b, int microbatch) {
  const auto line = [&](double ya, double yb) { return at(microbatch, a.microbatch, ya, b.microbatch, yb); };
  return {line(a.forward, b.forward),   line(a.input, b.input), line(a.weight, b.weight),
          std::min(a.update, b.update), Source::interpolated,   line(again(a), again(b))};
}

// Kernels of a transformer block in one pass that a framework launches one by one: two norms, six products
// with their biases, attention's scale, mask, softmax and two reshapes, an activation, dropouts and sums.
constexpr double kMostLaunches = 25;

// From one measured size to another: what a device takes beyond the roofline is launches, up to
// `kMostLaunches`, which take as long whatever the size; the rest changes as the roofline does, which counts
// the reading of weights once. (A device that takes three times its roofline is slow at every
// size: that is no launches.)
// Never more than in proportion, never fewer seconds for more samples. `here` and `there`: the roofline at
// `microbatch` and at the measured size; a layer without work has none, then all but a launch is in
// proportion.
LayerSeconds from_one(const ProfilePoint& p, int microbatch, const LayerSeconds& here,
                      const LayerSeconds& there, double launch) {
  const double factor = static_cast<double>(microbatch) / p.microbatch;
  const auto moved = [&](double seconds, double roof_here, double roof_there) {
    const bool known = roof_there > 0;
    const double fixed =
        known ? std::clamp(seconds - roof_there, 0.0, kMostLaunches * launch) : std::min(seconds, launch);
    return std::clamp(fixed + (seconds - fixed) * (known ? roof_here / roof_there : factor),
                      seconds * std::min(factor, 1.0), seconds * std::max(factor, 1.0));
  };
  return {moved(p.forward, here.forward, there.forward),
          moved(p.input, here.input, there.input),
          moved(p.weight, here.weight, there.weight),
          p.update,
          Source::extrapolated,
          moved(again(p), here.recompute, there.recompute)};
}

LayerSeconds as_measured(const ProfilePoint& p) {
  return {p.forward, p.input, p.weight, p.update, Source::measured, again(p)};
}

// Of the measured points of one kind, type and degree, at least one, by micro-batch. `roof`: the roofline of
// a micro-batch of them; `launch`: what a launch takes.
template <typename Roof>
LayerSeconds from_points(std::vector<const ProfilePoint*>& points, int microbatch, const Roof& roof,
                         double launch) {
  LayerSeconds out;
  std::sort(points.begin(), points.end(),
            [](const ProfilePoint* a, const ProfilePoint* b) { return a->microbatch < b->microbatch; });
  const auto next = std::find_if(points.begin(), points.end(),
                                 [&](const ProfilePoint* p) { return p->microbatch >= microbatch; });
  if (next != points.end() && (*next)->microbatch == microbatch) {
    out = as_measured(**next);
  } else if (points.size() == 1) {
    out = from_one(*points[0], microbatch, roof(microbatch), roof(points[0]->microbatch), launch);
  } else if (next == points.begin()) {
    // A smaller micro-batch is never faster than in proportion, never slower than the smallest measured.
    out = between(*points[0], *points[1], microbatch);
    out.source = Source::extrapolated;
    const double share = static_cast<double>(microbatch) / points[0]->microbatch;
    const auto clamp = [&](double value, double most) { return std::clamp(value, most * share, most); };
    out.forward = clamp(out.forward, points[0]->forward);
    out.input = clamp(out.input, points[0]->input);
    out.weight = clamp(out.weight, points[0]->weight);
    out.recompute = clamp(out.recompute, again(*points[0]));
  } else if (next == points.end()) {
    out = between(*points[points.size() - 2], *points.back(), microbatch);
    out.source = Source::extrapolated;
    out.forward = std::max(out.forward, points.back()->forward);
    out.input = std::max(out.input, points.back()->input);
    out.weight = std::max(out.weight, points.back()->weight);
    out.recompute = std::max(out.recompute, again(*points.back()));
  } else {
    out = between(**std::prev(next), **next, microbatch);
  }
  return out;
}

}  // namespace

std::string_view name_of(Source source) {
  switch (source) {
    case Source::measured: return "measured";
    case Source::interpolated: return "interpolated";
    case Source::extrapolated: return "extrapolated";
    case Source::calibrated: return "calibrated";
    case Source::estimated: return "estimated";
  }
  return "unknown";
}

double collective_seconds(CollectiveKind kind, bool mesh, const Link& link, int members, double bytes) {
  const auto by = [&](Algorithm algorithm) {
    return seconds_of(even_steps(kind, algorithm, members, bytes), link);
  };
  return mesh ? by(Algorithm::mesh) : std::min(by(Algorithm::ring), by(Algorithm::tree));
}

namespace {

// Whether a pass of `flops` a sample multiplies a kind's parameters. An embedding table does not,
// nor a pass whose work another one does; of layers of experts a token multiplies a part. A product has two
// operations for each parameter and token.
bool multiplies(const Model& model, const LayerKind& kind, double flops) {
  constexpr double kLeastPart = 0.01;
  return flops > 0 && flops >= kLeastPart * 2 * kind.parameters * model.tokens;
}

// The roofline without all-reduces of the tensor-parallel group.
LayerSeconds compute_seconds(const Cluster& cluster, int node, const Model& model, const LayerKind& kind,
                             int tensor, int microbatch) {
  const DeviceType& type = type_of(cluster, node);
  double peak = type.flops(model.precision);
  if (peak <= 0) peak = type.f32_flops;  // unsupported precisions run in f32
  const double rate = peak * type.efficiency, samples = static_cast<double>(microbatch) / tensor;
  const double weights = kind.parameters * model.weight_bytes / tensor;
  const auto pass = [&](double flops, double bytes) {
    const double read = multiplies(model, kind, flops) ? weights : 0;
    return std::max(flops * samples / rate, (bytes * samples + read) / type.memory_bytes_per_second) +
           type.launch_seconds;
  };
  LayerSeconds seconds;
  seconds.forward = pass(kind.forward_flops, kind.forward_bytes);
  seconds.recompute = pass(kind.flops_again(), kind.forward_bytes);
  seconds.input = pass(kind.input_flops, kind.forward_bytes);
  const bool is_frozen = model.trained_share < 1 && kind.weight_flops == 0;
  seconds.weight = is_frozen ? 0 : pass(kind.weight_flops, kind.forward_bytes);
  // Weights, gradients and state are read once; weights and state written once.
  const double update_bytes =
      2 * model.optimizer_bytes + model.gradient_bytes + model.trained_share * model.weight_bytes;
  seconds.update = kind.parameters / tensor *
                   std::max(update_bytes / type.memory_bytes_per_second,
                            model.update_flops / (type.f32_flops * type.efficiency));
  seconds.source = Source::estimated;
  return seconds;
}

// The all-reduces of the tensor-parallel group.
void add_reductions(LayerSeconds& seconds, const Cluster& cluster, int node, const LayerKind& kind,
                    int tensor, int microbatch) {
  const double each = collective_seconds(CollectiveKind::all_reduce, cluster.mesh, inside_link(cluster, node),
                                         tensor, kind.boundary_bytes * microbatch);
  seconds.forward += kind.tensor_reductions * each;
  seconds.recompute += kind.reductions_again() * each;
  seconds.input += kind.tensor_reductions * each;
}

}  // namespace

LayerSeconds roofline(const Cluster& cluster, int node, const Model& model, const LayerKind& kind, int tensor,
                      int microbatch) {
  LayerSeconds seconds = compute_seconds(cluster, node, model, kind, tensor, microbatch);
  add_reductions(seconds, cluster, node, kind, tensor, microbatch);
  return seconds;
}

namespace {

// What was measured of a kind on a node's type, at the nearest degree and from there to `tensor`. `alone`: it
// has no collectives of the group. Nothing where no point is of the kind and type.
struct FromPoints {
  LayerSeconds seconds;
  bool alone = false;
};
std::optional<FromPoints> from_profile(const Profile& profile, const Cluster& cluster, int node,
                                       const Model& model, const LayerKind& kind, int tensor,
                                       int microbatch) {
  const std::string& type = cluster.nodes[static_cast<size_t>(node)].type;
  std::vector<const ProfilePoint*> points;
  int nearest = 0;  // the measured degree nearest to `tensor`, by ratio; the smaller of two
  for (const ProfilePoint& point : profile.points) {
    if (point.kind != kind.name || point.type != type) continue;
    const auto distance = [&](int degree) {
      return std::abs(std::log2(static_cast<double>(degree) / tensor));
    };
    if (nearest == 0 || distance(point.tensor) < distance(nearest) ||
        (distance(point.tensor) == distance(nearest) && point.tensor < nearest))
      nearest = point.tensor;
  }
  for (const ProfilePoint& point : profile.points)
    if (point.kind == kind.name && point.type == type && point.tensor == nearest) points.push_back(&point);
  if (points.empty()) return std::nullopt;
  const bool alone = nearest == 1 || !points.front()->collectives;  // measured without a group
  const auto at_degree = alone ? compute_seconds : roofline;
  const auto roof = [&](int samples) {
    if (kind.forward_flops <= 0) return LayerSeconds{};  // all that is known of the layer was measured
    return at_degree(cluster, node, model, kind, nearest, samples);
  };
  LayerSeconds seconds = from_points(points, microbatch, roof, type_of(cluster, node).launch_seconds);
  if (nearest != tensor) {
    const LayerSeconds here = at_degree(cluster, node, model, kind, tensor, microbatch),
                       there = at_degree(cluster, node, model, kind, nearest, microbatch);
    // A pass without work, as an embedding's to its input, takes nothing on a device that launches nothing.
    const auto ratio = [](double to, double from) { return from > 0 ? to / from : 1; };
    seconds.forward *= ratio(here.forward, there.forward);
    seconds.recompute *= ratio(here.recompute, there.recompute);
    seconds.input *= ratio(here.input, there.input);
    seconds.weight *= ratio(here.weight, there.weight);
    if (seconds.update >= 0) seconds.update *= static_cast<double>(nearest) / tensor;
    if (seconds.source == Source::measured) seconds.source = Source::interpolated;
  }
  return FromPoints{seconds, alone};
}

// The roofline of a layer that was not measured on the node's type, scaled by what the kinds that
// were took over what the roofline has for them: forward, backward and update apart, each over all these
// kinds together. Collectives are those of the link, unless the measured ones are in what was measured.
std::optional<LayerSeconds> calibrated(const Profile& profile, const Cluster& cluster, int node,
                                       const Model& model, const LayerKind& kind, int tensor,
                                       int microbatch) {
  const auto names = calibrating_kinds(profile, model, cluster.nodes[static_cast<size_t>(node)].type);
  double forward = 0, backward = 0, update = 0, roof_forward = 0, roof_backward = 0, roof_update = 0;
  bool alone = true;
  for (const LayerKind& other : model.kinds) {
    if (std::find(names.begin(), names.end(), other.name) == names.end()) continue;
    const auto found = from_profile(profile, cluster, node, model, other, tensor, microbatch);
    const LayerSeconds roof =
        (found->alone ? compute_seconds : roofline)(cluster, node, model, other, tensor, microbatch);
    alone = alone && found->alone;
    forward += found->seconds.forward;
    backward += found->seconds.input + found->seconds.weight;
    roof_forward += roof.forward;
    roof_backward += roof.input + roof.weight;
    if (found->seconds.update >= 0) {
      update += found->seconds.update;
      roof_update += roof.update;
    }
  }
  if (names.empty()) return std::nullopt;
  LayerSeconds seconds = (alone ? compute_seconds : roofline)(cluster, node, model, kind, tensor, microbatch);
  const auto factor = [](double measured, double roof) { return roof > 0 ? measured / roof : 1; };
  seconds.forward *= factor(forward, roof_forward);
  seconds.recompute *= factor(forward, roof_forward);
  seconds.input *= factor(backward, roof_backward);
  seconds.weight *= factor(backward, roof_backward);
  seconds.update *= factor(update, roof_update);
  if (alone) add_reductions(seconds, cluster, node, kind, tensor, microbatch);
  seconds.source = Source::calibrated;
  return seconds;
}

}  // namespace

std::vector<std::string> calibrating_kinds(const Profile& profile, const Model& model,
                                           std::string_view type) {
  std::vector<std::string> names;
  for (const LayerKind& kind : model.kinds)
    if (multiplies(model, kind, kind.forward_flops) &&
        std::any_of(profile.points.begin(), profile.points.end(),
                    [&](const ProfilePoint& point) { return point.kind == kind.name && point.type == type; }))
      names.push_back(kind.name);
  return names;
}

LayerSeconds layer_seconds(const Profile& profile, const Cluster& cluster, int node, const Model& model,
                           const LayerKind& kind, int tensor, int microbatch) {
  const auto found = from_profile(profile, cluster, node, model, kind, tensor, microbatch);
  if (!found) {
    const auto scaled = calibrated(profile, cluster, node, model, kind, tensor, microbatch);
    return scaled ? *scaled : roofline(cluster, node, model, kind, tensor, microbatch);
  }
  LayerSeconds seconds = found->seconds;
  if (seconds.update < 0) seconds.update = roofline(cluster, node, model, kind, tensor, microbatch).update;
  if (found->alone) add_reductions(seconds, cluster, node, kind, tensor, microbatch);
  return seconds;
}

double kept_bytes(const Profile& profile, const LayerKind& kind, int tensor, int microbatch) {
  const ProfilePoint* nearest = nullptr;
  const auto distance = [&](const ProfilePoint& point) {
    return std::abs(std::log2(static_cast<double>(point.microbatch) / microbatch));
  };
  for (const ProfilePoint& point : profile.points)
    if (point.kind == kind.name && point.tensor == tensor && point.activation_bytes >= 0 &&
        (nearest == nullptr || distance(point) < distance(*nearest)))
      nearest = &point;
  if (nearest != nullptr) return nearest->activation_bytes * microbatch / nearest->microbatch;
  return (kind.whole_activation_bytes + (kind.activation_bytes - kind.whole_activation_bytes) / tensor) *
         microbatch;
}

std::string digest_of(const Model& model) {
  std::string text = fmt::format("{} {} {} {} {}\n", name_of(model.precision), model.tokens,
                                 model.weight_bytes, model.gradient_bytes, model.optimizer_bytes);
  for (const LayerKind& kind : model.kinds)
    text += fmt::format("{} {} {} {} {} {} {} {} {} {}\n", kind.name, kind.parameters, kind.activation_bytes,
                        kind.checkpoint_bytes, kind.forward_flops, kind.input_flops, kind.weight_flops,
                        kind.forward_bytes, kind.boundary_bytes, kind.tensor_reductions);
  for (const SharedParameter& shared : model.shared) {
    std::set<std::string> kinds;  // whatever the number of layers
    for (const int layer : shared.layers) kinds.insert(model.layer(layer).name);
    text += fmt::format("shared {} {} {}\n", fmt::join(kinds, " "), shared.parameters, shared.trained);
  }
  constexpr size_t kDigits = 16;
  return hex_of(hmac_sha256("model", text)).substr(0, kDigits);
}

// seconds(bytes) = a + b bytes with the least sum of ((a + b bytes) / seconds - 1)^2.
Link fit(const std::vector<Message>& messages) {
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const Message& message : messages) {
    const double weight = 1 / (message.seconds * message.seconds);
    w += weight;
    wx += weight * message.bytes;
    wxx += weight * message.bytes * message.bytes;
    wy += weight * message.seconds;
    wxy += weight * message.bytes * message.seconds;
  }
  if (messages.empty()) fail_usage("a link without messages has no speed");
  const double determinant = w * wxx - wx * wx;
  double latency = determinant > 0 ? (wy * wxx - wx * wxy) / determinant : 0;
  double slope = determinant > 0 ? (w * wxy - wx * wy) / determinant : 0;
  if (latency < 0 || slope <= 0) {  // the larger messages alone
    latency = 0;
    slope = wxx > 0 ? wxy / wxx : 0;
  }
  constexpr double kUnmeasured = 1e15;  // bytes per second, where all messages were empty
  return {latency, slope > 0 ? 1 / slope : kUnmeasured};
}

std::optional<Link> measured_inside(const Profile& profile, std::string_view type) {
  std::optional<Link> slowest;
  for (const ProfiledLink& link : profile.links) {
    if (link.type != type || link.from != link.to || link.messages.empty()) continue;
    const Link own = fit(link.messages);
    if (!slowest || own.bytes_per_second < slowest->bytes_per_second) slowest = own;
  }
  return slowest;
}

std::optional<Link> measured_between(const Profile& profile, const Cluster& cluster, std::string_view a,
                                     std::string_view b) {
  const auto zone_of = [&](const std::string& host) -> const std::string* {
    for (const Machine& node : cluster.nodes)
      if (std::find(node.hosts.begin(), node.hosts.end(), host) != node.hosts.end()) return &node.zone;
    return nullptr;
  };
  std::optional<Link> slowest;
  for (const ProfiledLink& link : profile.links) {
    if (link.from == link.to || link.messages.empty()) continue;
    const std::string *from = zone_of(link.from), *to = zone_of(link.to);
    if (from == nullptr || to == nullptr) continue;
    if (!(*from == a && *to == b) && !(*from == b && *to == a)) continue;
    const Link own = fit(link.messages);
    if (!slowest || own.bytes_per_second < slowest->bytes_per_second) slowest = own;
  }
  return slowest;
}

void apply_links(const Profile& profile, Cluster& cluster) {
  for (DeviceType& type : cluster.types)
    if (const auto link = measured_inside(profile, type.name)) type.inside = *link;
  std::set<std::string> zones;
  for (const Machine& node : cluster.nodes) zones.insert(node.zone);
  for (auto a = zones.begin(); a != zones.end(); ++a)
    for (auto b = a; b != zones.end(); ++b) {
      const auto link = measured_between(profile, cluster, *a, *b);
      if (!link) continue;
      const auto known =
          std::find_if(cluster.zone_links.begin(), cluster.zone_links.end(), [&](const ZoneLink& entry) {
            return (entry.a == *a && entry.b == *b) || (entry.a == *b && entry.b == *a);
          });
      if (known != cluster.zone_links.end())
        known->link = *link;
      else
        cluster.zone_links.push_back({*a, *b, *link});
    }
}

namespace {
std::string describe(const ProfilePoint& point, size_t index) {
  return fmt::format("profile point {} ({} on {})", index + 1, point.kind, point.type);
}
}  // namespace

std::vector<std::string> validate(const Profile& profile) {
  std::vector<std::string> problems;
  if (!profile.version.empty() && profile.version != HET_VERSION)
    problems.push_back(
        fmt::format("it was measured by hetrun {}, this is hetrun {}; measure again with `hetrun profile`",
                    profile.version, HET_VERSION));
  for (const ProfiledLink& link : profile.links)
    for (const Message& message : link.messages)
      if (!std::isfinite(message.seconds) || message.seconds <= 0 || !(message.bytes >= 0))
        problems.push_back(fmt::format("link from {} to {}: {} bytes in {} seconds; times are above 0",
                                       link.from, link.to, message.bytes, message.seconds));
  for (size_t i = 0; i < profile.points.size(); ++i) {
    const ProfilePoint& point = profile.points[i];
    const std::string where = describe(point, i);
    if (point.tensor < 1)
      problems.push_back(fmt::format("{}: tensor = {}; it is at least 1", where, point.tensor));
    if (point.microbatch < 1)
      problems.push_back(fmt::format("{}: microbatch = {}; it is at least 1", where, point.microbatch));
    for (const double seconds : {point.forward, point.input, point.weight})
      if (!std::isfinite(seconds) || seconds < 0)
        problems.push_back(fmt::format("{}: {} seconds; times are 0 or more", where, seconds));
  }
  return problems;
}

std::vector<std::string> validate(const Profile& profile, const Model& model) {
  std::vector<std::string> problems;
  if (profile.digest.empty() ? profile.model != model.name : profile.digest != digest_of(model))
    problems.push_back(
        fmt::format("it was measured for \"{}\", this model is \"{}\"{}; measure again with `hetrun profile`",
                    profile.model, model.name,
                    profile.model == model.name ? " with another precision, context or optimizer" : ""));
  // Of another model's profile every point would be wrong.
  const bool same = problems.empty();
  for (std::string& problem : validate(profile)) problems.push_back(std::move(problem));
  if (!same && !profile.digest.empty()) return problems;
  std::vector<std::string> kinds;
  for (const LayerKind& kind : model.kinds) kinds.push_back(kind.name);
  for (size_t i = 0; i < profile.points.size(); ++i) {
    const ProfilePoint& point = profile.points[i];
    const auto kind = std::find(kinds.begin(), kinds.end(), point.kind);
    if (kind == kinds.end())
      problems.push_back(fmt::format("{}: the model has no such layer kind; it has {}", describe(point, i),
                                     fmt::join(kinds, ", ")));
    else if (point.forward == 0 && model.kinds[static_cast<size_t>(kind - kinds.begin())].forward_flops > 0)
      problems.push_back(fmt::format(
          "{}: forward takes 0 seconds, though the layer does work; leave out what was not measured",
          describe(point, i)));
  }
  return problems;
}

Json to_json(const Profile& profile) {
  Json::array_t points, devices, links;
  for (const ProfilePoint& point : profile.points) {
    Json::object_t entry = {{"kind", point.kind},       {"type", point.type},
                            {"tensor", point.tensor},   {"microbatch", point.microbatch},
                            {"forward", point.forward}, {"input", point.input},
                            {"weight", point.weight}};
    const auto add = [&](const char* key, double value) {
      if (value >= 0) entry.emplace_back(key, value);
    };
    add("update", point.update);
    add("recompute", point.recompute);
    if (!point.collectives) entry.emplace_back("collectives", false);
    add("weight_bytes", point.weight_bytes);
    add("gradient_bytes", point.gradient_bytes);
    add("optimizer_bytes", point.optimizer_bytes);
    add("activation_bytes", point.activation_bytes);
    points.emplace_back(std::move(entry));
  }
  for (const ProfiledDevice& device : profile.devices)
    devices.push_back(Json::object_t{{"type", device.type}, {"name", device.name}});
  for (const ProfiledLink& link : profile.links) {
    Json::array_t messages;
    for (const Message& message : link.messages)
      messages.push_back(Json::object_t{{"bytes", message.bytes}, {"seconds", message.seconds}});
    links.push_back(Json::object_t{
        {"type", link.type}, {"from", link.from}, {"to", link.to}, {"messages", std::move(messages)}});
  }
  return Json::object_t{
      {"profile", kFormat},       {"hetrun", profile.version},     {"model", profile.model},
      {"digest", profile.digest}, {"devices", std::move(devices)}, {"points", std::move(points)},
      {"links", std::move(links)}};
}

namespace {

// Reads the fields of a profile and collects every mistake.
class ProfileReader {
 public:
  Profile read(const Json& json) {
    Profile profile;
    where_ = "the profile";
    profile.model = text(json, "model", true);
    profile.version = text(json, "hetrun", false);
    profile.digest = text(json, "digest", false);
    each(json, "points", true, [&](const Json& entry) {
      ProfilePoint point;
      point.kind = text(entry, "kind", true);
      point.type = text(entry, "type", true);
      point.tensor = count(entry, "tensor");
      point.microbatch = count(entry, "microbatch");
      point.forward = number(entry, "forward", true);
      point.input = number(entry, "input", true);
      point.weight = number(entry, "weight", true);
      point.update = number(entry, "update", false);
      point.recompute = number(entry, "recompute", false);
      if (const Json* value = find_member(entry, "collectives")) {
        const bool* flag = as_bool(value);
        if (flag == nullptr)
          wrong("collectives", "neither true nor false");
        else
          point.collectives = *flag;
      }
      point.weight_bytes = number(entry, "weight_bytes", false);
      point.gradient_bytes = number(entry, "gradient_bytes", false);
      point.optimizer_bytes = number(entry, "optimizer_bytes", false);
      point.activation_bytes = number(entry, "activation_bytes", false);
      profile.points.push_back(std::move(point));
    });
    each(json, "devices", false, [&](const Json& entry) {
      profile.devices.push_back({text(entry, "type", true), text(entry, "name", true)});
    });
    each(json, "links", false, [&](const Json& entry) {
      ProfiledLink link{text(entry, "type", true), text(entry, "from", true), text(entry, "to", true), {}};
      each(entry, "messages", true, [&](const Json& message) {
        link.messages.push_back({number(message, "bytes", true), number(message, "seconds", true)});
      });
      profile.links.push_back(std::move(link));
    });
    return profile;
  }

  const std::string& problems() const { return problems_; }

 private:
  void wrong(const char* key, const char* why) {
    problems_ += fmt::format("\n  {}: \"{}\" is {}", where_, key, why);
  }

  std::string text(const Json& object, const char* key, bool needed) {
    const Json* value = find_member(object, key);
    if (const std::string* text = as_string(value)) return *text;
    if (needed || value != nullptr) wrong(key, "missing or no text");
    return {};
  }

  double number(const Json& object, const char* key, bool needed) {
    const Json* value = find_member(object, key);
    if (value != nullptr && value->is_number()) return value->get<double>();
    if (needed || value != nullptr) wrong(key, "missing or no number");
    return -1;
  }

  int count(const Json& object, const char* key) {
    const double value = number(object, key, true);
    if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<int>(value);
    wrong(key, "no whole number");
    return 1;
  }

  template <typename Read>
  void each(const Json& object, const char* key, bool needed, const Read& read) {
    const Json* list = find_member(object, key);
    if (list != nullptr && list->is_object() && list->empty()) return;  // as Lua writes {}
    if (list == nullptr || !list->is_array()) {
      if (needed || list != nullptr) wrong(key, "missing or no list");
      return;
    }
    const std::string outside = where_;
    for (size_t i = 0; i < list->size(); ++i) {
      where_ = fmt::format("entry {} of {}", i + 1, key);
      read((*list)[i]);
    }
    where_ = outside;
  }

  std::string where_, problems_;
};

}  // namespace

Profile profile_from_json(const Json& json, std::string_view what) {
  const Json* format = find_member(json, "profile");
  if (format == nullptr || *format != kFormat)
    fail_usage("{} is not a profile of format {}; measure again with `hetrun profile`", what, kFormat);
  ProfileReader reader;
  Profile profile = reader.read(json);
  if (!reader.problems().empty()) fail_usage("{} is not a valid profile:{}", what, reader.problems());
  return profile;
}

namespace {
void require_none(const std::vector<std::string>& problems, const std::string& path) {
  if (!problems.empty()) fail_usage("{} cannot be used:\n  {}", path, fmt::join(problems, "\n  "));
}
}  // namespace

Profile read_profile(const Path& path) {
  Profile profile = profile_from_json(read_json(path), path.text);
  require_none(validate(profile), path.text);
  return profile;
}

Profile read_profile(const Path& path, const Model& model) {
  Profile profile = profile_from_json(read_json(path), path.text);
  require_none(validate(profile, model), path.text);
  return profile;
}

}  // namespace het::planner
