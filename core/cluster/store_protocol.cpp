#include "core/cluster/store_protocol.h"

#include "core/cluster/secret.h"

namespace het {
namespace {

constexpr std::string_view kMagic = "hetrun-store-1";

class Writer {
 public:
  void byte(uint8_t value) { text_ += static_cast<char>(value); }
  void integer(int64_t value, int bytes = 8) {
    for (int i = 0; i < bytes; ++i) byte(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void string(std::string_view value) {
    integer(static_cast<int64_t>(value.size()), 4);
    text_ += value;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  uint8_t byte() { return static_cast<uint8_t>(bytes(1)[0]); }
  // One of 0 to `last`.
  uint8_t choice(uint8_t last) {
    const uint8_t value = byte();
    if (value > last) fail(ErrorKind::peer, "a message holds {} where at most {} is known", value, last);
    return value;
  }
  int64_t integer(int size = 8) {
    const std::string_view from = bytes(static_cast<size_t>(size));
    uint64_t value = 0;
    for (int i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(from[i])) << (8 * i);
    return static_cast<int64_t>(value);
  }
  std::string string() { return std::string(bytes(static_cast<size_t>(integer(4)))); }
  std::string_view bytes(size_t count) {
    if (count > text_.size()) fail(ErrorKind::peer, "a message ends early");
    const std::string_view found = text_.substr(0, count);
    text_.remove_prefix(count);
    return found;
  }
  void end() const {
    if (!text_.empty()) fail(ErrorKind::peer, "a message has {} bytes too many", text_.size());
  }

 private:
  std::string_view text_;
};

std::string exactly(std::string bytes, size_t count) {
  if (bytes.size() != count)
    fail(ErrorKind::peer, "a greeting has {} bytes where {} are due", bytes.size(), count);
  return bytes;
}

std::string proof(std::string_view secret, std::string_view who, const Greeting& greeting,
                  std::string_view client_nonce) {
  Writer text;
  text.string(kMagic);
  text.string(who);
  text.string(greeting.instance);
  text.string(greeting.nonce);
  text.string(client_nonce);
  return hmac_sha256(secret, text.take());
}

}  // namespace

std::string write_greeting(const Greeting& greeting) {
  Writer out;
  out.string(kMagic);
  out.string(greeting.instance);
  out.string(greeting.nonce);
  return out.take();
}

Greeting read_greeting(std::string_view content) {
  Reader in(content);
  if (in.string() != kMagic)
    fail(ErrorKind::peer, "the greeting is not that of a hetrun store of this version");
  Greeting greeting;
  greeting.instance = exactly(in.string(), 8);
  greeting.nonce = exactly(in.string(), kNonceBytes);
  in.end();
  return greeting;
}

std::string write_auth(const Auth& auth) {
  Writer out;
  out.string(auth.nonce);
  out.string(auth.proof);
  return out.take();
}

Auth read_auth(std::string_view content) {
  Reader in(content);
  Auth auth;
  auth.nonce = exactly(in.string(), kNonceBytes);
  auth.proof = exactly(in.string(), kProofBytes);
  in.end();
  return auth;
}

std::string write_auth_ok(const AuthOk& auth_ok) {
  Writer out;
  out.string(auth_ok.proof);
  out.string(auth_ok.refusal);
  return out.take();
}

AuthOk read_auth_ok(std::string_view content) {
  Reader in(content);
  AuthOk auth_ok;
  auth_ok.proof = in.string();
  auth_ok.refusal = in.string();
  in.end();
  if (auth_ok.refusal.empty()) exactly(auth_ok.proof, kProofBytes);
  if (!auth_ok.refusal.empty()) exactly(auth_ok.proof, 0);
  return auth_ok;
}

std::string write_request(const StoreRequest& request) {
  Writer out;
  out.byte(static_cast<uint8_t>(request.kind));
  out.string(request.key);
  out.string(request.value);
  out.integer(request.lease);
  out.integer(request.revision);
  out.integer(request.ttl_ms);
  return out.take();
}

StoreRequest read_request(std::string_view content) {
  Reader in(content);
  StoreRequest request;
  request.kind = static_cast<StoreRequest::Kind>(in.choice(static_cast<uint8_t>(StoreRequest::Kind::watch)));
  if (request.kind < StoreRequest::Kind::grant) fail(ErrorKind::peer, "a message holds no request");
  request.key = in.string();
  request.value = in.string();
  request.lease = in.integer();
  request.revision = in.integer();
  request.ttl_ms = in.integer();
  in.end();
  return request;
}

std::string write_response(const StoreResponse& response) {
  Writer out;
  out.byte(response.failed);
  out.byte(static_cast<uint8_t>(response.error));
  out.string(response.sentence);
  out.byte(response.done);
  out.integer(response.revision);
  out.integer(response.lease);
  out.integer(response.ttl_ms);
  out.integer(static_cast<int64_t>(response.events.size()), 4);
  for (const StoreEvent& event : response.events) {
    out.byte(static_cast<uint8_t>(event.kind));
    out.string(event.entry.key);
    out.string(event.entry.value);
    out.integer(event.entry.created);
    out.integer(event.entry.revision);
    out.integer(event.entry.lease);
  }
  return out.take();
}

StoreResponse read_response(std::string_view content) {
  Reader in(content);
  StoreResponse response;
  response.failed = in.choice(1);
  response.error = static_cast<ErrorKind>(in.byte());
  if (name_of(response.error) == "unknown") fail(ErrorKind::peer, "a message holds an unknown kind of error");
  response.sentence = in.string();
  response.done = in.choice(1);
  response.revision = in.integer();
  response.lease = in.integer();
  response.ttl_ms = in.integer();
  const int64_t count = in.integer(4);
  for (int64_t i = 0; i < count; ++i) {
    StoreEvent event;
    event.kind = static_cast<StoreEvent::Kind>(in.choice(1));
    event.entry.key = in.string();
    event.entry.value = in.string();
    event.entry.created = in.integer();
    event.entry.revision = in.integer();
    event.entry.lease = in.integer();
    response.events.push_back(std::move(event));
  }
  in.end();
  return response;
}

std::string client_proof(std::string_view secret, const Greeting& greeting, std::string_view client_nonce) {
  return proof(secret, "client", greeting, client_nonce);
}

std::string server_proof(std::string_view secret, const Greeting& greeting, std::string_view client_nonce) {
  return proof(secret, "server", greeting, client_nonce);
}

}  // namespace het
