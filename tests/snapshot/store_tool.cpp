// Object stores by hand, for tests/snapshot/s3.py and for measuring: one call of the library for each
// command. usage: store_tool [--part=BYTES] [--connections=N] [--stall=MS] COMMAND URL ...
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "snapshot/collect.h"
#include "snapshot/upload.h"
#include "snapshot/writer.h"

using namespace het;

namespace {

using Words = std::vector<std::string>;

// Rank `rank` of `ranks` has a share of the rows of each tensor; the bytes follow from the step.
void write_sample(const std::string& folder, int64_t step, int rank, int ranks) {
  const Shape shape{64, 30'000};
  SnapshotManifest manifest;
  manifest.run = "sample";
  manifest.version = {step, 1};
  manifest.history = {{1, 0}};
  manifest.rank = rank;
  manifest.ranks = ranks;
  manifest.tensors = {{"a", {DType::f32, shape}, true}, {"b", {DType::f32, shape}, false}};
  std::vector<SnapshotPart> parts;
  for (const char* name : {"a", "b"}) {
    const TensorSlice slice = TensorSlice::whole(shape).narrowed(0, share_of(shape[0], ranks, rank));
    parts.push_back({name, slice, [step, rank, name](std::byte* to, int64_t begin, int64_t bytes) {
                       for (int64_t i = 0; i < bytes; ++i)
                         to[i] = static_cast<std::byte>((begin + i) * (2 * step + 1) + rank + name[0]);
                     }});
  }
  const Path path = snapshot_path(folder, manifest);
  write_snapshot(path, manifest, parts);
  fmt::print("{}\n", path.text);
}

void read_newest(const std::shared_ptr<ObjectStore>& store) {
  std::vector<std::string> passed_over;
  const Snapshot snapshot = open_snapshot(store, {}, &passed_over);
  for (const std::string& sentence : passed_over) fmt::print("passed over: {}\n", sentence);
  for (const SnapshotTensor& tensor : snapshot.manifest().tensors) {
    const Tensor whole = snapshot.read(tensor.name, TensorSlice::whole(tensor.type.shape));
    fmt::print("step {} {} {:08x}\n", snapshot.manifest().version.step, tensor.name,
               crc32c(whole.bytes(), whole.type().bytes()));
  }
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void measure(ObjectStore& store, const std::string& key, const std::string& file) {
  auto begin = std::chrono::steady_clock::now();
  store.put(key, file);
  const double up = seconds_since(begin);
  std::vector<std::byte> content(static_cast<size_t>(store.size(key).value()));
  std::memset(content.data(), 1, content.size());  // pages are there
  begin = std::chrono::steady_clock::now();
  store.get_range(key, 0, content);
  const double down = seconds_since(begin), megabytes = static_cast<double>(content.size()) / 1e6;
  fmt::print("up {:.3f} s {:.0f} MB/s, down {:.3f} s {:.0f} MB/s\n", up, megabytes / up, down,
             megabytes / down);
}

void run(const std::string& command, const std::string& url, const Words& words, const StoreAccess& access) {
  const auto number = [&](size_t i) { return std::stoll(words.at(i)); };
  if (command == "sample")
    return write_sample(url, number(0), static_cast<int>(number(1)), static_cast<int>(number(2)));
  const std::shared_ptr<ObjectStore> store = open_store(url, access);
  if (command == "put") {
    fmt::print("{}\n", store->put(words.at(0), words.at(1), words.size() > 2));
  } else if (command == "get") {
    std::vector<std::byte> content(static_cast<size_t>(number(3)));
    store->get_range(words.at(0), number(2), content);
    std::ofstream(words.at(1), std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  } else if (command == "list") {
    for (const StoredObject& object : store->list(words.empty() ? "" : words[0]))
      fmt::print("{} {} {}\n", object.bytes, object.modified, object.key);
  } else if (command == "size") {
    fmt::print("{}\n", store->size(words.at(0)).value_or(-1));
  } else if (command == "remove") {
    store->remove(words.at(0));
  } else if (command == "unfinished") {
    for (const std::string& key : store->remove_unfinished(std::chrono::seconds(number(0))))
      fmt::print("{}\n", key);
  } else if (command == "upload") {
    for (const UploadedFile& file : upload(*store, {words.begin(), words.end()}))
      fmt::print("{} {} {}\n", file.key, file.bytes, file.was_there ? "was there" : "sent");
  } else if (command == "read") {
    read_newest(store);
  } else if (command == "collect") {
    for (const Version version : collect(store, {.keep = static_cast<int>(number(0))}).removed)
      fmt::print("{}\n", version.step);
  } else if (command == "measure") {
    measure(*store, words.at(0), words.at(1));
  } else {
    fail_usage("there is no command '{}'", command);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Words words(argv + 1, argv + argc);
  StoreAccess access;
  access.first_wait = std::chrono::milliseconds(5);
  access.longest_wait = std::chrono::milliseconds(50);
  try {
    while (!words.empty() && words[0].starts_with("--")) {
      const size_t equals = words[0].find('=');
      const std::string name = words[0].substr(2, equals - 2);
      const long long value = std::stoll(words[0].substr(equals + 1));
      if (name == "part") access.part_bytes = value;
      if (name == "connections") access.connections = static_cast<int>(value);
      if (name == "stall") access.stall = std::chrono::milliseconds(value);
      words.erase(words.begin());
    }
    run(words.at(0), words.at(1), {words.begin() + 2, words.end()}, access);
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", name_of(error.kind()), error.what());
    return static_cast<int>(error.kind());
  }
  return 0;
}
