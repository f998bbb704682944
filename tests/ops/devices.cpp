#include "tests/ops/devices.h"

#include "kernels/cpu/device.h"
#include "kernels/reference/device.h"
#include "tests/emulated_cuda/device.h"

namespace het::ops_test {

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = [] {
    std::vector<Subject> list{{"reference", make_reference_device()}};
    for (const std::string& set : cpu_instruction_sets())
      list.push_back({"cpu " + set, make_cpu_device(set)});
#ifndef __SANITIZE_THREAD__  // the thread sanitizer knows nothing of fibers
    list.push_back({"cuda, emulated", cuda_emulated::make_device()});
#endif
    return list;
  }();
  return all;
}

}  // namespace het::ops_test
