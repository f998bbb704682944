// hetrun.
#include "lua/program.h"

int main(int argc, char** argv) { return het::lua::run_program(argc, argv, het::lua::cuda_gpus()); }
