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

// Progressive filling: the interface with the least room for each of its flows sets their pace, and so on.
void Sharing::find_paces(const std::vector<SharedFlow>& flows) {
  for (const int interface : used_) users_[static_cast<size_t>(interface)] = 0;
  used_.clear();
  size_t open = 0;
  for (Active& each : active_) {
    const auto& interfaces = *flows[each.flow].interfaces;
    each.pace = each.fixed > 0 || interfaces.empty() ? 1 : 0;
    if (each.pace > 0) continue;
    ++open;
    for (const int interface : interfaces) {
      const auto i = static_cast<size_t>(interface);
      if (users_[i]++ > 0) continue;
      room_[i] = 1;
      used_.push_back(interface);
    }
  }
  while (open > 0) {
    double least = std::numeric_limits<double>::infinity();
    size_t tightest = 0;
    for (const int interface : used_) {
      const auto i = static_cast<size_t>(interface);
      if (users_[i] == 0 || room_[i] / users_[i] >= least) continue;
      least = room_[i] / users_[i];
      tightest = i;
    }
    for (Active& each : active_) {
      const auto& interfaces = *flows[each.flow].interfaces;
      if (each.pace > 0 ||
          std::find(interfaces.begin(), interfaces.end(), static_cast<int>(tightest)) == interfaces.end())
        continue;
      each.pace = least;
      --open;
      for (const int interface : interfaces) {
        room_[static_cast<size_t>(interface)] -= least;
        --users_[static_cast<size_t>(interface)];
      }
    }
  }
}

void Sharing::run(std::vector<SharedFlow>& flows, size_t streams, size_t interfaces) {
  queues_.resize(std::max(queues_.size(), streams));
  for (size_t s = 0; s < streams; ++s) queues_[s].clear();
  heads_.assign(streams, 0);
  room_.resize(std::max(room_.size(), interfaces));
  users_.resize(room_.size(), 0);
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
      active_.push_back({f, flows[f].fixed, flows[f].wire, 0});
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
