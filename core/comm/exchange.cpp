#include "core/comm/exchange.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/comm/reduce.h"
#include "core/comm/steps.h"

namespace het {

ChannelState::ChannelState(Channel& channel, int size, std::function<void()> interrupted,
                           std::atomic<int64_t>& bytes_sent)
    : channel_(channel), interrupted_(std::move(interrupted)), bytes_sent_(bytes_sent), pairs_(size) {}

void ChannelState::begin_operation() {
  for (Lane& lane : pairs_) lane.operation_mark = lane.receive_done;
}

void ChannelState::send(int peer, const std::byte* from, int64_t bytes) {
  channel_.send(peer, from, bytes);
  ++pairs_[peer].send_posted;
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
}

void ChannelState::receive(int peer, std::byte* to, int64_t bytes) {
  channel_.receive(peer, to, bytes);
  ++pairs_[peer].receive_posted;
}

void ChannelState::await(int64_t& done, int64_t mark, bool (Channel::*oldest)(int), int peer) {
  while (done < mark) {
    if ((channel_.*oldest)(peer))
      ++done;
    else
      interrupted_();
  }
}

void ChannelState::await_received(int peer, int64_t mark) {
  await(pairs_[peer].receive_done, mark, &Channel::received, peer);
}

void ChannelState::await_sent(int peer, int64_t mark) {
  await(pairs_[peer].send_done, mark, &Channel::sent, peer);
}

void ChannelState::await_all() {
  const int size = static_cast<int>(pairs_.size());
  for (int peer = 0; peer < size; ++peer) await_received(peer, pairs_[peer].receive_posted);
  for (int peer = 0; peer < size; ++peer) await_sent(peer, pairs_[peer].send_posted);
}

std::vector<int> ChannelState::unfinished() {
  std::vector<int> peers;
  for (size_t peer = 0; peer < pairs_.size(); ++peer) {
    Lane& lane = pairs_[peer];
    const int p = static_cast<int>(peer);
    while (lane.receive_done < lane.receive_posted && channel_.received(p)) ++lane.receive_done;
    while (lane.send_done < lane.send_posted && channel_.sent(p)) ++lane.send_done;
    if (lane.receive_done < lane.receive_posted || lane.send_done < lane.send_posted) peers.push_back(p);
  }
  return peers;
}

namespace {

// Reductions travel in segments, so that summing one overlaps the transfer of the next. Two are on their way.
constexpr int64_t kSegmentBytes = 512 * 1024;
constexpr int64_t kLeastSegmentBytes = 32 * 1024;
constexpr int64_t kScratchBytes = 8 * 1024 * 1024;
constexpr int kInFlight = 2;

int64_t segment_elements(DType dtype, int size) {
  const int64_t bytes =
      std::clamp(kScratchBytes / (kInFlight * std::max(size - 1, 1)), kLeastSegmentBytes, kSegmentBytes);
  return bytes / bytes_of(dtype);
}

// Segment k of a block; perhaps empty.
Block segment_of(Block block, int64_t k, int64_t segment) {
  return {block.begin + k * segment, std::clamp<int64_t>(block.count - k * segment, 0, segment)};
}

// What all the functions below share: who we are, and how elements lie in memory.
struct Call {
  const CollectiveRequest& request;
  int rank, size;
  ChannelState& channel;
  const std::byte* in;
  std::byte* out;
  Scratch& scratch;
  int64_t width = std::max<int64_t>(bytes_of(request.dtype), 1);

  Block block(int of) const { return block_of(request, of, size); }
  void send(int peer, const std::byte* from, int64_t elements) const {
    if (elements > 0) channel.send(peer, from, elements * width);
  }
  void receive(int peer, std::byte* to, int64_t elements) const {
    if (elements > 0) channel.receive(peer, to, elements * width);
  }
  void copy(std::byte* to, const std::byte* from, int64_t elements) const {
    if (elements > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(elements * width));
  }
  // The others, starting after this rank, so that not all talk to the same one at once.
  template <typename Body>
  void each_peer(const Body& body) const {
    for (int step = 1; step < size; ++step) body((rank + step) % size);
  }
};

void reduce_small(const Call& c) {
  const int64_t count = c.request.counts[0];
  std::vector<const std::byte*>& inputs = c.scratch.inputs;
  c.each_peer([&](int peer) {
    std::byte* to = c.scratch.blocks.get() + peer * count * c.width;
    inputs[peer] = to;
    c.receive(peer, to, count);
    c.send(peer, c.in, count);
  });
  inputs[c.rank] = c.in;
  c.channel.await_all();  // the input has left before out, which may be in, is written
  reduce_blocks(c.request.dtype, c.request.reduction, c.out, inputs.data(), c.size, count);
}

// Reduce-scatter, and all-reduce when `share`: each reduced segment then goes to everybody at once.
void reduce_in_segments(const Call& c, bool share) {
  const int64_t segment = segment_elements(c.request.dtype, c.size);
  int64_t longest = 0;
  for (int r = 0; r < c.size; ++r) longest = std::max(longest, c.block(r).count);
  const int64_t rounds = (longest + segment - 1) / segment;
  const auto part = [&](int owner, int64_t k) { return segment_of(c.block(owner), k, segment); };
  const auto slot = [&](int64_t k, int peer) {
    return c.scratch.blocks.get() + ((k % kInFlight) * c.size + peer) * segment * c.width;
  };
  const auto post = [&](int64_t k) {
    c.each_peer([&](int peer) {
      const Block theirs = part(peer, k);
      c.receive(peer, slot(k, peer), part(c.rank, k).count);
      c.send(peer, c.in + theirs.begin * c.width, theirs.count);
    });
  };
  // marks[k % kInFlight][peer]: what must have come before segment k can be summed.
  std::vector<int64_t>& marks = c.scratch.marks;
  std::vector<const std::byte*>& inputs = c.scratch.inputs;
  const auto mark = [&](int64_t k) {
    for (int peer = 0; peer < c.size; ++peer)
      marks[(k % kInFlight) * c.size + peer] = c.channel.received(peer);
  };
  for (int64_t k = 0; k < std::min<int64_t>(rounds, kInFlight); ++k) {
    post(k);
    mark(k);
  }
  const int64_t out_begin = share ? 0 : c.block(c.rank).begin;  // where in the whole tensor `out` begins
  for (int64_t k = 0; k < rounds; ++k) {
    c.each_peer([&](int peer) { c.channel.await_received(peer, marks[(k % kInFlight) * c.size + peer]); });
    const Block own = part(c.rank, k);
    std::byte* const result = c.out + (own.begin - out_begin) * c.width;
    if (own.count > 0) {
      for (int peer = 0; peer < c.size; ++peer) inputs[peer] = slot(k, peer);
      inputs[c.rank] = c.in + own.begin * c.width;
      reduce_blocks(c.request.dtype, c.request.reduction, result, inputs.data(), c.size, own.count);
    }
    if (share)
      c.each_peer([&](int peer) {
        const Block theirs = part(peer, k);
        c.receive(peer, c.out + theirs.begin * c.width, theirs.count);
        c.send(peer, result, own.count);
      });
    if (k + kInFlight < rounds) {
      post(k + kInFlight);
      mark(k + kInFlight);
    }
  }
  c.channel.await_all();
}

void gather(const Call& c) {
  const Block own = c.block(c.rank);
  c.each_peer([&](int peer) {
    const Block theirs = c.block(peer);
    c.receive(peer, c.out + theirs.begin * c.width, theirs.count);
  });
  c.each_peer([&](int peer) { c.send(peer, c.in, own.count); });
  c.copy(c.out + own.begin * c.width, c.in, own.count);
  c.channel.await_all();
}

// The root hands each other rank a share, and those pass it on to each other: every link carries about the
// tensor once, where sending it whole would cost the root n - 1 times as much. In segments, so that the two
// steps overlap.
void broadcast(const Call& c) {
  const int64_t count = c.request.counts[0];
  const int root = c.request.peer, sharers = c.size - 1;
  const int64_t segment = std::max<int64_t>(kSegmentBytes / c.width, 1);
  const bool whole = in_one_step(c.request, c.size);
  const auto part = [&](int rank, int64_t k) { return segment_of(c.block(rank), k, segment); };
  if (c.rank == root) {
    c.copy(c.out, c.in, count);
    if (whole) c.each_peer([&](int peer) { c.send(peer, c.out, count); });
  } else if (whole) {
    c.receive(root, c.out, count);
  }
  const int64_t rounds = whole ? 0 : ((count + sharers - 1) / sharers + segment - 1) / segment;
  if (c.rank == root) {
    for (int64_t k = 0; k < rounds; ++k)
      c.each_peer([&](int peer) {
        const Block range = part(peer, k);
        c.send(peer, c.out + range.begin * c.width, range.count);
      });
  } else {
    const int64_t before = c.channel.received(root);
    for (int64_t k = 0; k < rounds; ++k)
      for (int from = 0; from < c.size; ++from) {
        if (from == root) continue;
        const Block range = part(from, k);
        c.receive(from == c.rank ? root : from, c.out + range.begin * c.width, range.count);
      }
    int64_t came = before;
    for (int64_t k = 0; k < rounds; ++k) {
      const Block range = part(c.rank, k);
      if (range.count == 0) break;
      c.channel.await_received(root, ++came);
      c.each_peer([&](int peer) {
        if (peer != root) c.send(peer, c.out + range.begin * c.width, range.count);
      });
    }
  }
  c.channel.await_all();
}

void all_to_all(const Call& c) {
  const std::vector<int64_t>& counts = c.request.counts;
  const std::byte* own_in = nullptr;
  std::byte* own_out = nullptr;
  std::byte* to = c.out;
  for (int from = 0; from < c.size; ++from) {
    const int64_t count = counts[from * c.size + c.rank];
    if (from == c.rank)
      own_out = to;
    else
      c.receive(from, to, count);
    to += count * c.width;
  }
  const std::byte* from = c.in;
  for (int peer = 0; peer < c.size; ++peer) {
    const int64_t count = counts[c.rank * c.size + peer];
    if (peer == c.rank)
      own_in = from;
    else
      c.send(peer, from, count);
    from += count * c.width;
  }
  c.copy(own_out, own_in, counts[c.rank * c.size + c.rank]);
  c.channel.await_all();
}

std::byte kNothing[1] = {};

}  // namespace

void meet(const CollectiveRequest& request, int rank, int size, ChannelState& channel) {
  const bool sends = request.kind != CollectiveKind::receive, receives = request.kind != CollectiveKind::send;
  const bool message = !sends || !receives;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank || (message && peer != request.peer)) continue;
    if (receives) channel.receive(peer, nullptr, 0);
    if (sends) channel.send(peer, kNothing, 0);
  }
  channel.await_all();
}

int64_t scratch_bytes_of(const CollectiveRequest& request, int rank, int size) {
  const int64_t width = bytes_of(request.dtype);
  if (size == 1) return 0;
  if (request.kind == CollectiveKind::all_reduce && in_one_step(request, size))
    return request.counts[0] * width * size;
  if (request.kind != CollectiveKind::all_reduce && request.kind != CollectiveKind::reduce_scatter) return 0;
  const int64_t segment = segment_elements(request.dtype, size);
  return block_of(request, rank, size).count == 0 ? 0 : kInFlight * size * segment * width;
}

Scratch make_scratch(int64_t bytes, int size) {
  return {std::unique_ptr<std::byte[]>(new std::byte[static_cast<size_t>(bytes)]), bytes,
          std::vector<const std::byte*>(size), std::vector<int64_t>(static_cast<size_t>(kInFlight) * size)};
}

int64_t post_message(const CollectiveRequest& request, ChannelState& channel, const std::byte* in,
                     std::byte* out) {
  const int64_t bytes = request.counts[0] * bytes_of(request.dtype);
  if (request.kind == CollectiveKind::send) {
    if (bytes > 0) channel.send(request.peer, in, bytes);
    return channel.sent(request.peer);
  }
  if (bytes > 0) channel.receive(request.peer, out, bytes);
  return channel.received(request.peer);
}

void run_collective(const CollectiveRequest& request, int rank, int size, ChannelState& channel,
                    const std::byte* in, std::byte* out, Scratch& scratch) {
  const Call call{request, rank, size, channel, in, out, scratch};
  switch (request.kind) {
    case CollectiveKind::all_reduce:
      if (size == 1) return call.copy(out, in, request.counts[0]);
      return in_one_step(request, size) ? reduce_small(call) : reduce_in_segments(call, true);
    case CollectiveKind::reduce_scatter:
      if (size == 1) return call.copy(out, in, request.counts[0]);
      return reduce_in_segments(call, false);
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast: return gather(call);
    case CollectiveKind::broadcast: return broadcast(call);
    case CollectiveKind::all_to_all: return all_to_all(call);
    case CollectiveKind::send:
    case CollectiveKind::receive: post_message(request, channel, in, out); return channel.await_all();
    case CollectiveKind::barrier: return meet(request, rank, size, channel);
  }
}

}  // namespace het
