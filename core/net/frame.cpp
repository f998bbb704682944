#include "core/net/frame.h"

#include <cstdint>

#include "core/base/error.h"

namespace het {

std::string write_frame(std::string_view content) {
  std::string frame;
  frame.reserve(kFrameHeaderBytes + content.size());
  for (size_t i = 0; i < kFrameHeaderBytes; ++i) frame += static_cast<char>(content.size() >> (8 * i));
  frame += content;
  return frame;
}

size_t frame_bytes(std::string_view head, size_t limit) {
  if (head.size() < kFrameHeaderBytes) return 0;
  size_t size = 0;
  for (size_t i = 0; i < kFrameHeaderBytes; ++i)
    size |= static_cast<size_t>(static_cast<uint8_t>(head[i])) << (8 * i);
  if (size > limit) fail(ErrorKind::peer, "a message of {} bytes is more than the {} allowed", size, limit);
  return kFrameHeaderBytes + size;
}

}  // namespace het
