// Where CUDA's libraries are looked for, and what is said of those that are not there. The file is the same
// for GPUs and for the emulation.
#define HET_CUDA cuda_emulated
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "kernels/cuda/library.h"

using namespace het::cuda_emulated;
namespace fs = std::filesystem;

namespace {

// A separate folder, and a variable of the environment that is put back.
struct Place {
  explicit Place(const char* variable, const std::string& below = "") : variable(variable) {
    folder = fs::temp_directory_path() / ("hetrun-libraries-" + std::to_string(getpid()));
    fs::create_directories(folder / below);
    if (const char* text = std::getenv(variable)) before = text;
    setenv(variable, folder.c_str(), 1);
  }
  ~Place() {
    if (before.empty())
      unsetenv(variable);
    else
      setenv(variable, before.c_str(), 1);
    fs::remove_all(folder);
  }
  const char* variable;
  std::string before;
  fs::path folder;
};

// Of the machine's own libraries one that every program has.
fs::path some_library() {
  const OpenLibrary found = open_library("libm.so.6");
  REQUIRE(found.handle != nullptr);
  return fs::canonical(found.path);
}

}  // namespace

TEST_CASE("a library is found in the folders that HETRUN_CUDA_LIBRARIES names", "[cuda]") {
  const fs::path library = some_library();
  const Place place("HETRUN_CUDA_LIBRARIES");
  fs::create_symlink(library, place.folder / "libhetrun_test.so.13");
  const OpenLibrary found = open_library("libhetrun_test.so.13");
  CHECK(found.handle != nullptr);
  CHECK(found.problem.empty());
}

TEST_CASE("a library is found in the wheels of the Python that is active", "[cuda]") {
  const fs::path library = some_library();
  const std::string below = "lib/python3.11/site-packages/nvidia/cublas/lib";
  const Place place("VIRTUAL_ENV", below);
  const auto folders = library_folders();
  CHECK(std::count(folders.begin(), folders.end(), (place.folder / below).string()) == 1);
  CHECK(open_library("libhetrun_test.so.14").handle == nullptr);
  fs::create_symlink(library, place.folder / below / "libhetrun_test.so.14");
  CHECK(open_library("libhetrun_test.so.14").handle != nullptr);
}

TEST_CASE("of a library that is missing or broken is said what would help", "[cuda]") {
  const Place place("HETRUN_CUDA_LIBRARIES");
  CHECK_THAT(open_library("libhetrun_test.so.15").problem,
             Catch::StartsWith("libhetrun_test.so.15 was not found on the library path") &&
                 Catch::Contains("HETRUN_CUDA_LIBRARIES names the folder"));
  std::ofstream(place.folder / "libhetrun_test.so.15") << "not a library";
  CHECK_THAT(open_library("libhetrun_test.so.15").problem,
             Catch::StartsWith("libhetrun_test.so.15 cannot be opened: " + place.folder.string()));
}
