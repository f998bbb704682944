#include "snapshot/store/sign.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/net/proof.h"

namespace het {

std::string percent_encode(std::string_view text, bool is_path) {
  constexpr std::string_view kUnreserved =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string encoded;
  for (const char c : text)
    if (kUnreserved.find(c) != kUnreserved.npos || (is_path && c == '/'))
      encoded += c;
    else
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return encoded;
}

std::string encode_query(const std::map<std::string, std::string>& query) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [name, value] : query) pairs.emplace_back(percent_encode(name), percent_encode(value));
  std::sort(pairs.begin(), pairs.end());
  std::string text;
  for (const auto& [name, value] : pairs) text += (text.empty() ? "" : "&") + name + "=" + value;
  return text;
}

std::map<std::string, std::string> sign(const UnsignedRequest& request, const Credentials& credentials,
                                        const std::string& region, const std::string& date) {
  std::map<std::string, std::string> headers = request.headers;
  headers["x-amz-content-sha256"] = request.content_sha256;
  headers["x-amz-date"] = date;
  if (!credentials.session_token.empty()) headers["x-amz-security-token"] = credentials.session_token;

  std::string names, lines;
  for (const auto& [name, value] : headers) {
    names += (names.empty() ? "" : ";") + name;
    lines += name + ":" + value + "\n";
  }
  const std::string canonical = request.method + "\n" + request.path + "\n" + encode_query(request.query) +
                                "\n" + lines + "\n" + names + "\n" + request.content_sha256;
  const std::string day = date.substr(0, 8), scope = day + "/" + region + "/s3/aws4_request";
  const std::string text = "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + hex_of(sha256(canonical));
  std::string key = "AWS4" + credentials.secret_key;
  for (const std::string_view part : {std::string_view(day), std::string_view(region), std::string_view("s3"),
                                      std::string_view("aws4_request")})
    key = hmac_sha256(key, part);
  headers["authorization"] =
      fmt::format("AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}", credentials.access_key,
                  scope, names, hex_of(hmac_sha256(key, text)));
  return headers;
}

}  // namespace het
