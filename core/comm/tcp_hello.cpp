#include "core/comm/tcp_hello.h"

#include <cstring>

#include "core/base/error.h"
#include "core/net/proof.h"

namespace het {
namespace {

constexpr std::string_view kGreetingMagic = "HETRUNg1", kHelloMagic = "HETRUNh1", kReplyMagic = "HETRUNr";

template <typename T>
void add(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

std::string_view take_bytes(std::string_view& bytes, size_t count) {
  const std::string_view taken = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return taken;
}

// Each message has a separate label: none can be sent back as another.
std::string proof_of(std::string_view label, std::string_view secret, std::string_view greeting,
                     std::string_view rest) {
  std::string text(label);
  text += greeting;
  text += rest;
  return hmac_sha256(secret, text);
}

std::string_view without_proof(std::string_view message) {
  return message.substr(0, message.size() - kDigestBytes);
}

}  // namespace

std::string digest_of_name(std::string_view name) { return hmac_sha256("name", name); }

std::string write_greeting(std::string_view nonce) {
  HET_REQUIRE(nonce.size() == kHelloNonceBytes, nonce.size());
  std::string text(kGreetingMagic);
  text += nonce;
  return text;
}

bool is_greeting(std::string_view bytes) {
  return bytes.size() == kGreetingBytes && bytes.starts_with(kGreetingMagic);
}

std::string write_hello(const Hello& hello, std::string_view greeting, std::string_view secret) {
  HET_REQUIRE(hello.run.size() == kDigestBytes && hello.group.size() == kDigestBytes, hello.run.size());
  HET_REQUIRE(hello.nonce.size() == kHelloNonceBytes, hello.nonce.size());
  std::string text(kHelloMagic);
  text += hello.nonce;
  add(text, hello.generation);
  add(text, hello.from);
  add(text, hello.to);
  text += hello.run;
  text += hello.group;
  return text + proof_of("connect", secret, greeting, text);
}

std::optional<Hello> read_hello(std::string_view bytes) {
  if (bytes.size() != kHelloBytes || !bytes.starts_with(kHelloMagic)) return std::nullopt;
  bytes.remove_prefix(kHelloMagic.size());
  Hello hello;
  hello.nonce = take_bytes(bytes, kHelloNonceBytes);
  hello.generation = take<int64_t>(bytes);
  hello.from = take<int32_t>(bytes);
  hello.to = take<int32_t>(bytes);
  hello.run = take_bytes(bytes, kDigestBytes);
  hello.group = take_bytes(bytes, kDigestBytes);
  if (hello.generation < 0 || hello.from < 0 || hello.to < 0) return std::nullopt;
  return hello;
}

bool proves(std::string_view hello, std::string_view greeting, std::string_view secret) {
  return hello.size() == kHelloBytes &&
         equal_proofs(hello.substr(hello.size() - kDigestBytes),
                      proof_of("connect", secret, greeting, without_proof(hello)));
}

std::string write_reply(const Reply& reply, std::string_view greeting, std::string_view hello,
                        std::string_view secret) {
  std::string text(kReplyMagic);
  add(text, reply.verdict);
  add(text, reply.generation);
  return text + proof_of("accept", secret, greeting, std::string(hello) + text);
}

std::optional<Reply> read_reply(std::string_view bytes, std::string_view greeting, std::string_view hello,
                                std::string_view secret) {
  if (bytes.size() != kReplyBytes || !bytes.starts_with(kReplyMagic)) return std::nullopt;
  const std::string content = std::string(hello) + std::string(without_proof(bytes));
  if (!equal_proofs(bytes.substr(bytes.size() - kDigestBytes), proof_of("accept", secret, greeting, content)))
    return std::nullopt;
  bytes.remove_prefix(kReplyMagic.size());
  const auto verdict = take<uint8_t>(bytes);
  if (verdict > static_cast<uint8_t>(Verdict::over)) return std::nullopt;
  return Reply{static_cast<Verdict>(verdict), take<int64_t>(bytes)};
}

}  // namespace het
