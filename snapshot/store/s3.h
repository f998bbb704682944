// The store in a bucket of a server that speaks S3. Large objects go up in parts, each tried again by itself;
// ranges come down in parts, each going on where it broke off.
#pragma once

#include <memory>
#include <string>

#include "snapshot/store/store.h"

namespace het {

// `url`: "s3://bucket" or "s3://bucket/prefix". Throws Error(usage) for another, Error(environment) where
// there are no credentials. Nothing is asked of the server yet.
std::unique_ptr<ObjectStore> open_s3_store(const std::string& url, const StoreAccess& access);

}  // namespace het
