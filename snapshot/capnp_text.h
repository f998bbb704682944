#pragma once

#include <string>

#include <kj/string.h>

namespace het {

// As messages take it, without a copy.
inline kj::StringPtr text_of(const std::string& text) { return {text.data(), text.size()}; }

}  // namespace het
