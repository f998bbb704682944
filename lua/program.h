// The program: run a recipe, a command, or the prompt. Every error ends here as one sentence and an exit
// code.
#pragma once

#include "lua/gpus.h"

namespace het::lua {

// main() with the GPUs that `--device cuda` means.
int run_program(int argc, char** argv, const Gpus& gpus);

}  // namespace het::lua
