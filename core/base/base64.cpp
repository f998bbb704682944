#include "core/base/base64.h"

#include <algorithm>

#include <openssl/evp.h>

namespace het {

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // with the zero that OpenSSL writes behind it
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  // OpenSSL takes white space and '-' at the ends, and '=' anywhere.
  const size_t padding = text.size() - std::min(text.size(), text.find_last_not_of('=') + 1);
  const bool strict = text.size() % 4 == 0 && padding <= 2 &&
                      text.find_first_of("- \t\r\n\v\f") == text.npos &&
                      text.find('=') >= text.size() - padding;
  if (!strict) return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (length < 0) return std::nullopt;
  bytes.resize(static_cast<size_t>(length) - padding);
  return bytes;
}

}  // namespace het
