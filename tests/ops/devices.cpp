#include "tests/ops/devices.h"

#include "kernels/reference/device.h"
#ifdef HET_HAVE_CPU
#include "kernels/cpu/device.h"
#endif

namespace het::ops_test {

const std::vector<std::shared_ptr<Device>>& devices() {
#ifdef HET_HAVE_CPU
  static const std::vector<std::shared_ptr<Device>> all{make_reference_device(), make_cpu_device()};
#else
  static const std::vector<std::shared_ptr<Device>> all{make_reference_device()};
#endif
  return all;
}

}  // namespace het::ops_test
