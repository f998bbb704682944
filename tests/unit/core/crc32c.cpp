#include "core/base/crc32c.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

using namespace het;

TEST_CASE("crc32c gives the values of RFC 3720") {
  const std::string zeros(32, '\0'), ones(32, '\xff');
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  for (const auto& crc : {crc32c, crc32c_portable}) {
    CHECK(crc(zeros.data(), 32, 0) == 0x8a9136aa);
    CHECK(crc(ones.data(), 32, 0) == 0x62a8ab43);
    CHECK(crc(ascending.data(), 32, 0) == 0x46dd794e);
    CHECK(crc(descending.data(), 32, 0) == 0x113fdb5c);
    CHECK(crc("123456789", 9, 0) == 0xe3069283);
    CHECK(crc("", 0, 0) == 0);
  }
}

TEST_CASE("crc32c of parts, at any address and length, is that of the whole") {
  std::mt19937 random(5);
  std::vector<unsigned char> bytes(100'000);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (int run = 0; run < 300; ++run) {
    const auto begin = static_cast<int64_t>(random() % 64);
    const auto length = static_cast<int64_t>(random() % (bytes.size() - 64));
    const auto cut = length == 0 ? 0 : static_cast<int64_t>(random()) % length;
    const unsigned char* at = bytes.data() + begin;
    INFO(begin << " " << length << " " << cut);
    const uint32_t whole = crc32c_portable(at, length);
    CHECK(crc32c(at, length) == whole);
    CHECK(crc32c(at + cut, length - cut, crc32c(at, cut)) == whole);
  }
}
