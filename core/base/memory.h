// How much of the machine's memory a process may still take, as the system reports it. Nothing is kept here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace het {

// Bytes that can be allocated now: what the system has, and what the control groups of this process still
// grant it on every level; file pages that are given back when asked for count as free. The largest int64
// when the system does not say. `root` goes before the paths of /proc and /sys: empty, or a folder with
// copies of them.
int64_t available_memory(const std::string& root = {});

// Of an allocation, the bytes in pages that were never touched: the system does not count them as used yet.
int64_t untouched_bytes(const std::byte* begin, int64_t bytes);

}  // namespace het
