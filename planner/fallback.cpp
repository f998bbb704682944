#include "planner/fallback.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/units.h"
#include "core/plan/device_name.h"

namespace het::planner {

std::vector<Loss> likely_losses(const Cluster& cluster, const Plan& plan) {
  std::vector<Loss> hosts, devices;  // in the order of the plan
  size_t machines = 0;
  for (const Machine& node : cluster.nodes) machines += node.hosts.size();
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const std::string& device : stage.devices) {
        const std::string host(host_of(device));
        const auto of = std::find_if(cluster.nodes.begin(), cluster.nodes.end(), [&](const Machine& node) {
          return std::find(node.hosts.begin(), node.hosts.end(), host) != node.hosts.end();
        });
        if (of == cluster.nodes.end()) continue;
        const auto known =
            std::find_if(hosts.begin(), hosts.end(), [&](const Loss& loss) { return loss.name == host; });
        Loss& loss =
            known != hosts.end() ? *known : hosts.emplace_back(Loss{host, of->preemptions_per_hour, {}});
        if (std::find(loss.devices.begin(), loss.devices.end(), device) != loss.devices.end()) continue;
        loss.devices.push_back(device);
        if (of->devices > 1) devices.push_back({device, 0, {device}});
      }
  std::stable_sort(hosts.begin(), hosts.end(), [](const Loss& a, const Loss& b) {
    return a.preemptions_per_hour > b.preemptions_per_hour;
  });
  if (machines == 1) std::erase_if(hosts, [](const Loss& loss) { return loss.preemptions_per_hour == 0; });
  hosts.insert(hosts.end(), devices.begin(), devices.end());
  return hosts;
}

std::vector<Fallback> plan_fallbacks(const Request& request, const Plan& plan, std::string_view policy,
                                     int count) {
  std::vector<Fallback> fallbacks;
  for (Loss& loss : likely_losses(request.cluster, plan)) {
    if (static_cast<int>(fallbacks.size()) >= count) break;
    Fallback& fallback = fallbacks.emplace_back();
    fallback.request = request;
    fallback.request.cluster = without(request.cluster, loss.name);
    fallback.request.old = plan;
    fallback.loss = std::move(loss);
    if (fallback.request.cluster.nodes.empty()) {
      fallback.planned.problems = {"no device is left"};
      continue;
    }
    // Degrees of the request may need more devices in a host than are left in any.
    int most = 0;
    for (const Machine& node : fallback.request.cluster.nodes) most = std::max(most, node.devices);
    std::erase_if(fallback.request.tensors, [&](int k) { return k > most; });
    fallback.planned = plan_with(fallback.request, policy);
  }
  return fallbacks;
}

std::string to_text(const std::vector<Fallback>& fallbacks) {
  std::string text;
  for (const Fallback& fallback : fallbacks) {
    const double rate = fallback.loss.preemptions_per_hour;
    text += fmt::format("without {}{}: ", fallback.loss.name,
                        rate > 0 ? fmt::format(" ({:g} preemptions an hour)", rate) : "");
    if (!fallback.planned.feasible) {
      text += fmt::format("no plan: {}\n", fmt::join(fallback.planned.problems, "; "));
      continue;
    }
    const Move& move = fallback.planned.moved->move;
    text += fmt::format("step {}", show_seconds(fallback.planned.best.simulation.seconds));
    const double between = move.bytes - move.unavailable_bytes;  // devices
    if (between > 0 || move.unavailable_bytes == 0)
      text += fmt::format(", {} to move in {}", show_bytes(between), show_seconds(move.seconds));
    if (move.unavailable_bytes > 0)
      text += fmt::format(", {} to read from a snapshot", show_bytes(move.unavailable_bytes));
    text += '\n';
  }
  return text;
}

}  // namespace het::planner
