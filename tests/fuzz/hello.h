// What every fuzzer of the hellos and frames of TCP connections asks: any bytes are either refused or read as
// values that are in their ranges, and that written again are the same bytes.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "core/comm/tcp_frames.h"
#include "core/comm/tcp_hello.h"

namespace het::fuzz {

inline bool frame(std::string_view input) {
  if (input.size() < kFrameBytes) return false;
  const auto frame = read_frame(reinterpret_cast<const std::byte*>(input.data()));
  if (!frame) return false;
  std::byte again[kFrameBytes];
  write_frame(*frame, again);
  if (std::memcmp(again, input.data(), kFrameBytes) != 0) std::abort();
  if (frame->chunk > kChunkBytes || frame->chunk > frame->size || frame->size < 0 ||
      frame->channel >= kMostChannels)
    std::abort();
  return true;
}

// True when it was accepted as a hello or a frame. Aborts when it breaks the promise.
inline bool hello(std::string_view input) {
  const std::string_view secret = "a secret of the fuzzer";
  static const std::string greeting = write_greeting("0123456789abcdef");
  if (proves(input, greeting, secret) || read_reply(input, greeting, input, secret)) std::abort();
  const auto hello = read_hello(input);
  if (!hello) return frame(input);
  if (hello->generation < 0 || hello->from < 0 || hello->to < 0) std::abort();
  const std::string again = write_hello(*hello, greeting, secret);
  if (again.size() != input.size() || !proves(again, greeting, secret)) std::abort();
  const size_t content = input.size() - kDigestBytes;
  if (std::string_view(again).substr(0, content) != input.substr(0, content)) std::abort();
  return true;
}

}  // namespace het::fuzz
