// The wall clock, and the moments that other machines name by theirs. Only to compare such a moment with now:
// the wall clock can be set back or forward at any time, so elapsed time is measured by the steady clock
// (elapsed.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace het {

// Seconds since 1970-01-01 00:00 UTC of "2017-09-18T08:22:00Z" (ISO 8601; fractions of a second are dropped)
// or of "Mon, 18 Sep 2017 08:22:00 GMT" (RFC 9110). Nothing for any other text, or a day that does not exist.
std::optional<int64_t> parse_utc(std::string_view text);

// Seconds from now until then by the clock of this machine; negative: it is past.
double seconds_until(int64_t utc_seconds);

}  // namespace het
