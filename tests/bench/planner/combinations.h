// The clusters and models of combinations.json as requests.
#pragma once

#include <string>

#include <fmt/core.h>

#include "core/io/json.h"
#include "planner/request.h"

namespace het::planner {

// Nodes as [type, devices in each host, hosts].
inline Request request_of(const Json& combination, const std::string& model, int batch) {
  Request request;
  char name = 'a';
  for (const Json& node : *as_array(combination)) {
    const Json::array_t& field = *as_array(node);
    request.cluster.nodes.push_back(known_machine(std::string(1, name++), *as_string(field[0]),
                                                  static_cast<int>(*as_integer(field[1])),
                                                  static_cast<int>(*as_integer(field[2]))));
  }
  add_known_types(request.cluster);
  request.cluster.between = {20e-6, 50e9};
  request.model = known_model(model);
  request.batch = batch;
  return request;
}

// "8 A100-80 + 16 H20".
inline std::string title_of(const Cluster& cluster) {
  std::string title;
  for (const Machine& node : cluster.nodes)
    title += fmt::format("{}{} {}", title.empty() ? "" : " + ",
                         node.devices * static_cast<int>(node.hosts.size()), node.type);
  return title;
}

// visit(request) for each combination with each of the file's models and batches.
template <typename Visit>
void each_combination(const Json& file, const Visit& visit) {
  for (const Json& combination : *as_array(find_member(file, "combinations")))
    for (const Json& entry : *as_array(find_member(file, "models"))) {
      const Json::array_t& model = *as_array(entry);
      visit(request_of(combination, *as_string(model[0]), static_cast<int>(*as_integer(model[1]))));
    }
}

}  // namespace het::planner
