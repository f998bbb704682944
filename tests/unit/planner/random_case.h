// Small random planning problems: 2 to 8 devices of 1 to 3 types with uneven memory, 4 to 12 uneven layers;
// each type in one host and without tensor parallelism. Wide ones: a type of 4, 6 or 8 devices in two hosts,
// and degrees 1 and 2.
#pragma once

#include <algorithm>

#include "core/base/random.h"
#include "planner/request.h"
#include "tests/unit/planner/testing.h"

namespace het::testing {

inline Request random_request(uint64_t seed) {
  uint64_t draws = 0;
  const PhiloxKey key = philox_key(seed, hash_of("planner case"));
  const auto uniform = [&] { return static_cast<double>(uniform_of(philox(key, draws++)[0])); };
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(uniform() * (high - low + 1));
  };
  Request request;
  const int types = between(1, 3);
  int devices = between(std::max(2, types), 8);
  const int layers = between(4, 12);
  Model& model = request.model;
  model = plain_model(layers, 2e7 + 1e8 * uniform(), 2e7 + 3e8 * uniform());
  model.kinds[0].boundary_bytes = 1e5 + 2e6 * uniform();
  LayerKind last = model.kinds[0];
  last.name = "last";
  last.parameters *= 2 * uniform();
  last.forward_flops *= 0.3 + uniform();
  last.input_flops = last.weight_flops = last.forward_flops;
  model.kinds.push_back(last);
  model.layers.back() = 1;
  const double state =
      total_parameters(model) * (model.weight_bytes + model.gradient_bytes + model.optimizer_bytes);
  for (int t = 0; t < types; ++t) {
    const std::string name(1, static_cast<char>('a' + t));
    const int count = t == types - 1 ? devices : between(1, devices - (types - 1 - t));
    devices -= count;
    // From a sixth of the model's state to all of it with room.
    const double gib = state * (0.17 + 1.3 * uniform()) / 1073741824.0 + 0.3;
    DeviceType type = plain_type("type-" + name, 0.4 + 2 * uniform(), gib);
    type.memory_bytes_per_second = 3e11;
    type.inside = {5e-6, 2e10};
    request.cluster.types.push_back(type);
    request.cluster.nodes.push_back(plain_machine(name, type.name, count));
  }
  request.cluster.between = {2e-5, 5e8 + 8e9 * uniform()};
  request.batch = between(2, 5) * 2;
  request.tensors = {1};
  request.microbatches = {1, 2};
  request.extensions.schedules = false;  // exhaustive looks at 1F1B alone
  return request;
}

inline Request wide_random_request(uint64_t seed) {
  Request request = random_request(seed);
  for (Machine& node : request.cluster.nodes)
    if (node.devices > 2 && node.devices % 2 == 0) {
      const std::string name = node.hosts[0];
      node.devices /= 2;
      node.hosts = {name + "1", name + "2"};
    }
  if (std::any_of(request.cluster.nodes.begin(), request.cluster.nodes.end(),
                  [](const Machine& node) { return node.devices > 1; }))
    request.tensors = {1, 2};
  return request;
}

}  // namespace het::testing
