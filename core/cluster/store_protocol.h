// What the embedded store and its clients say to each other: in frames (core/net/frame.h), integers
// little-endian. First the greeting, by which both prove that they know the secret:
//   server: Greeting;  client: its nonce and proof;  server: its proof, or a refusal in a sentence.
// Then the client asks and the server answers, one StoreResponse for each StoreRequest, but for a watch: it
// has one StoreResponse at once and one for each batch of events. Nothing is encrypted: it is for networks
// that one trusts with the content, but not with who takes part. Readers take hostile bytes: they throw
// Error(peer).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/cluster/store.h"
#include "core/net/frame.h"

namespace het {

inline constexpr size_t kNonceBytes = 32, kProofBytes = 32;
inline constexpr size_t kGreetingFrameBytes = 512;  // at most, before the proofs
inline constexpr size_t kQuestionFrameBytes = kStoreValueBytes + (16 << 10);
inline constexpr size_t kAnswerFrameBytes = 64 << 20;
// A client whose connection ends has so long to come back before its leases lapse.
inline constexpr std::chrono::milliseconds kReturn{600};

struct Greeting {
  std::string instance;  // [8] of the server: another one after a restart, which forgets all
  std::string nonce;     // [kNonceBytes]
};
struct Auth {
  std::string nonce, proof;
};
struct AuthOk {
  std::string proof;
  std::string refusal;  // a sentence; then there is no proof
};

struct StoreRequest {
  enum class Kind : uint8_t { grant = 1, keep_alive, revoke, get, list, put, create, replace, remove, watch };
  Kind kind = Kind::get;
  std::string key, value;  // key: or prefix
  int64_t lease = 0;
  int64_t revision = 0;
  int64_t ttl_ms = 0;

  bool operator==(const StoreRequest&) const = default;
};

struct StoreResponse {
  bool failed = false;
  ErrorKind error = ErrorKind::peer;  // when failed, with the sentence
  std::string sentence;
  bool done = false;     // of create, replace, remove: whether; of get: whether there is one
  int64_t revision = 0;  // of the change; of list and watch: of the store
  int64_t lease = 0, ttl_ms = 0;
  std::vector<StoreEvent> events;  // entries of get and list are events of kind put

  bool operator==(const StoreResponse&) const = default;
};

std::string write_greeting(const Greeting& greeting);
Greeting read_greeting(std::string_view content);
std::string write_auth(const Auth& auth);
Auth read_auth(std::string_view content);
std::string write_auth_ok(const AuthOk& auth_ok);
AuthOk read_auth_ok(std::string_view content);
std::string write_request(const StoreRequest& request);
StoreRequest read_request(std::string_view content);
std::string write_response(const StoreResponse& response);
StoreResponse read_response(std::string_view content);

// Proof of either side over both nonces; neither can be sent back as the other's.
std::string client_proof(std::string_view secret, const Greeting& greeting, std::string_view client_nonce);
std::string server_proof(std::string_view secret, const Greeting& greeting, std::string_view client_nonce);

}  // namespace het
