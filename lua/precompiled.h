// As core/precompiled.h, with what the binding includes nearly everywhere.
#include <nlohmann/json.hpp>

#include "core/precompiled.h"
