// What every fuzzer of JSON asks: any bytes either give a value, which is the same after it was written and
// read again, or an Error of the usage kind.
#pragma once

#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/io/json.h"

namespace het::fuzz {

// True when the text was accepted. Aborts when it breaks the promise.
inline bool json(std::string_view text) {
  Json value;
  try {
    value = parse_json(text, "fuzz");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
  for (const bool lines : {false, true})
    if (parse_json(dump(value, lines), "what was written") != value) std::abort();
  return true;
}

}  // namespace het::fuzz
