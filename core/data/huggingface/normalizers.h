// The steps that change a text before it is cut into words.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/huggingface/finder.h"

namespace het::huggingface {

using Normalizer = std::function<std::string(std::string text)>;

// Throws Error(usage) naming a step that is not supported.
std::vector<Normalizer> normalizers_of(const Part& part);
std::string normalised(const std::vector<Normalizer>& list, std::string_view text);

}  // namespace het::huggingface
