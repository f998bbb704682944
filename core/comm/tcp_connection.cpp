#include "core/comm/tcp_connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace het {
namespace {

constexpr size_t kBatchBytes = kChunkBytes;  // of payload written by one call, about
constexpr size_t kLargePart = 128 * 1024;
constexpr int kBatchesAtOnce = 16;                // then the I/O thread goes on
constexpr size_t kMostReadies = size_t{1} << 20;  // that a peer may announce ahead of the sends
constexpr int kReadsAtOnce = 32;                  // then the next connection has its turn

bool is_temporary(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

TcpConnection::TcpConnection(Descriptor socket, TcpIo& io, std::function<void(bool)> ended)
    : io_(io), ended_(std::move(ended)), socket_(std::move(socket)) {}

void TcpConnection::start() {
  std::lock_guard lock(mutex_);
  if (cut_) return;
  number_ = io_.add(shared_from_this(), socket_.number());
}

ChannelEnd& TcpConnection::channel(uint64_t number) {
  std::lock_guard lock(mutex_);
  return find(number);
}

ChannelEnd& TcpConnection::find(uint64_t number) {
  std::unique_ptr<ChannelEnd>& end = channels_[number];
  if (end == nullptr) end = std::make_unique<ChannelEnd>(number);
  return *end;
}

// ---- waiting

bool TcpConnection::is_done(ChannelEnd& end, bool send, int64_t count) {
  std::lock_guard lock(mutex_);
  return !cut_ && (send ? std::min(end.written, end.ready) : end.received) >= count;
}

TcpConnection::State TcpConnection::wait(ChannelEnd& end, bool send, int64_t count,
                                         const std::atomic<bool>& interrupted) {
  std::unique_lock lock(mutex_);
  State state = State::done;
  end.changed.wait(lock, [&] {
    if (cut_)
      state = State::cut;
    else if ((send ? std::min(end.written, end.ready) : end.received) >= count)
      state = State::done;
    else if (end.disagrees)
      state = State::mismatch;
    else if (gone_)
      state = State::gone;
    else if (interrupted)
      state = State::interrupted;
    else
      return false;
    return true;
  });
  return state;
}

Mismatch TcpConnection::mismatch(ChannelEnd& end) {
  std::lock_guard lock(mutex_);
  return end.mismatch;
}

void TcpConnection::wake(ChannelEnd& end) {
  std::lock_guard lock(mutex_);
  end.changed.notify_all();
}

// ---- sending

bool TcpConnection::post_send(ChannelEnd& end, const std::byte* from, int64_t size) {
  std::lock_guard lock(mutex_);
  if (cut_) return false;
  end.sends.push({from, size});
  if (end.ready_size.empty()) {
    end.awaiting_size.push(size);
  } else {
    if (end.ready_size.front() != size) disagree(end, {true, size, end.ready_size.front()});
    end.ready_size.pop();
  }
  queue(end);
  return true;
}

// Its first message may travel: the other end has posted for it, or has posted for all before it and it is
// small.
bool TcpConnection::may_frame(const ChannelEnd& end) const {
  return !end.sends.empty() && !end.disagrees &&
         (end.framed < end.ready || (end.framed == end.ready && end.sends.front().size <= kEagerBytes));
}

void TcpConnection::queue(ChannelEnd& end) {
  if (end.queued || !may_frame(end)) return;
  end.queued = true;
  sendable_.push(&end);
}

void TcpConnection::add_frame(const Frame& frame, const std::byte* payload, ChannelEnd* completes) {
  OutFrame& out = batch_[batch_end_++];
  write_frame(frame, out.header.data());
  out.payload = payload;
  out.bytes = frame.chunk;
  out.completes = completes;
  out.wakes = false;
}

void TcpConnection::fill_batch() {
  batch_first_ = batch_end_ = batch_written_ = 0;
  for (; !control_.empty() && batch_end_ < kFramesAtOnce; control_.pop())
    add_frame(control_.front(), nullptr, nullptr);
  for (size_t bytes = 0; !sendable_.empty() && batch_end_ < kFramesAtOnce && bytes < kBatchBytes;) {
    ChannelEnd& end = *sendable_.front();
    sendable_.pop();
    end.queued = false;
    const ChannelEnd::Send message = end.sends.front();
    const auto chunk =
        static_cast<uint32_t>(std::min<int64_t>(message.size - end.framed_bytes, int64_t{kChunkBytes}));
    const std::byte* const from = message.from + end.framed_bytes;
    const bool first = end.framed_bytes == 0;
    end.framed_bytes += chunk;
    const bool last = end.framed_bytes == message.size;
    add_frame({FrameKind::data, chunk, end.number, message.size}, from, last ? &end : nullptr);
    batch_[batch_end_ - 1].wakes = first && chunk >= kLargePart;
    bytes += chunk;
    if (last) {
      end.sends.pop();
      end.framed_bytes = 0;
      ++end.framed;
    }
    queue(end);
  }
}

// `written` more bytes of the batch have left.
void TcpConnection::account(size_t written) {
  while (written > 0) {
    const OutFrame& frame = batch_[batch_first_];
    const size_t left = kFrameBytes + frame.bytes - batch_written_;
    if (written < left) {
      batch_written_ += written;
      return;
    }
    written -= left;
    batch_written_ = 0;
    ++batch_first_;
    if (frame.completes != nullptr) {
      ++frame.completes->written;
      if (frame.completes->written <= frame.completes->ready) frame.completes->changed.notify_all();
    }
  }
}

// Whoever has something to write writes until the socket is full; the I/O thread goes on from there.
void TcpConnection::flush() {
  std::unique_lock lock(mutex_);
  if (writing_ || blocked_) return;
  for (int batches = 0; !cut_ && !write_failed_ && !gone_; ++batches) {
    if (batch_first_ == batch_end_) fill_batch();
    if (batch_first_ == batch_end_) return;
    if (batches == kBatchesAtOnce) {
      blocked_ = true;
      return io_.want_write(number_, socket_.number(), true);
    }
    std::array<iovec, 2 * kFramesAtOnce> parts;
    size_t count = 0, skipped = batch_written_;
    // The header of a large part goes ahead: it wakes the other end's thread while the part is copied here.
    const bool ahead = batch_written_ == 0 && batch_[batch_first_].wakes;
    for (size_t i = batch_first_; i < batch_end_ && !(ahead && count > 0); ++i) {
      const std::pair<const std::byte*, size_t> pieces[] = {{batch_[i].header.data(), kFrameBytes},
                                                            {batch_[i].payload, batch_[i].bytes}};
      for (const auto& [from, bytes] : pieces) {
        const size_t skip = std::min(skipped, bytes);
        skipped -= skip;
        if (skip < bytes && !(ahead && count > 0))
          parts[count++] = {const_cast<std::byte*>(from) + skip, bytes - skip};
      }
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const int socket = socket_.number();
    writing_ = true;
    lock.unlock();
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    const int error = errno;
    lock.lock();
    writing_ = false;
    if (sent > 0) account(static_cast<size_t>(sent));
    if (cut_) return idle_.notify_all();
    if (sent < 0 && error != EINTR) {
      // A connection that fails has yet to be read to its end.
      write_failed_ = !is_temporary(error);
      blocked_ = !write_failed_;
      if (blocked_) io_.want_write(number_, socket, true);
      return;
    }
  }
}

void TcpConnection::writable() {
  {
    std::lock_guard lock(mutex_);
    if (cut_ || !blocked_) return;
    blocked_ = false;
    io_.want_write(number_, socket_.number(), false);
  }
  flush();
}

// ---- receiving

bool TcpConnection::post_receive(ChannelEnd& end, std::byte* to, int64_t size) {
  std::lock_guard lock(mutex_);
  if (cut_) return false;
  end.receives.push({to, size});
  control_.push({FrameKind::ready, 0, end.number, size});
  if (end.early_whole) deliver_early(end);
  return true;
}

void TcpConnection::complete(ChannelEnd& end) {
  end.receives.pop();
  end.filled = 0;
  ++end.received;
  end.changed.notify_all();
}

void TcpConnection::deliver_early(ChannelEnd& end) {
  const ChannelEnd::Receive receive = end.receives.front();
  if (receive.size != end.early_size) return disagree(end, {false, end.early_size, receive.size});
  if (receive.size > 0) std::memcpy(receive.to, end.early.get(), static_cast<size_t>(receive.size));
  end.early_size = -1;
  end.early_whole = false;
  complete(end);
}

void TcpConnection::disagree(ChannelEnd& end, const Mismatch& mismatch) {
  end.disagrees = true;
  end.mismatch = mismatch;
  end.changed.notify_all();
}

void TcpConnection::readable() {
  for (int i = 0; i < kReadsAtOnce; ++i) {
    iovec parts[2];
    int count = 0, socket = -1;
    size_t room = 0;
    {
      std::lock_guard lock(mutex_);
      if (cut_ || gone_ || stopped_) return;
      if (payload_left_ > 0) parts[count++] = {payload_to_, payload_left_};
      parts[count++] = {in_.data() + in_end_, kInBytes - in_end_};
      room = payload_left_ + kInBytes - in_end_;
      socket = socket_.number();
      reading_ = true;
    }
    const ssize_t got = ::readv(socket, parts, count);
    const int error = errno;
    std::lock_guard lock(mutex_);
    reading_ = false;
    if (cut_) return idle_.notify_all();
    if (got < 0 && is_temporary(error)) break;
    if (got <= 0) return end();
    take(static_cast<size_t>(got));
    if (stopped_) return;
    if (static_cast<size_t>(got) < room && payload_left_ == 0) break;
  }
  flush();
}

// `bytes` more have come: first to where the payload goes, then into in_.
void TcpConnection::take(size_t bytes) {
  if (payload_left_ > 0) {
    const size_t taken = std::min(bytes, payload_left_);
    payload_to_ += taken;
    payload_left_ -= taken;
    bytes -= taken;
    if (payload_left_ == 0) end_data();
  }
  in_end_ += bytes;
  size_t at = 0;
  while (payload_left_ == 0 && in_end_ - at >= kFrameBytes) {
    const std::optional<Frame> frame = read_frame(in_.data() + at);
    at += kFrameBytes;
    if (!frame || !handle(*frame)) {
      if (stopped_) return;  // two ends disagree about a size
      broken_ = true;
      return end();
    }
    const size_t taken = std::min(in_end_ - at, payload_left_);
    if (taken == 0) continue;
    std::memcpy(payload_to_, in_.data() + at, taken);
    at += taken;
    payload_to_ += taken;
    payload_left_ -= taken;
    if (payload_left_ == 0) end_data();
  }
  in_end_ -= at;
  if (at > 0 && in_end_ > 0) std::memmove(in_.data(), in_.data() + at, in_end_);
}

// False: the frame, or what follows it, cannot be taken.
bool TcpConnection::handle(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::ready: return take_ready(find(frame.channel), frame.size);
    case FrameKind::data: return begin_data(frame);
    case FrameKind::goodbye: left_ = true; return true;
  }
  return false;
}

bool TcpConnection::take_ready(ChannelEnd& end, int64_t size) {
  if (end.awaiting_size.empty()) {
    if (end.ready_size.size() >= kMostReadies) return false;
    end.ready_size.push(size);
  } else {
    const int64_t sent = end.awaiting_size.front();
    end.awaiting_size.pop();
    if (sent != size) {
      disagree(end, {true, sent, size});
      return true;
    }
  }
  ++end.ready;
  if (end.ready <= end.written) end.changed.notify_all();
  queue(end);
  return true;
}

bool TcpConnection::begin_data(const Frame& frame) {
  ChannelEnd& end = find(frame.channel);
  payload_of_ = &end;
  payload_left_ = payload_bytes_ = frame.chunk;
  payload_is_early_ = end.receives.empty();
  if (payload_is_early_) {
    if (end.early_size >= 0 || frame.size > kEagerBytes || frame.chunk != frame.size) return false;
    if (end.early == nullptr) end.early = std::make_unique<std::byte[]>(kEagerBytes);
    end.early_size = frame.size;
    payload_to_ = end.early.get();
  } else {
    const ChannelEnd::Receive& receive = end.receives.front();
    if (frame.size != receive.size) {
      payload_left_ = 0;
      stopped_ = true;  // there is no memory for what follows
      io_.remove(number_, socket_.number());
      disagree(end, {false, frame.size, receive.size});
      return false;
    }
    if (frame.chunk > receive.size - end.filled) return false;
    payload_to_ = receive.to + end.filled;
  }
  if (payload_left_ == 0) end_data();
  return true;
}

void TcpConnection::end_data() {
  ChannelEnd& end = *payload_of_;
  if (payload_is_early_) {
    end.early_whole = true;
    if (!end.receives.empty()) deliver_early(end);
  } else {
    end.filled += static_cast<int64_t>(payload_bytes_);
    if (end.filled == end.receives.front().size) complete(end);
  }
}

// ---- the end

// The other end has closed the connection, or sent what no rank sends.
void TcpConnection::end() {
  stopped_ = true;
  gone_ = true;
  io_.remove(number_, socket_.number());
  for (const auto& [number, channel] : channels_) channel->changed.notify_all();
  io_.call([self = shared_from_this()] { self->ended_(self->left_); });
}

// The rest of a frame that has left in part.
std::string TcpConnection::rest_of_frame() const {
  if (batch_first_ == batch_end_ || batch_written_ == 0) return {};
  const OutFrame& frame = batch_[batch_first_];
  std::string whole(reinterpret_cast<const char*>(frame.header.data()), kFrameBytes);
  if (frame.bytes > 0) whole.append(reinterpret_cast<const char*>(frame.payload), frame.bytes);
  return whole.substr(batch_written_);
}

void TcpConnection::cut() {
  std::unique_lock lock(mutex_);
  const bool first = !std::exchange(cut_, true);
  idle_.wait(lock, [&] { return !reading_ && !writing_; });
  if (!first) return;
  std::string rest = rest_of_frame();
  bool complete = true;
  for (const auto& [number, channel] : channels_) {
    complete = complete && channel->receives.empty() && channel->awaiting_size.empty() &&
               channel->written == channel->framed && channel->sends.empty();
    channel->sends.clear();
    channel->receives.clear();
    channel->changed.notify_all();
  }
  control_.clear();
  sendable_.clear();
  batch_first_ = batch_end_ = 0;
  if (number_ != 0) io_.remove(number_, socket_.number());
  Descriptor socket = std::move(socket_);
  if (gone_ || write_failed_) return;
  int on_the_way = 0;
  ::ioctl(socket.number(), SIOCOUTQ, &on_the_way);
  lock.unlock();
  std::array<std::byte, kFrameBytes> goodbye;
  write_frame({FrameKind::goodbye, 0, 0, 0}, goodbye.data());
  rest.append(reinterpret_cast<const char*>(goodbye.data()), kFrameBytes);
  io_.see_off(std::move(socket), std::move(rest), complete && on_the_way > 0);
}

}  // namespace het
