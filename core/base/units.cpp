#include "core/base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/base/error.h"

namespace het {
namespace {

// Three significant digits without a trailing ".0".
std::string three_digits(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  std::string text = value >= 9.995 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
  while (text.find('.') != std::string::npos && (text.back() == '0' || text.back() == '.')) {
    const bool dot = text.back() == '.';
    text.pop_back();
    if (dot) break;
  }
  return text;
}

std::string scaled(double value, double base, std::initializer_list<const char*> units) {
  const char* const* unit = units.begin();
  while (std::abs(value) >= base * 0.9995 && unit + 1 != units.end()) {
    value /= base;
    ++unit;
  }
  return three_digits(value) + *unit;
}

// The number at the front of `text`, and what follows it without blanks.
std::pair<double, std::string> split_number(std::string_view text, std::string_view what) {
  double value = 0;
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || !std::isfinite(value) || value < 0) fail_usage("'{}' is not {}", text, what);
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  return {value, unit};
}

}  // namespace

std::string show_bytes(double bytes) {
  return scaled(bytes, 1024, {" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
}

std::string show_count(double count) { return scaled(count, 1000, {"", " k", " M", " G", " T"}); }

std::string show_rate(double rate) {
  return scaled(rate, 1000, {" FLOP/s", " kFLOP/s", " MFLOP/s", " GFLOP/s", " TFLOP/s", " PFLOP/s"});
}

std::string show_seconds(double seconds) {
  if (!(seconds < 0x1p53)) return fmt::format("{:.3g} s", seconds);  // nor can it be rounded to an integer
  if (seconds < 1e-3) return three_digits(seconds * 1e6) + " us";
  if (seconds < 1) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 60) return three_digits(seconds) + " s";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

int64_t parse_bytes(std::string_view text) {
  const auto [value, unit] = split_number(text, "an amount of memory; write for example 2 GiB");
  static constexpr std::array<std::pair<std::string_view, double>, 11> kUnits{{{"", 1},
                                                                               {"B", 1},
                                                                               {"KiB", 1024.0},
                                                                               {"MiB", 1048576.0},
                                                                               {"GiB", 1073741824.0},
                                                                               {"TiB", 1099511627776.0},
                                                                               {"kB", 1e3},
                                                                               {"KB", 1e3},
                                                                               {"MB", 1e6},
                                                                               {"GB", 1e9},
                                                                               {"TB", 1e12}}};
  for (const auto& [name, factor] : kUnits)
    if (name == unit) {
      constexpr double kMost = 0x1p60;
      if (value * factor > kMost)
        fail_usage("'{}' is more memory than there is; 1048576 TiB is the most", text);
      return static_cast<int64_t>(value * factor);
    }
  fail_usage("'{}' has the unknown unit '{}'; known are KiB, MiB, GiB, TiB, kB, MB, GB, TB", text, unit);
}

double parse_rate(std::string_view text) {
  auto [value, unit] = split_number(text, "a rate; write for example 40 GF/s");
  for (const std::string_view ending : {"FLOP/s", "FLOPS", "F/s"})
    if (unit.ends_with(ending)) {
      const std::string prefix = unit.substr(0, unit.size() - ending.size());
      static constexpr std::array<std::pair<std::string_view, double>, 6> kPrefixes{
          {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}}};
      for (const auto& [name, factor] : kPrefixes)
        if (name == prefix) return value * factor;
    }
  fail_usage("'{}' has the unknown unit '{}'; write for example 40 GF/s or 1.2 TFLOP/s", text, unit);
}

double parse_bandwidth(std::string_view text) {
  constexpr const char* kWanted = "a bandwidth such as \"25 GB/s\" or \"100 Gbit/s\"";
  const auto [value, unit] = split_number(text, kWanted);
  static const std::pair<const char*, double> units[] = {
      {"B/s", 1},      {"kB/s", 1e3},   {"MB/s", 1e6},      {"GB/s", 1e9},      {"TB/s", 1e12},
      {"bit/s", .125}, {"kbit/s", 125}, {"Mbit/s", 1.25e5}, {"Gbit/s", 1.25e8}, {"Tbit/s", 1.25e11}};
  for (const auto& [name, factor] : units)
    if (unit == name) return value * factor;
  fail_usage("'{}' is not {}", text, kWanted);
}

double parse_seconds(std::string_view text) {
  constexpr const char* kWanted = "a time such as \"5 us\", \"1.5 s\" or \"10 min\"";
  const auto [value, unit] = split_number(text, kWanted);
  static const std::pair<const char*, double> units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3},
                                                         {"s", 1},     {"min", 60},  {"h", 3600}};
  for (const auto& [name, factor] : units)
    if (unit == name) return value * factor;
  fail_usage("'{}' is not {}", text, kWanted);
}

}  // namespace het
