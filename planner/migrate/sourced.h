// What ranks need of one version and have not live, and which sources have it, in groups that are few: all of
// one rank that the same sources have. Plain data. Part of plan_recovery.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/migrate/rounds.h"

namespace het::planner {

// Sources by place. Keeps the span.
class SourceTable {
 public:
  // Members are 0 to `members` - 1. `host_of`: empty: each has a host of its own.
  SourceTable(std::span<const StateSource> sources, size_t members, std::span<const int> host_of);

  const StateSource& at(int source) const;
  size_t size() const { return sources_.size(); }
  size_t members() const { return live_.size(); }
  int hosts() const { return hosts_; }
  int host_of(int member) const { return host_of_[static_cast<size_t>(member)]; }
  const std::vector<int>& live() const { return live_; }                       // of each member; -1: none
  int store(int member) const { return store_[static_cast<size_t>(member)]; }  // of a member; -1: none
  // How far a source is from a member that reads it: 0 for live state, then as plan_recovery says, a quarter
  // more over the network.
  double distance(int source, int member) const;
  bool over_network(int source, int member) const;

 private:
  std::span<const StateSource> sources_;
  std::vector<int> host_of_, live_, store_;
  int hosts_ = 0;
};

struct SourcedGroup {
  struct Slice {
    size_t tensor = 0;  // of SourcedVersion::changed
    TensorSlice slice;
    int64_t bytes = 0;
    int64_t rows = 1;  // along the first dimension of the packed slice that is longer than 1
  };
  int to = 0;                // the rank that needs it
  std::vector<int> sources;  // any of which has all of it
  std::vector<Slice> slices;
  int64_t bytes = 0;
};

struct SourcedVersion {
  std::vector<ChangedTensor> changed;
  std::vector<SourcedGroup> groups;
  std::vector<Inventory::Need> missing;  // that no source has; disjoint
  int64_t missing_bytes = 0;
};

// Of a slice, the dimension that its rows are of; 0 where none is longer than 1.
int64_t row_dimension(const TensorSlice& slice);

// `store_may_help`: count the store also for what a nearer source has.
SourcedVersion sourced_version(const SourceTable& sources, const Inventory& inventory, Version version,
                               std::span<const std::vector<StatePart>> needs, bool store_may_help);

}  // namespace het::planner
