#include "core/cluster/secret.h"

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/trimmed.h"
#include "core/io/file.h"

namespace het {
namespace {

constexpr const char* kMakeOne = "make one with: openssl rand -hex 32";

}  // namespace

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
