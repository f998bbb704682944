#include "planner/profile.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/units.h"

namespace het::planner {
namespace {

constexpr int kFormat = 1;

double at(double x, double x0, double y0, double x1, double y1) {
  return std::max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), 0.0);
}

LayerSeconds between(const ProfilePoint& a, const ProfilePoint& b, int microbatch) {
  const auto line = [&](double ya, double yb) { return at(microbatch, a.microbatch, ya, b.microbatch, yb); };
  return {line(a.forward, b.forward), line(a.input, b.input), line(a.weight, b.weight),
          std::min(a.update, b.update), Source::interpolated};
}

LayerSeconds scaled(const ProfilePoint& p, double factor) {
  return {p.forward * factor, p.input * factor, p.weight * factor, p.update, Source::interpolated};
}

// The measured points of one kind, type and degree, by micro-batch; false when there is none.
bool from_points(std::vector<const ProfilePoint*>& points, int microbatch, LayerSeconds& out) {
  if (points.empty()) return false;
  std::sort(points.begin(), points.end(),
            [](const ProfilePoint* a, const ProfilePoint* b) { return a->microbatch < b->microbatch; });
  const auto next = std::find_if(points.begin(), points.end(),
                                 [&](const ProfilePoint* p) { return p->microbatch >= microbatch; });
  if (next != points.end() && (*next)->microbatch == microbatch) {
    out = {(*next)->forward, (*next)->input, (*next)->weight, (*next)->update, Source::measured};
  } else if (points.size() == 1) {
    out = scaled(*points[0], static_cast<double>(microbatch) / points[0]->microbatch);
  } else if (next == points.begin()) {
    // A smaller micro-batch is never faster than in proportion, never slower than the smallest measured.
    out = between(*points[0], *points[1], microbatch);
    const double share = static_cast<double>(microbatch) / points[0]->microbatch;
    const auto clamp = [&](double value, double most) { return std::clamp(value, most * share, most); };
    out.forward = clamp(out.forward, points[0]->forward);
    out.input = clamp(out.input, points[0]->input);
    out.weight = clamp(out.weight, points[0]->weight);
  } else if (next == points.end()) {
    out = between(*points[points.size() - 2], *points.back(), microbatch);
    out.forward = std::max(out.forward, points.back()->forward);
    out.input = std::max(out.input, points.back()->input);
    out.weight = std::max(out.weight, points.back()->weight);
  } else {
    out = between(**std::prev(next), **next, microbatch);
  }
  return true;
}

}  // namespace

std::string_view name_of(Source source) {
  switch (source) {
    case Source::measured: return "measured";
    case Source::interpolated: return "interpolated";
    case Source::estimated: return "estimated";
  }
  return "unknown";
}

double all_reduce_seconds(const Link& link, int members, double bytes) {
  if (members < 2) return 0;
  const double n = members;
  const double ring = 2 * (n - 1) * link.latency_seconds + 2 * (n - 1) / n * bytes / link.bytes_per_second;
  const double tree = 2 * std::ceil(std::log2(n)) * link.latency_seconds + 2 * bytes / link.bytes_per_second;
  return std::min(ring, tree);
}

LayerSeconds roofline(const Cluster& cluster, int node, const Model& model, const LayerKind& kind, int tensor,
                      int microbatch) {
  const DeviceType& type = type_of(cluster, node);
  double peak = type.flops(model.precision);
  if (peak <= 0) peak = type.f32_flops;  // unsupported precisions run in f32
  const double rate = peak * type.efficiency, samples = static_cast<double>(microbatch) / tensor;
  const double weights = kind.parameters * model.weight_bytes / tensor;
  const auto pass = [&](double flops, double bytes) {
    return std::max(flops * samples / rate, (bytes * samples + weights) / type.memory_bytes_per_second) +
           kLaunchSeconds;
  };
  const double reduce = kind.tensor_reductions * all_reduce_seconds(inside_link(cluster, node), tensor,
                                                                    kind.boundary_bytes * microbatch);
  LayerSeconds seconds;
  seconds.forward = pass(kind.forward_flops, kind.forward_bytes) + reduce;
  seconds.input = pass(kind.input_flops, kind.forward_bytes) + reduce;
  seconds.weight = pass(kind.weight_flops, kind.forward_bytes);
  // Weights, gradients and state are read once; weights and state written once.
  const double update_bytes = 2 * model.optimizer_bytes + model.gradient_bytes + model.weight_bytes;
  seconds.update = kind.parameters / tensor * update_bytes / type.memory_bytes_per_second;
  seconds.source = Source::estimated;
  return seconds;
}

LayerSeconds layer_seconds(const Profile& profile, const Cluster& cluster, int node, const Model& model,
                           const LayerKind& kind, int tensor, int microbatch) {
  const LayerSeconds estimate = roofline(cluster, node, model, kind, tensor, microbatch);
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
  LayerSeconds seconds;
  if (!from_points(points, microbatch, seconds)) return estimate;
  if (nearest != tensor) {
    const LayerSeconds there = roofline(cluster, node, model, kind, nearest, microbatch);
    seconds.forward *= estimate.forward / there.forward;
    seconds.input *= estimate.input / there.input;
    seconds.weight *= estimate.weight / there.weight;
    if (seconds.update >= 0) seconds.update *= static_cast<double>(nearest) / tensor;
    seconds.source = Source::interpolated;
  }
  if (seconds.update < 0) seconds.update = estimate.update;
  return seconds;
}

std::vector<std::string> validate(const Profile& profile, const Model& model) {
  std::vector<std::string> problems;
  if (profile.model != model.name)
    problems.push_back(
        fmt::format("the profile was measured for model \"{}\", this one is \"{}\"; measure again",
                    profile.model, model.name));
  std::vector<std::string> kinds;
  for (const LayerKind& kind : model.kinds) kinds.push_back(kind.name);
  for (size_t i = 0; i < profile.points.size(); ++i) {
    const ProfilePoint& point = profile.points[i];
    const std::string where = fmt::format("profile point {} ({} on {})", i + 1, point.kind, point.type);
    if (std::find(kinds.begin(), kinds.end(), point.kind) == kinds.end())
      problems.push_back(
          fmt::format("{}: the model has no such layer kind; it has {}", where, fmt::join(kinds, ", ")));
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

Json to_json(const Profile& profile) {
  Json::Array points;
  for (const ProfilePoint& point : profile.points) {
    Json::Object entry = {{"kind", point.kind},       {"type", point.type},
                          {"tensor", point.tensor},   {"microbatch", point.microbatch},
                          {"forward", point.forward}, {"input", point.input},
                          {"weight", point.weight}};
    if (point.update >= 0) entry.emplace_back("update", point.update);
    points.emplace_back(std::move(entry));
  }
  return Json::Object{{"profile", kFormat}, {"model", profile.model}, {"points", std::move(points)}};
}

Profile profile_from_json(const Json& json, std::string_view what) {
  std::string problems;
  const auto text = [&](const Json& object, const char* key) -> std::string {
    const Json* value = object.find(key);
    if (value != nullptr && value->string() != nullptr) return *value->string();
    problems += fmt::format("\n  \"{}\" is missing or no text", key);
    return {};
  };
  const auto number = [&](const Json& object, const char* key, bool needed) {
    const Json* value = object.find(key);
    if (value != nullptr && value->integer() != nullptr) return static_cast<double>(*value->integer());
    if (value != nullptr && std::holds_alternative<double>(value->value))
      return std::get<double>(value->value);
    if (needed || value != nullptr) problems += fmt::format("\n  \"{}\" is missing or no number", key);
    return -1.0;
  };
  const Json* version = json.find("profile");
  if (version == nullptr || version->integer() == nullptr || *version->integer() != kFormat)
    fail_usage("{} is not a profile of version {}; measure again with `hetrun profile`", what, kFormat);
  Profile profile;
  profile.model = text(json, "model");
  const Json* points = json.find("points");
  if (points == nullptr || points->array() == nullptr)
    fail_usage("{}: \"points\" is missing or no list", what);
  for (const Json& entry : *points->array()) {
    ProfilePoint point;
    point.kind = text(entry, "kind");
    point.type = text(entry, "type");
    point.tensor = static_cast<int>(number(entry, "tensor", true));
    point.microbatch = static_cast<int>(number(entry, "microbatch", true));
    point.forward = number(entry, "forward", true);
    point.input = number(entry, "input", true);
    point.weight = number(entry, "weight", true);
    point.update = number(entry, "update", false);
    profile.points.push_back(std::move(point));
  }
  if (!problems.empty()) fail_usage("{} is not a valid profile:{}", what, problems);
  return profile;
}

}  // namespace het::planner
