// What the fuzzer of the embedded store's messages asks: any bytes are refused with an Error of the peer
// kind, or read as a value that is the same when it is written and read again.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/cluster/store_protocol.h"

namespace het::fuzz {

// True when `read` accepts the bytes. Aborts when it breaks the promise.
template <typename Read, typename Write>
bool store_message(std::string_view input, const Read& read, const Write& write) {
  try {
    const std::string again = write(read(input));
    if (write(read(again)) != again || again != input) std::abort();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) std::abort();
    return false;
  }
}

inline bool store_request(std::string_view input) {
  return store_message(input, read_request, write_request);
}
inline bool store_response(std::string_view input) {
  return store_message(input, read_response, write_response);
}
inline bool store_greeting(std::string_view input) {
  const bool greets = store_message(input, read_greeting, write_greeting);
  const bool proves = store_message(input, read_auth, write_auth);
  return store_message(input, read_auth_ok, write_auth_ok) || greets || proves;
}

// A frame's length claims no more than is allowed.
inline void store_frame(std::string_view input, size_t most) {
  try {
    const size_t bytes = frame_bytes(input, most);
    if (bytes > kFrameHeaderBytes + most) std::abort();
    if (bytes == 0 && input.size() >= kFrameHeaderBytes) std::abort();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) std::abort();
  }
}

}  // namespace het::fuzz
