// The values that a file of JSON holds one after the other, unparsed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace het {

struct JsonPiece {
  std::string_view text;
  int64_t line = 0;     // on which it begins, from 1
  int64_t element = 0;  // of the list, from 1; 0: it is a line
};

// The lines of a file that are not empty, or the elements of a file that is one list, also behind a byte
// order mark. Finds where elements begin and end, not whether they are JSON. Throws Error(usage) for a list
// that does not end, has an empty element, or is not all that the file holds. `path`: for messages.
std::vector<JsonPiece> json_pieces(std::string_view text, const std::string& path);

}  // namespace het
