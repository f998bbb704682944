// Where an S3 store is and who asks, from what AWS's own tools read: environment variables, and the profiles
// in ~/.aws/credentials and ~/.aws/config. No secret from here ever enters a message.
#pragma once

#include <string>

#include "core/cluster/environment.h"
#include "snapshot/store/sign.h"

namespace het {

// Of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (with AWS_SESSION_TOKEN), else of the profile AWS_PROFILE,
// by default "default", in AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials. Throws Error(environment)
// saying what to set.
Credentials find_credentials(const EnvironmentLookup& environment);

struct S3Site {
  std::string region;
  std::string endpoint;  // "http://10.0.0.7:9000", without a slash at the end; empty: AWS's
  std::string ca_file;   // empty: the system's
};
// AWS_REGION or AWS_DEFAULT_REGION, else of the profile in AWS_CONFIG_FILE or ~/.aws/config, else us-east-1;
// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; AWS_CA_BUNDLE. Throws Error(usage) for an endpoint that is no URL.
S3Site find_site(const EnvironmentLookup& environment);

}  // namespace het
