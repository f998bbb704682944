#include "core/cluster/seal.h"

#include "core/cluster/secret.h"

namespace het {

std::string sealed(std::string_view secret, const std::string& key, const std::string& text) {
  return hex_of(hmac_sha256(secret, key + '\n' + text)) + '\n' + text;
}

std::optional<std::string> unsealed(std::string_view secret, const std::string& key,
                                    const std::string& value) {
  const size_t end = value.find('\n');
  if (end == value.npos) return std::nullopt;
  std::string text = value.substr(end + 1);
  if (!equal_proofs(value.substr(0, end), hex_of(hmac_sha256(secret, key + '\n' + text))))
    return std::nullopt;
  return text;
}

}  // namespace het
