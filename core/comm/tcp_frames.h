// What travels on a TCP connection between two ranks after the hello: frames of a fixed header, some with
// bytes after it. Numbers are little-endian. Internal to core/comm.
//
//   ready(channel, size)        the receiver has posted for the next message of the channel
//   data(channel, size, chunk)  `chunk` bytes of the oldest message of `size` bytes that is not complete
//   goodbye                     the other end leaves and lives; nothing follows
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace het {

enum class FrameKind : uint32_t { ready = 1, data, goodbye };

struct Frame {
  FrameKind kind = FrameKind::goodbye;
  uint32_t chunk = 0;    // data: bytes that follow the header; else 0
  uint64_t channel = 0;  // ready, data; else 0
  int64_t size = 0;      // ready, data: of the whole message; else 0

  bool operator==(const Frame&) const = default;
};

inline constexpr size_t kFrameBytes = 24;
// The largest part of a message in one frame: messages of other channels come between.
inline constexpr uint32_t kChunkBytes = 1024 * 1024;
// A message up to this size may be sent before its receiver has said ready, one at a time on a channel.
inline constexpr int64_t kEagerBytes = 4096;
// Channels are numbered from 0: 1 + the largest tag of a message.
inline constexpr uint64_t kMostChannels = (1 << 20) + 1;

void write_frame(const Frame& frame, std::byte* to);  // kFrameBytes
// From kFrameBytes; nothing for a frame that no rank would send.
std::optional<Frame> read_frame(const std::byte* from);

}  // namespace het
