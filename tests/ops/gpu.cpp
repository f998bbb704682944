// The same tests with a GPU as the only device, in a program of their own. Without one they are skipped, in
// words.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>

#include "kernels/cuda/device.h"
#include "tests/ops/devices.h"

namespace het::ops_test {

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all{{"cuda", cuda::make_device()}};
  return all;
}

}  // namespace het::ops_test

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;  // to Meson
  const het::cuda::Found found = het::cuda::find_gpus();
  if (found.gpus.empty()) {
    std::printf("skipped: no GPU (%s)\n", found.why_none.c_str());
    return kSkipped;
  }
  return Catch::Session().run(argc, argv);
}
