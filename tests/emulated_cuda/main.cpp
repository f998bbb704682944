// hetrun as the tests run it: `--device cuda` is the emulated GPU. Built for the tests alone.
#include "lua/program.h"
#include "tests/emulated_cuda/device.h"

namespace {

// What CUDA could report to `hetrun doctor`: two GPUs, one of them too old, and a library that is missing.
het::Json report() {
  using het::Json;
  const Json::object_t emulated{{"name", "emulated GPU"},   {"capability", "9.0"},
                                {"multiprocessors", 132},   {"memory", 150'000'000'000},
                                {"bus_id", "0000:01:00.0"}, {"clock", 1.98e9},
                                {"memory_clock", 3.2e9},    {"clock_now", 1.2e9},
                                {"memory_clock_now", 0.0},  {"usable", true}};
  const Json::object_t old{{"name", "old GPU"},        {"capability", "7.5"},      {"multiprocessors", 40},
                           {"memory", 16'000'000'000}, {"bus_id", "0000:02:00.0"}, {"clock", 0.0},
                           {"memory_clock", 0.0},      {"clock_now", 0.0},         {"memory_clock_now", 0.0},
                           {"usable", false}};
  const Json::object_t cublas{
      {"name", "cuBLASLt"}, {"path", ""}, {"version", ""}, {"problem", "libcublasLt.so.13 was not found"}};
  const Json::object_t nccl{
      {"name", "NCCL"}, {"path", "/opt/libnccl.so.2"}, {"version", "2.28.3"}, {"problem", ""}};
  const Json::object_t link{{"from", 0}, {"to", 1}, {"peers", true}, {"nvlinks", 18}};
  return Json::object_t{{"gpus", Json::array_t{emulated, old}},
                        {"why_none", ""},
                        {"driver", "13.0"},
                        {"runtime", "13.0"},
                        {"libraries", Json::array_t{cublas, nccl}},
                        {"links", Json::array_t{link}}};
}

}  // namespace

int main(int argc, char** argv) {
  using namespace het;
  return lua::run_program(
      argc, argv,
      {[] { return 1; }, [](int ordinal) { return cuda_emulated::make_device(ordinal); }, &report});
}
