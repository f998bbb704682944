#include "planner/simulate/sharing.h"

#include <algorithm>
#include <limits>

#include "core/base/error.h"

namespace het::planner {

// Whether it comes next in all its streams.
bool Sharing::is_next(const SharedFlow& flow, size_t index) const {
  return std::all_of(flow.streams, flow.streams + flow.count, [&](int stream) {
    const auto s = static_cast<size_t>(stream);
    return heads_[s] < queues_[s].size() && queues_[s][heads_[s]] == index;
  });
}

void Sharing::find_resources(const std::vector<SharedFlow>& flows, const std::vector<double>& capacity) {
  constexpr double kSame = 1 - 1e-9;
  capacity_ = capacity;
  resources_.clear();
  resources_of_.clear();
  std::map<std::pair<int, double>, int> links;
  for (const SharedFlow& flow : flows) {
    const auto [entry, fresh] = resources_.try_emplace({flow.interfaces, flow.link});
    resources_of_.push_back(&entry->second);
    if (!fresh) continue;
    for (const int interface : *flow.interfaces) {
      entry->second.push_back(interface);
      if (flow.link > capacity[static_cast<size_t>(interface)] * kSame) continue;
      const auto [link, is_new] =
          links.try_emplace({interface, flow.link}, static_cast<int>(capacity_.size()));
      if (is_new) capacity_.push_back(flow.link);
      entry->second.push_back(link->second);
    }
  }
  room_.resize(capacity_.size());
  users_.assign(capacity_.size(), 0);
  used_.clear();
}

// Progressive filling: the flow, or the interface with the least room for each of its flows, that bounds
// their rates first sets these, and so on.
void Sharing::find_paces(const std::vector<SharedFlow>& flows) {
  for (const int resource : used_) users_[static_cast<size_t>(resource)] = 0;
  used_.clear();
  size_t open = 0;
  for (Active& each : active_) {
    each.is_open = each.fixed <= 0 && !flows[each.flow].interfaces->empty();
    each.pace = each.is_open ? 0 : 1;
    if (!each.is_open) continue;
    ++open;
    for (const int resource : *resources_of_[each.flow]) {
      const auto i = static_cast<size_t>(resource);
      if (users_[i]++ > 0) continue;
      room_[i] = capacity_[i];
      used_.push_back(resource);
    }
  }
  while (open > 0) {
    double least = std::numeric_limits<double>::infinity();
    for (const int resource : used_) {
      const auto i = static_cast<size_t>(resource);
      if (users_[i] > 0) least = std::min(least, room_[i] / users_[i]);
    }
    double slowest = std::numeric_limits<double>::infinity();
    for (const Active& each : active_)
      if (each.is_open) slowest = std::min(slowest, flows[each.flow].rate);
    const double level = std::min(least, slowest);
    // Those that reach their own rate; else all on the tightest.
    constexpr double kSame = 1 + 1e-12;
    tight_.clear();
    for (const int resource : used_) {
      const auto i = static_cast<size_t>(resource);
      if (users_[i] > 0 && room_[i] / users_[i] <= level * kSame) tight_.push_back(resource);
    }
    for (Active& each : active_) {
      if (!each.is_open) continue;
      const SharedFlow& flow = flows[each.flow];
      const std::vector<int>& own = *resources_of_[each.flow];
      const bool is_bound =
          flow.rate <= level * kSame || std::any_of(own.begin(), own.end(), [&](int resource) {
            return std::find(tight_.begin(), tight_.end(), resource) != tight_.end();
          });
      if (!is_bound) continue;
      each.is_open = false;
      each.pace = std::min(1.0, level / flow.rate);
      --open;
      for (const int resource : own) {
        room_[static_cast<size_t>(resource)] = std::max(0.0, room_[static_cast<size_t>(resource)] - level);
        --users_[static_cast<size_t>(resource)];
      }
    }
  }
}

void Sharing::run(std::vector<SharedFlow>& flows, size_t streams, const std::vector<double>& capacity) {
  find_resources(flows, capacity);
  queues_.resize(std::max(queues_.size(), streams));
  for (size_t s = 0; s < streams; ++s) queues_[s].clear();
  heads_.assign(streams, 0);
  waiting_.clear();
  active_.clear();
  ended_.clear();
  for (size_t f = 0; f < flows.size(); ++f)
    for (size_t i = 0; i < flows[f].count; ++i)
      queues_[static_cast<size_t>(flows[f].streams[i])].push_back(f);
  for (size_t f = 0; f < flows.size(); ++f)
    if (is_next(flows[f], f)) waiting_.push_back(f);
  double now = 0;
  while (ended_.size() < flows.size()) {
    double next = std::numeric_limits<double>::infinity();  // that one starts
    std::erase_if(waiting_, [&](size_t f) {
      if (flows[f].earliest > now) {
        next = std::min(next, flows[f].earliest);
        return false;
      }
      flows[f].start = now;
      active_.push_back({f, flows[f].fixed, flows[f].wire, 0, false});
      return true;
    });
    find_paces(flows);
    for (const Active& each : active_) {
      const double left = each.fixed > 0 ? each.fixed : each.wire / each.pace;
      next = std::min(next, now + left);
    }
    HET_REQUIRE(next < std::numeric_limits<double>::infinity(), ended_.size(), flows.size());
    const double passed = next - now;
    now = next;
    for (size_t a = 0; a < active_.size();) {
      Active& each = active_[a];
      // What is left of rounding is nothing.
      const auto less = [&](double left, double by) { return left - by <= 1e-12 * now ? 0 : left - by; };
      if (each.fixed > 0)
        each.fixed = less(each.fixed, passed);
      else
        each.wire = less(each.wire, passed * each.pace);
      if (each.fixed > 0 || each.wire > 0) {
        ++a;
        continue;
      }
      const size_t f = each.flow;
      flows[f].end = now;
      ended_.push_back(f);
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(a));
      for (size_t i = 0; i < flows[f].count; ++i) ++heads_[static_cast<size_t>(flows[f].streams[i])];
      for (size_t i = 0; i < flows[f].count; ++i) {
        const auto s = static_cast<size_t>(flows[f].streams[i]);
        if (heads_[s] == queues_[s].size()) continue;
        const size_t head = queues_[s][heads_[s]];
        if (is_next(flows[head], head) && std::find(waiting_.begin(), waiting_.end(), head) == waiting_.end())
          waiting_.push_back(head);
      }
    }
  }
}

}  // namespace het::planner
