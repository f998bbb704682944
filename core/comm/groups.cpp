#include "core/comm/groups.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace het {
namespace {

// What each member says of its device. Texts end with a zero.
struct PeerInfo {
  char library[32] = {};
  char device[64] = {};
  char problem[416] = {};
  int64_t has_own_memory = 0;
};

template <size_t n>
void write(char (&to)[n], const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), n - 1));
}

std::vector<PeerInfo> all_gather_peers(Communicator& group, const PeerInfo& own) {
  CollectiveRequest request;
  request.kind = CollectiveKind::all_gather;
  request.dtype = DType::u8;
  request.counts.assign(static_cast<size_t>(group.size()), sizeof(PeerInfo));
  request.label = "how devices can be reached";
  std::vector<PeerInfo> peers(static_cast<size_t>(group.size()));
  run_once(group, request, &own, peers.data());
  return peers;
}

// Why these devices do not reach each other directly; empty: they do.
std::string obstacle(const std::vector<PeerInfo>& peers, const std::vector<int>& ranks) {
  for (size_t i = 0; i < peers.size(); ++i) {
    const PeerInfo& peer = peers[i];
    if (peer.has_own_memory == 0) return fmt::format("rank {} computes in the memory of its host", ranks[i]);
    if (peer.library[0] == 0)
      return fmt::format("rank {}: {}", ranks[i],
                         peer.problem[0] == 0 ? "its device has no way to others" : peer.problem);
    if (std::strcmp(peer.library, peers[0].library) != 0)
      return fmt::format("rank {} has {}, rank {} has {}", ranks[0], peers[0].library, ranks[i],
                         peer.library);
    for (size_t other = 0; other < i; ++other)
      if (std::strcmp(peer.device, peers[other].device) == 0)
        return fmt::format("ranks {} and {} share one device", ranks[other], ranks[i]);
  }
  return {};
}

}  // namespace

int Groups::rank() const {
  if (members_.empty()) return fabric_->rank();
  const auto found = std::find(members_.begin(), members_.end(), fabric_->rank());
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

Communicator& Groups::group(const std::vector<int>& ranks, int lane) {
  std::shared_ptr<Communicator>& made = made_[{ranks, lane}];
  if (made == nullptr) {
    std::vector<int> in_fabric = ranks;
    if (!members_.empty())
      for (int& rank : in_fabric) rank = members_.at(static_cast<size_t>(rank));
    std::string name = fmt::format("{}ranks {}", name_, fmt::join(in_fabric, ","));
    if (lane > 0) name += fmt::format(" lane {}", lane);
    made = fabric_->group(name, in_fabric, pacer_);
  }
  return *made;
}

Communicator* Groups::direct(const std::vector<int>& ranks, const std::shared_ptr<Device>& device) {
  if (const auto found = direct_.find({ranks, device.get()}); found != direct_.end())
    return found->second.communicator.get();
  Communicator& host = group(ranks);
  const DeviceTransport way = device->device_transport();
  PeerInfo own;
  write(own.library, way.library);
  write(own.device, way.device);
  write(own.problem, way.problem);
  own.has_own_memory = device->has_own_memory() ? 1 : 0;
  const std::vector<PeerInfo> peers = all_gather_peers(host, own);
  const std::string problem = obstacle(peers, ranks);
  Direct& direct = direct_[{ranks, device.get()}];
  direct.device = device;
  if (problem.empty()) direct.communicator = device->connect(made_[{ranks, 0}]);
  if (std::any_of(peers.begin(), peers.end(), [](const PeerInfo& peer) { return peer.has_own_memory != 0; }))
    ways_.push_back(problem.empty()
                        ? fmt::format("{}: from device to device by {}", host.name(), way.library)
                        : fmt::format("{}: through the memory of hosts ({})", host.name(), problem));
  return direct.communicator.get();
}

}  // namespace het
