#include "core/base/crc32c.h"

#include <array>
#include <cstring>

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace het {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed: the lowest one is the highest power

using Table = std::array<uint32_t, 256>;

// tables[k][b]: the register after byte b and then k bytes of 0.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
    tables[0][b] = value;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t b = 0; b < 256; ++b) tables[k][b] = tables[0][tables[k - 1][b] & 255] ^ tables[k - 1][b] >> 8;
  return tables;
}
constexpr std::array<Table, 8> kTables = make_tables();

// The register after 8 bytes at once: each byte is followed by as many as its table counts.
uint32_t update_portable(uint32_t value, const unsigned char* at, int64_t bytes) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    word ^= value;
    value = 0;
    for (size_t k = 0; k < 8; ++k) value ^= kTables[7 - k][word >> (8 * k) & 255];
  }
  for (; bytes > 0; ++at, --bytes) value = kTables[0][(value ^ *at) & 255] ^ value >> 8;
  return value;
}

#ifdef __x86_64__

constexpr int64_t kStream = 4096;  // bytes of each stream in a round: the combination is then below 1 %

// The register after kStream bytes of 0, a linear map of its 32 bits: by its four bytes.
std::array<Table, 4> make_shift() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t value = uint32_t{1} << bit;
    for (int64_t byte = 0; byte < kStream; ++byte) value = kTables[0][value & 255] ^ value >> 8;
    of_bit[bit] = value;
  }
  std::array<Table, 4> shift{};
  for (size_t byte = 0; byte < 4; ++byte)
    for (size_t b = 0; b < 256; ++b)
      for (size_t bit = 0; bit < 8; ++bit)
        if (b >> bit & 1) shift[byte][b] ^= of_bit[8 * byte + bit];
  return shift;
}

// Before C++23 an intrinsic needs its whole function compiled for the instruction set.
__attribute__((target("sse4.2"))) uint32_t update_sse42(uint32_t value, const unsigned char* at,
                                                        int64_t bytes) {
  static const std::array<Table, 4> shift = make_shift();
  const auto word = [](const unsigned char* from) {
    uint64_t w;
    std::memcpy(&w, from, 8);
    return w;
  };
  const auto shifted = [](uint64_t v) {
    return shift[0][v & 255] ^ shift[1][v >> 8 & 255] ^ shift[2][v >> 16 & 255] ^ shift[3][v >> 24 & 255];
  };
  uint64_t a = value;
  // The instruction takes three cycles, one can start in each: three streams keep the unit busy.
  for (; bytes >= 3 * kStream; at += 3 * kStream, bytes -= 3 * kStream) {
    uint64_t b = 0, c = 0;
    for (int64_t i = 0; i < kStream; i += 8) {
      a = _mm_crc32_u64(a, word(at + i));
      b = _mm_crc32_u64(b, word(at + kStream + i));
      c = _mm_crc32_u64(c, word(at + 2 * kStream + i));
    }
    a = shifted(shifted(a) ^ b) ^ c;
  }
  for (; bytes >= 8; at += 8, bytes -= 8) a = _mm_crc32_u64(a, word(at));
  auto result = static_cast<uint32_t>(a);
  for (; bytes > 0; ++at, --bytes) result = _mm_crc32_u8(result, *at);
  return result;
}

#endif

}  // namespace

uint32_t crc32c_portable(const void* data, int64_t bytes, uint32_t before) {
  return ~update_portable(~before, static_cast<const unsigned char*>(data), bytes);
}

uint32_t crc32c(const void* data, int64_t bytes, uint32_t before) {
#ifdef __x86_64__
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
  if (has_sse42) return ~update_sse42(~before, static_cast<const unsigned char*>(data), bytes);
#endif
  return crc32c_portable(data, bytes, before);
}

}  // namespace het
