#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>

int main(int argc, char** argv) {
  ::setenv("HETRUN_CUDA_LIBRARIES", HET_EMULATED_LIBRARIES, 1);  // before there are threads
  return Catch::Session().run(argc, argv);
}
