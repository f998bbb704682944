// Frames of control messages on a TCP connection: a length (u32, little-endian), then that many bytes of
// content. The length is checked before any content is read.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace het {

inline constexpr size_t kFrameHeaderBytes = 4;

std::string write_frame(std::string_view content);
// The size of the frame that begins with `head`, header included; 0: head has less than the length. Throws
// Error(peer) when its content is more than `limit` bytes.
size_t frame_bytes(std::string_view head, size_t limit);

}  // namespace het
