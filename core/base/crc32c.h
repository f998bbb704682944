// CRC-32C (Castagnoli), the checksum of snapshots and of what peers send each other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace het {

// The checksum of `bytes` bytes that follow those of `before`: crc32c(b, n, crc32c(a, m)) is that of a, then
// b. RFC 3720, appendix B.4. With SSE 4.2 in three streams, otherwise by tables.
uint32_t crc32c(const void* data, int64_t bytes, uint32_t before = 0);

// The same by tables alone, for tests.
uint32_t crc32c_portable(const void* data, int64_t bytes, uint32_t before = 0);

}  // namespace het
