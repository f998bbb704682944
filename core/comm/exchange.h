// The collectives, written once over the channels of channel.h: the mesh of steps.h, which says what is sent.
// Every rank talks to every other directly: a block that is reduced goes to its owner, who adds the
// contributions in rank order and hands the result to all. That is as many bytes per rank as in a ring, in
// two steps instead of 2 (n-1), with one rounding, the same bits whatever carries them, and no rank's arrival
// hidden behind another's. Internal to core/comm.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "core/comm/channel.h"
#include "core/comm/communicator.h"

namespace het {

// A Channel, with count kept of what is on its way. Used by the thread of one queue.
class ChannelState {
 public:
  // `interrupted` is called when a wait is interrupted; it throws to give up.
  ChannelState(Channel& channel, int size, std::function<void()> interrupted,
               std::atomic<int64_t>& bytes_sent);

  void send(int peer, const std::byte* from, int64_t bytes);
  void receive(int peer, std::byte* to, int64_t bytes);
  // How many were posted so far, to be given to await.
  int64_t received(int peer) const { return pairs_[peer].receive_posted; }
  int64_t sent(int peer) const { return pairs_[peer].send_posted; }
  // Until so many are done.
  void await_received(int peer, int64_t mark);
  void await_sent(int peer, int64_t mark);
  void await_all();
  // Peers with a message still on its way. Waits for an interrupt for each of them: only while a thread calls
  // interrupt() again and again.
  std::vector<int> unfinished();
  bool any_came(int peer) const { return pairs_[peer].receive_done > pairs_[peer].operation_mark; }
  void begin_operation();

 private:
  struct Lane {
    int64_t send_posted = 0, send_done = 0, receive_posted = 0, receive_done = 0, operation_mark = 0;
  };
  void await(int64_t& done, int64_t mark, bool (Channel::*oldest)(int), int peer);

  Channel& channel_;
  std::function<void()> interrupted_;
  std::atomic<int64_t>& bytes_sent_;
  std::vector<Lane> pairs_;
};

// Memory of a collective while it runs; those of one queue, which run one after the other, may share it.
struct Scratch {
  std::unique_ptr<std::byte[]> blocks;
  int64_t bytes = 0;
  std::vector<const std::byte*> inputs;  // [size]
  std::vector<int64_t> marks;            // [segments in flight, size]
};
int64_t scratch_bytes_of(const CollectiveRequest& request, int rank, int size);
Scratch make_scratch(int64_t bytes, int size);

// Post a send or receive, and what is to be awaited for it: a mark of await_sent or await_received.
int64_t post_message(const CollectiveRequest& request, ChannelState& channel, const std::byte* in,
                     std::byte* out);
// Run one collective to its end. `scratch` has at least scratch_bytes_of(request) bytes.
void run_collective(const CollectiveRequest& request, int rank, int size, ChannelState& channel,
                    const std::byte* in, std::byte* out, Scratch& scratch);

// Return once every rank that takes part is in this call.
void meet(const CollectiveRequest& request, int rank, int size, ChannelState& channel);

}  // namespace het
