#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  // The stand-in for NCCL: of the build, or where the archive is unpacked. Set before there are threads.
  fs::path libraries = HET_EMULATED_LIBRARIES;
  if (!fs::exists(libraries)) libraries = fs::canonical("/proc/self/exe").parent_path() / "../lib/emulated";
  ::setenv("HETRUN_CUDA_LIBRARIES", libraries.c_str(), 1);
  return Catch::Session().run(argc, argv);
}
