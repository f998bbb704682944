// A small state to be saved: tensors of several types, held whole, in parts or not at all.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "snapshot/reader.h"
#include "snapshot/writer.h"

namespace het::testing {

struct SampleState {
  SnapshotManifest manifest;  // without units
  std::map<std::string, Tensor> whole;
  std::vector<SnapshotPart> parts;

  SampleState(uint32_t seed, const std::vector<std::pair<std::string, TensorType>>& tensors) {
    std::mt19937 random(seed);
    manifest.run = "sample";
    manifest.version = {static_cast<int64_t>(seed), 2};
    manifest.history = {{1, 0}, {2, 5}};
    manifest.plan = "het.plan {}";
    manifest.rank = 1;
    manifest.ranks = 4;
    manifest.cursor = 48 * static_cast<int64_t>(seed);
    manifest.seed = -3;
    manifest.about = R"({"precision":"f32"})";
    for (const auto& [name, type] : tensors) {
      Tensor tensor(type);
      for (int64_t i = 0; i < type.bytes(); ++i)
        tensor.bytes()[i] = static_cast<std::byte>(type.dtype == DType::boolean ? random() % 2 : random());
      whole.emplace(name, tensor);
    }
    for (const auto& [name, tensor] : whole)
      manifest.tensors.push_back({name, tensor.type(), name[0] == 'w'});
  }

  void add(const std::string& name, const TensorSlice& slice) {
    const Tensor packed = take(whole.at(name), slice);
    parts.push_back({name, slice, [packed](std::byte* to, int64_t begin, int64_t bytes) {
                       std::memcpy(to, packed.bytes() + begin, static_cast<size_t>(bytes));
                     }});
  }
  void add_all() {
    for (const auto& [name, tensor] : whole) add(name, TensorSlice::whole(tensor.shape()));
  }

  // Whether the file holds what was written.
  bool is_in(const SnapshotFile& file) const {
    if (file.manifest().cursor != manifest.cursor || file.manifest().units.size() != parts.size())
      return false;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Tensor wanted = take(whole.at(parts[i].tensor), parts[i].slice), found = file.read(i);
      if (found.type() != wanted.type() ||
          std::memcmp(found.bytes(), wanted.bytes(), static_cast<size_t>(wanted.type().bytes())) != 0)
        return false;
    }
    return true;
  }
};

}  // namespace het::testing
