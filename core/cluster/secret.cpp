#include "core/cluster/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/io/file.h"

namespace het {
namespace {

constexpr const char* kMakeOne = "make one with: openssl rand -hex 32";

std::string trimmed(std::string text) {
  constexpr const char* kSpace = " \t\r\n";
  text.erase(text.find_last_not_of(kSpace) + 1);
  text.erase(0, text.find_first_not_of(kSpace));
  return text;
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  if (!::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
              reinterpret_cast<const unsigned char*>(text.data()), text.size(),
              reinterpret_cast<unsigned char*>(digest.data()), &size))
    fail_environment("OpenSSL's libcrypto did not compute an HMAC-SHA256");
  digest.resize(size);
  return digest;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1)
    fail_environment("the system gave no {} random bytes for a secret", count);
  return bytes;
}

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

bool equal_proofs(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string make_secret() { return hex_of(random_bytes(32)); }

std::string load_secret(const EnvironmentLookup& lookup, const std::string& file) {
  std::string secret, where;
  if (!file.empty()) {
    secret = trimmed(read_file(file));
    struct stat status {};
    if (::stat(file.c_str(), &status) == 0 && (status.st_mode & S_IROTH))
      fail_usage("everybody on this machine can read the secret in {}; make it yours with: chmod 600 {}",
                 file, file);
    where = file;
  } else if (const auto value = lookup("HETRUN_SECRET")) {
    secret = trimmed(*value);
    where = "HETRUN_SECRET";
  } else {
    fail_usage("a run over several processes needs a shared secret: set HETRUN_SECRET, or name a file; {}",
               kMakeOne);
  }
  if (secret.size() < kSecretBytes)
    fail_usage("the secret in {} has {} bytes; it needs {} or more; {}", where, secret.size(), kSecretBytes,
               kMakeOne);
  return secret;
}

}  // namespace het
