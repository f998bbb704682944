// The shared secret of a run: where it comes from.
#pragma once

#include <string>
#include <string_view>

#include "core/cluster/environment.h"
#include "core/net/proof.h"

namespace het {

inline constexpr size_t kSecretBytes = 16;  // at least

// A new secret, as text.
std::string make_secret();
// The secret from `file`, where one is named, else from HETRUN_SECRET. Throws Error(usage) when there is
// none, when it is short, or when everybody on the machine can read the file.
std::string load_secret(const EnvironmentLookup& lookup, const std::string& file);

}  // namespace het
