// Signature Version 4 of requests to S3 (AWS, "Signature Calculations for the Authorization Header"). libcurl
// 7.88 has it too, but signs wrongly for some paths and queries and never sends the hash of the content.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace het {

struct Credentials {
  std::string access_key, secret_key;
  std::string session_token;  // empty: none
  bool operator==(const Credentials&) const = default;
};

// All but A-Z, a-z, 0-9, '-', '.', '_' and '~' as %XX; '/' stays where `is_path`.
std::string percent_encode(std::string_view text, bool is_path = false);
// "a=1&b=x%2Fy", in the order of the encoded names; a name without a value is "name=".
std::string encode_query(const std::map<std::string, std::string>& query);

struct UnsignedRequest {
  std::string method;
  std::string path;                            // encoded, from '/' on
  std::map<std::string, std::string> query;    // not encoded
  std::map<std::string, std::string> headers;  // lower-case names, "host" among them; all are signed
  std::string content_sha256;                  // of the body, hexadecimal
};
// The headers of the signed request: those given, and x-amz-content-sha256, x-amz-date, x-amz-security-token
// and authorization. `date`: in UTC, "20130524T000000Z".
std::map<std::string, std::string> sign(const UnsignedRequest& request, const Credentials& credentials,
                                        const std::string& region, const std::string& date);

}  // namespace het
