// Numbers for people: bytes, seconds, rates, counts; and the reverse for what recipes write ("40 GF/s", "2
// GiB").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace het {

std::string show_bytes(double bytes);            // "1.5 GiB", "768 B"
std::string show_seconds(double seconds);        // "350 ms", "2 min 05 s", "3 h 10 min"
std::string show_count(double count);            // "124 M", "38.6 k", "12"
std::string show_rate(double flops_per_second);  // "412 GFLOP/s"

// Bytes from "2 GiB", "512 MB", "64" (KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB of 1000). Throws
// Error(usage) on anything else.
int64_t parse_bytes(std::string_view text);
// FLOP/s from "40 GF/s", "1.2 TFLOP/s".
double parse_rate(std::string_view text);
// Bytes a second from "25 GB/s", "100 Gbit/s"; seconds from "5 us", "2 ms", "1.5 s".
double parse_bandwidth(std::string_view text);
double parse_seconds(std::string_view text);

}  // namespace het
