// The lists that the family files of this folder return. families.cpp, which joins them, is written by
// meson.build.
#pragma once

#include <vector>

#include "core/ops/op.h"

namespace het::ops {

// One list for each family, in the order of meson.build.
std::vector<std::vector<OpDef>> families();

}  // namespace het::ops
