// How fast a snapshot file reaches a disk. usage: disk_speed FOLDER BYTES. Prints one JSON object.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "core/io/file.h"
#include "snapshot/snapshot.h"
#include "snapshot/writer.h"

using namespace het;

int main(int argc, char** argv) {
  try {
    if (argc != 3) fail_usage("usage: disk_speed FOLDER BYTES");
    const int64_t bytes = std::atoll(argv[2]) / 4 * 4;
    SnapshotManifest manifest;
    manifest.version = {1, 1};
    manifest.tensors = {{"w", {DType::f32, {bytes / 4}}, true}};
    const auto read = [](std::byte* to, int64_t begin, int64_t count) {
      std::memset(to, static_cast<int>(begin >> 20 & 255), static_cast<size_t>(count));
    };
    const Path path = snapshot_path(argv[1], manifest);
    const auto began = std::chrono::steady_clock::now();
    write_snapshot(path, manifest, {{"w", TensorSlice::whole({bytes / 4}), read}});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::filesystem::remove(path.text);
    std::printf("{\"bytes\": %lld, \"seconds\": %.4f}\n", static_cast<long long>(bytes), took.count());
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
