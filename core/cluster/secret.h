// The shared secret of a run: where it comes from, and proofs that one knows it without showing it. Only
// secret.cpp sees OpenSSL.
#pragma once

#include <string>
#include <string_view>

#include "core/cluster/environment.h"

namespace het {

inline constexpr size_t kSecretBytes = 16;  // at least

// HMAC-SHA256: 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view text);
std::string random_bytes(size_t count);  // from the system's generator, fit for secrets
std::string hex_of(std::string_view bytes);
// In a time that depends on the lengths only.
bool equal_proofs(std::string_view a, std::string_view b);

// A new secret, as text.
std::string make_secret();
// The secret from `file`, where one is named, else from HETRUN_SECRET. Throws Error(usage) when there is
// none, when it is short, or when everybody on the machine can read the file.
std::string load_secret(const EnvironmentLookup& lookup, const std::string& file);

}  // namespace het
