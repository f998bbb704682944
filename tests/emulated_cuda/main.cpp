// hetrun as the tests run it: `--device cuda` is the emulated GPU. Built for the tests alone.
#include "lua/program.h"
#include "tests/emulated_cuda/device.h"

int main(int argc, char** argv) {
  using namespace het;
  return lua::run_program(argc, argv,
                          {[] { return 1; }, [](int ordinal) { return cuda_emulated::make_device(ordinal); },
                           [] {
                             return Json::Object{{"why_none", "this program emulates one"}};
                           }});
}
