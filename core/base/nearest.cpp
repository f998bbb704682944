#include "core/base/nearest.h"

#include <algorithm>
#include <cctype>
#include <tuple>
#include <utility>

namespace het {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Three rows of the table of distances between prefixes at a time.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  const std::string wanted = lower(word);
  std::string best;
  std::pair<size_t, bool> least;  // edits, and not a name that begins with the word
  for (const std::string& name : names) {
    const std::string offered = lower(name);
    const bool completes = wanted.size() > 1 && offered.starts_with(wanted);
    const bool extends = wanted.starts_with(offered + "_");  // batch_size for batch
    const size_t edits = completes ? 1 : extends ? 2 : edit_distance(wanted, offered);
    // A third of the letters may be wrong, but never more than half of those that were given.
    const size_t most =
        std::min(std::max<size_t>(1, std::max(word.size(), name.size()) / 3), word.size() / 2);
    if (edits > most) continue;
    const std::pair own{edits, !completes};
    if (best.empty() || std::tie(own, name) < std::tie(least, best)) {
      best = name;
      least = own;
    }
  }
  return best;
}

}  // namespace het
