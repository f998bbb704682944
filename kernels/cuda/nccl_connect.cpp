// How the GPUs of a group are connected: ids of NCCL's communicators go over the host's group, and all of
// them begin at once.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/nccl_group.h"

namespace het::HET_CUDA {

using std::chrono::microseconds;

namespace {

constexpr int kChannelCtas = 8;  // of a channel: all channels together leave room for the kernels

// The rank that makes the id of a lane's communicator.
int maker_of(const OperationChannel& channel) { return channel.is_message() ? channel.from : 0; }

}  // namespace

// What a rank says of a lane that it is about to connect.
struct NcclGroup::Entry {
  OperationChannel channel;
  int32_t rank = 0;
  int32_t exchanges = 0, has_id = 0, is_new = 1;
  nccl::UniqueId id{};
};

// What every rank says, by rank.
std::vector<NcclGroup::Entry> NcclGroup::exchange(const std::vector<Entry>& own) {
  static_assert(std::is_trivially_copyable_v<Entry>);
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Entry));
  std::vector<Entry> all;
  for (const std::string& text : all_gather_text(*host_, bytes, "the GPUs to connect")) {
    HET_REQUIRE(text.size() % sizeof(Entry) == 0, text.size());
    for (size_t at = 0; at < text.size(); at += sizeof(Entry))
      std::memcpy(&all.emplace_back(), text.data() + at, sizeof(Entry));
  }
  return all;
}

// The id of each lane's communicator, made by rank 0 of the group or by the sender. All ranks find out alike
// when one lacks its part.
std::vector<NcclGroup::Entry> NcclGroup::agree(const std::vector<NcclLane*>& fresh) {
  const nccl::Functions& nccl = context_->nccl;
  std::vector<Entry> own;
  for (const NcclLane* lane : fresh) {
    Entry& entry = own.emplace_back();
    entry.channel = lane->channel;
    entry.rank = rank();
    entry.exchanges = lane->exchanges ? 1 : 0;
    entry.is_new = lane->comm == nullptr ? 1 : 0;
    if (rank() == maker_of(lane->channel) && entry.is_new != 0)
      entry.has_id = nccl.GetUniqueId(&entry.id) == nccl::success ? 1 : 0;
  }
  const std::vector<Entry> all = exchange(own);
  std::vector<Entry> ids;
  std::string problem;
  for (const Entry& entry : all) {
    const OperationChannel& channel = entry.channel;
    const int maker = maker_of(channel);
    const auto others =
        std::count_if(all.begin(), all.end(), [&](const Entry& other) { return other.channel == channel; });
    if (others != (channel.is_message() ? 2 : size())) {
      problem = channel.is_message()
                    ? fmt::format("of the message from {} to {} with tag {}, only {} has its end",
                                  peer_name(channel.from), peer_name(channel.to), channel.tag,
                                  peer_name(entry.rank))
                    : fmt::format("not every rank of group '{}' has collectives to connect for", name());
    } else if (entry.rank == maker && entry.is_new != 0 && entry.has_id == 0) {
      problem =
          fmt::format("NCCL of {} could not begin: it finds no network, perhaps; NCCL_DEBUG=INFO says more",
                      peer_name(maker));
    }
    if (entry.rank == maker) ids.push_back(entry);
  }
  if (!problem.empty()) {
    context_->fail(problem);
    const Lock lock(context_->mutex);
    throw_cause();
  }
  return ids;
}

// True while the lane's communicator is at work beside us. Throws when it has failed.
bool NcclGroup::in_progress(NcclLane& lane, nccl::Result result) {
  if (!context_->alive()) return true;
  const nccl::Functions& nccl = context_->nccl;
  if (result == nccl::in_progress && nccl.CommGetAsyncError(lane.comm, &result) != nccl::success)
    result = nccl::internal_error;
  if (result == nccl::success || result == nccl::in_progress) return result == nccl::in_progress;
  throw Error(ErrorKind::peer, fmt::format("NCCL says \"{}\" ({})", nccl.GetErrorString(result),
                                           lane.comm == nullptr ? "" : nccl.GetLastError(lane.comm)));
}

// NCCL names no rank: the host may, in a while. Of no effect when the failure is known already.
void NcclGroup::fail_named(const std::vector<int>& peers, const std::string& what, const Error& error) {
  const CommClock::time_point since = CommClock::now();
  std::string lost;
  while (error.kind() == ErrorKind::peer && lost.empty() && CommClock::now() - since < kName) {
    {
      const Lock lock(context_->mutex);
      if (!context_->alive()) break;
    }
    lost = lost_among(peers, detector_);
    if (lost.empty()) std::this_thread::sleep_for(kLook);
  }
  if (!lost.empty())
    context_->fail(lost);
  else
    context_->fail(what.empty() ? error.what() : fmt::format("{}: {}", what, error.what()));
}

void NcclGroup::begin(NcclLane& lane, const Entry& entry) {
  if (lane.comm != nullptr) return;
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "say which priorities it has");
  check(cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, highest), "make a stream");
  nccl::Config config;
  config.blocking = 0;
  if (lane.channel.is_message()) config.max_ctas = kChannelCtas;
  const int ranks = lane.channel.is_message() ? 2 : size();
  const int place = !lane.channel.is_message() ? rank() : (rank() == lane.channel.from ? 0 : 1);
  in_progress(lane, context_->nccl.CommInitRankConfig(&lane.comm, ranks, entry.id, place, &config));
}

// Pairs of ranks are connected with their first message: here, where no rank waits in another order.
void NcclGroup::warm(NcclLane& lane) {
  const nccl::Functions& nccl = context_->nccl;
  nccl::Result result = nccl::success;
  if (lane.channel.is_message()) {
    result = rank() == lane.channel.from ? nccl.Send(scratch_, 1, nccl::u8, 1, lane.comm, lane.stream)
                                         : nccl.Recv(scratch_, 1, nccl::u8, 0, lane.comm, lane.stream);
  } else {
    nccl.GroupStart();
    for (int peer = 0; peer < size(); ++peer) {
      nccl.Send(scratch_, 1, nccl::u8, peer, lane.comm, lane.stream);
      nccl.Recv(scratch_ + kScratchBytes / 2, 1, nccl::u8, peer, lane.comm, lane.stream);
    }
    result = nccl.GroupEnd();
  }
  in_progress(lane, result);
}

// Until `ready` of every lane, asked with the lock held.
template <typename Ready>
void NcclGroup::await_peers(const std::vector<NcclLane*>& lanes, const Ready& ready) {
  const Timeouts& timeouts = detector_.timeouts();
  const std::string what = fmt::format("the connection of the GPUs of group '{}'", name());
  const CommClock::time_point since = CommClock::now();
  CommClock::time_point lost_since{};
  bool warned = false;
  Lock lock(context_->mutex);
  for (;;) {
    context_->await_failure(lock);
    if (!context_->alive()) throw_cause();
    std::vector<int> missing;
    bool whole = false;  // the group's own lane is not ready
    for (NcclLane* lane : lanes) {
      if (ready(*lane)) continue;
      whole |= !lane->channel.is_message();
      for (const int peer : peers_of(*lane))
        if (std::find(missing.begin(), missing.end(), peer) == missing.end()) missing.push_back(peer);
    }
    if (missing.empty() && !whole) return;
    lock.unlock();
    const std::string lost = lost_among(missing, detector_);
    const CommClock::time_point now = CommClock::now();
    if (!lost.empty() && lost_since == CommClock::time_point{}) lost_since = now;
    const Due due = due_after(now - since, warned, timeouts);
    if (!lost.empty() && now - lost_since >= kGrace) {
      context_->fail(lost);
    } else if (due != Due::nothing) {
      const std::string text =
          waiting_sentence(detector_, what, since, due == Due::failure, missing, kSequences - 1);
      if (due == Due::failure)
        context_->fail(text);
      else if (timeouts.warn)
        timeouts.warn(text);
      warned = true;
    }
    std::this_thread::sleep_for(microseconds(200));
    lock.lock();
  }
}

void NcclGroup::connect() {
  std::vector<NcclLane*> fresh;
  {
    Lock lock(context_->mutex);
    context_->await_failure(lock);
    if (!context_->alive()) throw_cause();
    for (NcclLane& lane : lanes_)
      if (!lane.connected) fresh.push_back(&lane);
  }
  const std::vector<Entry> ids = agree(fresh);
  if (fresh.empty()) return;
  if (scratch_ == nullptr)
    check(cudaMalloc(reinterpret_cast<void**>(&scratch_), kScratchBytes), "allocate memory");
  try {
    {
      const Lock lock(context_->mutex);
      for (NcclLane* lane : fresh) {
        if (!context_->alive()) break;
        const auto entry = std::find_if(ids.begin(), ids.end(),
                                        [&](const Entry& id) { return id.channel == lane->channel; });
        HET_REQUIRE(entry != ids.end(), lane->channel.from, lane->channel.to);
        begin(*lane, *entry);
      }
    }
    const auto is_idle = [&](NcclLane& lane) { return !in_progress(lane, nccl::in_progress); };
    await_peers(fresh, is_idle);
    {
      const Lock lock(context_->mutex);
      for (NcclLane* lane : fresh)
        if (context_->alive() && (lane->channel.is_message() || lane->exchanges)) warm(*lane);
    }
    await_peers(fresh, is_idle);
    await_peers(fresh,
                [](const NcclLane& lane) { return cudaStreamQuery(lane.stream) != cudaErrorNotReady; });
  } catch (const Error& error) {
    fail_named(all_peers(), fmt::format("the GPUs of group '{}' could not be connected", name()), error);
    const Lock lock(context_->mutex);
    throw_cause();
  }
  const Lock lock(context_->mutex);
  for (NcclLane* lane : fresh) lane->connected = true;
}

}  // namespace het::HET_CUDA
