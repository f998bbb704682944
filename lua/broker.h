// A process that opens files for a confined one. Before recipe code runs, hetrun starts it, then gives up its
// own rights to files (lua/confine.h): from then on each path travels to the broker, which knows what the
// recipe was given (RecipeFiles), and an open descriptor travels back. Data never does: reading and writing
// cost what they always cost.
#pragma once

#include <memory>

#include "lua/recipe_files.h"

namespace het::lua {

// Start the broker, which owns `files` from here on. It ends with this process. Call it while the process has
// one thread. Closes what else is open here but the descriptor `kept`; negative: none. Throws
// Error(environment).
std::shared_ptr<RecipeAccess> start_broker(std::unique_ptr<RecipeFiles> files, int kept);

}  // namespace het::lua
