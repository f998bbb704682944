#include "snapshot/store/credentials.h"

#include <map>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "core/base/trimmed.h"
#include "core/base/visible.h"
#include "core/io/file.h"

namespace het {
namespace {

std::string value_of(const EnvironmentLookup& environment, const std::string& name) {
  return environment(name).value_or("");
}

std::string profile_of(const EnvironmentLookup& environment) {
  const std::string profile = value_of(environment, "AWS_PROFILE");
  return profile.empty() ? "default" : profile;
}

std::string file_of(const EnvironmentLookup& environment, const std::string& variable,
                    const std::string& name) {
  if (std::string given = value_of(environment, variable); !given.empty()) return given;
  const std::string home = value_of(environment, "HOME");
  return home.empty() ? "" : home + "/.aws/" + name;
}

// The entries of a section, "[profile NAME]" or "[NAME]"; empty where the file or the section is missing.
std::map<std::string, std::string> read_section(const std::string& file, const std::string& section) {
  std::map<std::string, std::string> entries;
  if (file.empty() || kind_of(file) != FileKind::file) return entries;
  const std::string text = read_file(file);
  bool inside = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (line.starts_with('[') && line.ends_with(']')) {
      std::string_view name = trimmed(line.substr(1, line.size() - 2));
      if (name.starts_with("profile ")) name = trimmed(name.substr(8));
      inside = name == section;
    } else if (const size_t equals = line.find('=');
               inside && equals != line.npos && !line.starts_with('#') && !line.starts_with(';')) {
      entries[std::string(trimmed(line.substr(0, equals)))] = trimmed(line.substr(equals + 1));
    }
  }
  return entries;
}

// A header is made of it.
void check_printable(const std::string& text, const std::string& what) {
  for (const char c : text)
    if (c <= ' ' || c > '~') fail_environment("{} has a character that is no part of one", what);
}

}  // namespace

Credentials find_credentials(const EnvironmentLookup& environment) {
  Credentials found{value_of(environment, "AWS_ACCESS_KEY_ID"),
                    value_of(environment, "AWS_SECRET_ACCESS_KEY"),
                    value_of(environment, "AWS_SESSION_TOKEN")};
  std::string where = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN";
  if (found.access_key.empty() != found.secret_key.empty())
    fail_environment("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together; only {} is set",
                     found.access_key.empty() ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
  if (found.access_key.empty()) {
    const std::string profile = profile_of(environment),
                      file = file_of(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
    auto entries = read_section(file, profile);
    found = {entries["aws_access_key_id"], entries["aws_secret_access_key"], entries["aws_session_token"]};
    where = fmt::format("the profile '{}' of {}", visible(profile), visible(file));
    if (found.access_key.empty() || found.secret_key.empty())
      fail_environment(
          "an s3:// store needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write the "
          "profile '{}' in {}",
          visible(profile), file.empty() ? "~/.aws/credentials" : visible(file));
  }
  for (const std::string& part : {found.access_key, found.secret_key, found.session_token})
    check_printable(part, where);
  return found;
}

S3Site find_site(const EnvironmentLookup& environment) {
  S3Site site;
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"})
    if (site.region.empty()) site.region = value_of(environment, name);
  if (site.region.empty())
    site.region =
        read_section(file_of(environment, "AWS_CONFIG_FILE", "config"), profile_of(environment))["region"];
  if (site.region.empty()) site.region = "us-east-1";
  if (site.region.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") !=
      site.region.npos)
    fail_usage("'{}' is no region; a region is like eu-central-1", visible(site.region));
  for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"})
    if (site.endpoint.empty()) site.endpoint = value_of(environment, name);
  while (site.endpoint.ends_with('/')) site.endpoint.pop_back();
  if (!site.endpoint.empty()) {
    const size_t scheme = site.endpoint.find("://");
    const std::string name = scheme == site.endpoint.npos ? "" : site.endpoint.substr(0, scheme);
    const std::string host = scheme == site.endpoint.npos ? "" : site.endpoint.substr(scheme + 3);
    // The URL is not repeated: what stands before '@' would be a password.
    if ((name != "http" && name != "https") || host.empty() ||
        host.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]") !=
            host.npos)
      fail_usage("AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is no endpoint; one is like https://host:9000");
  }
  site.ca_file = value_of(environment, "AWS_CA_BUNDLE");
  return site;
}

}  // namespace het
