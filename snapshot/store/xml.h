// The XML that S3 servers answer with: elements and their texts. Answers come from strangers: what is not
// plain, well-formed XML is refused, and so are document types and entities of their own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace het {

struct XmlElement {
  std::string name;  // without a namespace
  std::string text;  // of an element without children
  std::vector<XmlElement> children;

  const XmlElement* child(std::string_view wanted) const;  // the first; null: none
  std::string text_of(std::string_view wanted) const;      // of the first child; empty: none
};

// The root of a document; nullopt: it is not well-formed, deeper than 16 elements, or in another encoding
// than UTF-8.
std::optional<XmlElement> parse_xml(std::string_view document);
// For the texts of elements.
std::string escape_xml(std::string_view text);

}  // namespace het
