// Inputs for unit tests of the promises that the fuzzers ask for, where no libFuzzer is.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace het::fuzz {

// `input` with one to four changes: a byte, one of `typical`, a piece left out, a piece said twice.
inline std::string mutated(std::string input, std::mt19937& random, std::string_view typical) {
  for (uint32_t change = random() % 4 + 1; change > 0 && !input.empty(); --change) {
    const size_t at = random() % input.size();
    switch (random() % 4) {
      case 0: input[at] = static_cast<char>(random()); break;
      case 1: input[at] = typical[random() % typical.size()]; break;
      case 2: input.erase(at, random() % 8); break;
      default: input.insert(at, input.substr(random() % input.size(), random() % 16));
    }
  }
  return input;
}

// How many of `trials` changed inputs `accepts` takes.
template <typename Accepts>
int accepted(int trials, const std::string& whole, std::mt19937& random, std::string_view typical,
             const Accepts& accepts) {
  int count = 0;
  for (int i = 0; i < trials; ++i) count += accepts(mutated(whole, random, typical)) ? 1 : 0;
  return count;
}

}  // namespace het::fuzz
