#include "core/comm/tcp_frames.h"

#include <cstring>

namespace het {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

void write_frame(const Frame& frame, std::byte* to) {
  const auto kind = static_cast<uint32_t>(frame.kind);
  std::memcpy(to, &kind, 4);
  std::memcpy(to + 4, &frame.chunk, 4);
  std::memcpy(to + 8, &frame.channel, 8);
  std::memcpy(to + 16, &frame.size, 8);
}

std::optional<Frame> read_frame(const std::byte* from) {
  uint32_t kind = 0;
  Frame frame;
  std::memcpy(&kind, from, 4);
  std::memcpy(&frame.chunk, from + 4, 4);
  std::memcpy(&frame.channel, from + 8, 8);
  std::memcpy(&frame.size, from + 16, 8);
  if (kind < static_cast<uint32_t>(FrameKind::ready) || kind > static_cast<uint32_t>(FrameKind::goodbye))
    return std::nullopt;
  frame.kind = static_cast<FrameKind>(kind);
  const bool message = frame.kind == FrameKind::ready || frame.kind == FrameKind::data;
  if (frame.size < 0 || frame.channel >= (message ? kMostChannels : 1)) return std::nullopt;
  if (frame.kind == FrameKind::data) {
    // Only an empty message has an empty chunk.
    if (frame.chunk > kChunkBytes || frame.chunk > frame.size || (frame.chunk == 0) != (frame.size == 0))
      return std::nullopt;
  } else if (frame.chunk != 0 || (frame.kind == FrameKind::goodbye && frame.size != 0)) {
    return std::nullopt;
  }
  return frame;
}

}  // namespace het
