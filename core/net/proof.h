// Proofs that one knows a secret without showing it, and bytes fit for secrets. Only proof.cpp sees OpenSSL.
#pragma once

#include <string>
#include <string_view>

namespace het {

std::string sha256(std::string_view text);  // 32 bytes
// HMAC-SHA256: 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view text);
std::string random_bytes(size_t count);  // from the system's generator, fit for secrets
std::string hex_of(std::string_view bytes);
// In a time that depends on the lengths only.
bool equal_proofs(std::string_view a, std::string_view b);

}  // namespace het
