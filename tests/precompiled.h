// As core/precompiled.h, with the test framework.
#include <catch2/catch.hpp>

#include "core/precompiled.h"
