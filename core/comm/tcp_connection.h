// One TCP connection between two ranks of a group, and the channels on it. A receiver announces its memory
// (ready), the sender writes from the memory of its message, and the bytes are read into the receiver's:
// nothing is copied in between but what came with a header. A small message goes without waiting for the
// ready, one at a time on a channel, so that it needs one way instead of two. Internal to core/comm.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/base/descriptor.h"
#include "core/base/ring.h"
#include "core/comm/tcp_frames.h"
#include "core/comm/tcp_io.h"

namespace het {

// A message whose two ends were posted with different sizes.
struct Mismatch {
  bool sends = false;  // this end
  int64_t sent = 0, expected = 0;
};

// This end of one channel, in both directions. Guarded by its connection's mutex.
struct ChannelEnd {
  explicit ChannelEnd(uint64_t n) : number(n) {}
  const uint64_t number;
  std::condition_variable changed;

  struct Receive {
    std::byte* to = nullptr;
    int64_t size = 0;
  };
  Ring<Receive> receives;              // posted, not complete
  int64_t filled = 0;                  // bytes of the first
  int64_t received = 0;                // messages that are complete
  std::unique_ptr<std::byte[]> early;  // [kEagerBytes]: a message that came before its receive was posted
  int64_t early_size = -1;             // of it; -1: none
  bool early_whole = false;

  struct Send {
    const std::byte* from = nullptr;
    int64_t size = 0;
  };
  Ring<Send> sends;             // posted, not yet in frames
  int64_t framed_bytes = 0;     // of the first
  int64_t framed = 0;           // messages that are in frames whole
  int64_t written = 0;          // and have left
  int64_t ready = 0;            // messages the other end has posted for
  Ring<int64_t> awaiting_size;  // sizes of sends the other end has not posted for
  Ring<int64_t> ready_size;  // sizes it has posted for and that are not posted here; one of the two is empty
  bool queued = false;       // among those with something to write

  bool disagrees = false;  // the two ends, about the size of a message
  Mismatch mismatch;
};

// Thread-safe.
class TcpConnection : public std::enable_shared_from_this<TcpConnection> {
 public:
  // `ended(goodbye)` is called once, on a thread of `io`, when the other end has closed the connection and
  // this one has not. Not before start().
  TcpConnection(Descriptor socket, TcpIo& io, std::function<void(bool goodbye)> ended);
  void start();

  ChannelEnd& channel(uint64_t number);  // stays where it is
  // Post a message; it travels with the next flush(). False: cut() was called.
  bool post_send(ChannelEnd& end, const std::byte* from, int64_t size);
  bool post_receive(ChannelEnd& end, std::byte* to, int64_t size);
  void flush();

  enum class State { done, interrupted, cut, gone, mismatch };
  // Until `count` messages of the channel have been sent (received), or `interrupted`, with wake().
  State wait(ChannelEnd& end, bool send, int64_t count, const std::atomic<bool>& interrupted);
  bool is_done(ChannelEnd& end, bool send, int64_t count);
  Mismatch mismatch(ChannelEnd& end);
  void wake(ChannelEnd& end);

  // Say goodbye and close. Nothing reads or writes posted memory when it returns.
  void cut();
  bool gone() const { return gone_; }      // closed by the other end; all it sent has been taken
  bool left() const { return left_; }      // after a goodbye
  bool broken() const { return broken_; }  // because the other end sent what no rank sends

  // On the I/O thread.
  void readable();
  void writable();

 private:
  static constexpr size_t kInBytes = 4 * 1024;
  static constexpr size_t kFramesAtOnce = 16;
  struct OutFrame {
    std::array<std::byte, kFrameBytes> header;
    const std::byte* payload = nullptr;
    size_t bytes = 0;                 // of the payload
    bool wakes = false;               // its header goes ahead
    ChannelEnd* completes = nullptr;  // the channel whose message has left with this frame
  };

  ChannelEnd& find(uint64_t number);
  bool may_frame(const ChannelEnd& end) const;
  void queue(ChannelEnd& end);
  void fill_batch();
  void add_frame(const Frame& frame, const std::byte* payload, ChannelEnd* completes);
  void account(size_t written);
  std::string rest_of_frame() const;
  void take(size_t bytes);
  bool handle(const Frame& frame);
  bool begin_data(const Frame& frame);
  void end_data();
  void deliver_early(ChannelEnd& end);
  bool take_ready(ChannelEnd& end, int64_t size);
  void complete(ChannelEnd& end);
  void disagree(ChannelEnd& end, const Mismatch& mismatch);
  void end();

  TcpIo& io_;
  const std::function<void(bool)> ended_;
  std::mutex mutex_;  // of all below; not held in system calls that move bytes
  Descriptor socket_;
  uint64_t number_ = 0;  // at io_
  std::unordered_map<uint64_t, std::unique_ptr<ChannelEnd>> channels_;
  bool cut_ = false, stopped_ = false;  // stopped: nothing is read any more
  std::atomic<bool> gone_ = false, left_ = false, broken_ = false;
  bool reading_ = false, writing_ = false;  // a thread is in a system call with posted memory
  std::condition_variable idle_;            // neither

  // Out: control frames first, then channels in turn.
  Ring<Frame> control_;
  Ring<ChannelEnd*> sendable_;
  std::array<OutFrame, kFramesAtOnce> batch_;
  size_t batch_first_ = 0, batch_end_ = 0, batch_written_ = 0;  // bytes of the first
  bool blocked_ = false;                                        // the socket takes nothing now
  bool write_failed_ = false;

  // In.
  std::array<std::byte, kInBytes> in_;
  size_t in_end_ = 0;
  std::byte* payload_to_ = nullptr;
  size_t payload_left_ = 0, payload_bytes_ = 0;  // of the chunk
  ChannelEnd* payload_of_ = nullptr;
  bool payload_is_early_ = false;
};

}  // namespace het
