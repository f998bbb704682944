// How the two ends of a TCP connection between ranks prove to each other that they belong together: to one
// run, generation and group, and that they are the two ranks they claim to be. All three messages have a
// fixed size, so nothing that an unauthenticated peer sends claims a length. For core/comm and the exchange
// of snapshots.
//
//   acceptor -> connector   Greeting   a nonce
//   connector -> acceptor   Hello      who it is, a nonce, HMAC(secret, "connect" + Greeting + Hello)
//   acceptor -> connector   Reply      a verdict,   HMAC(secret, "accept" + Greeting + Hello + verdict)
//
// What follows the Reply are frames (tcp_frames.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace het {

inline constexpr size_t kHelloNonceBytes = 16, kDigestBytes = 32;
inline constexpr size_t kGreetingBytes = 8 + kHelloNonceBytes;
inline constexpr size_t kHelloBytes = 8 + kHelloNonceBytes + 8 + 4 + 4 + 2 * kDigestBytes + kDigestBytes;
inline constexpr size_t kReplyBytes = 8 + 8 + kDigestBytes;

struct Hello {
  std::string run, group;    // digests: digest_of_name()
  int64_t generation = 0;    // at least 0
  int32_t from = 0, to = 0;  // ranks of the fabric, at least 0
  std::string nonce;

  bool operator==(const Hello&) const = default;
};

// Of names of runs and groups, which have any length.
std::string digest_of_name(std::string_view name);

enum class Verdict : uint8_t {
  accepted,
  other_secret,  // the acceptor does not believe the Hello
  other_run,     // or is of another run, or is for another rank
  over,          // the generation has ended, or a newer one was opened: `generation`
};
struct Reply {
  Verdict verdict = Verdict::accepted;
  int64_t generation = 0;  // the newest that the acceptor has opened
};

std::string write_greeting(std::string_view nonce);
// Messages of the right size, as written; nothing for any other bytes. They prove nothing yet.
std::string write_hello(const Hello& hello, std::string_view greeting, std::string_view secret);
std::optional<Hello> read_hello(std::string_view bytes);
std::string write_reply(const Reply& reply, std::string_view greeting, std::string_view hello,
                        std::string_view secret);
bool is_greeting(std::string_view bytes);

// Whether who wrote `hello` (a message) knows the secret and has seen this greeting.
bool proves(std::string_view hello, std::string_view greeting, std::string_view secret);
// The reply, when its writer knows the secret and has seen this hello; else nothing.
std::optional<Reply> read_reply(std::string_view bytes, std::string_view greeting, std::string_view hello,
                                std::string_view secret);

}  // namespace het
