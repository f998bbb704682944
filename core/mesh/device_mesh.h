// A device mesh: the ranks of a run in a grid whose axes have names, such as data and model. Tensors are
// distributed over it (core/mesh/distributed_tensor.h); collectives run along one of its axes, between the
// ranks that differ in that coordinate alone.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/groups.h"
#include "core/mesh/agreement.h"
#include "core/tensor/tensor.h"

namespace het {

struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

// How ranks are laid out. Places are numbered row-major, the last axis fastest.
struct MeshLayout {
  std::vector<MeshAxis> axes;
  std::vector<int> ranks;  // who is at each place, every rank of the run once; empty: in their order
  std::vector<std::string> devices;  // their names, as a plan would call them: "a:0"; empty: they have none
};

struct MeshEager;

class DeviceMesh {
 public:
  // Every rank makes the mesh alike, at the same place, and waits for the others. `groups` and `agreement`
  // are null where the run has one rank. `eager` runs operators on tensors of this mesh alone. Throws
  // Error(usage) when the axes do not have as many places as the run has ranks.
  DeviceMesh(std::shared_ptr<Groups> groups, std::shared_ptr<Agreement> agreement,
             std::shared_ptr<MeshEager> eager, MeshLayout layout);

  const std::vector<MeshAxis>& axes() const { return layout_.axes; }
  int size() const { return static_cast<int>(layout_.ranks.size()); }
  const std::vector<int>& ranks() const { return layout_.ranks; }              // by place
  const std::vector<std::string>& devices() const { return layout_.devices; }  // by place; empty: no names
  int place() const { return place_; }                                         // this rank's
  MeshEager& eager() const { return *eager_; }

  int axis_named(std::string_view name) const;  // throws Error(usage) naming the nearest one
  int coordinate(int place, int axis) const;
  // The places that differ from `place` along `axis` alone, by their coordinate there; axis -1: all places.
  std::vector<int> along(int place, int axis) const;
  // Between this rank's places along an axis, or all (-1); null when that is this rank alone.
  Communicator* group(int axis) const { return groups_of_[static_cast<size_t>(axis + 1)]; }

  // See Agreement::on(); nothing where the run has one rank.
  void agree_on(const std::string& what, const std::string& detail = "") const;

 private:
  std::shared_ptr<Groups> groups_;
  std::shared_ptr<Agreement> agreement_;
  std::shared_ptr<MeshEager> eager_;
  MeshLayout layout_;
  int place_ = 0;
  std::vector<Communicator*> groups_of_;  // of all, then of each axis
};

// "mesh { data = 2, model = 4 }", with devices by name, or ranks that are not in their order.
std::string to_string(const DeviceMesh& mesh);

// Collectives along an axis on what each rank has, at once: `own` is packed, and so is the result. `label`
// names the tensor in messages. A group of one rank copies its operand.
Tensor all_reduce(const DeviceMesh& mesh, int axis, const Tensor& own, Reduction reduction,
                  const std::string& label);
// [elements of all], from the elements of each; counts by rank of the group.
Tensor all_gather(const DeviceMesh& mesh, int axis, const Tensor& own, const std::vector<int64_t>& counts,
                  const std::string& label);
// [counts of this rank], from one block for each rank.
Tensor reduce_scatter(const DeviceMesh& mesh, int axis, const Tensor& blocks,
                      const std::vector<int64_t>& counts, const std::string& label);
// [elements from all], from blocks by receiver; counts[from * size + to].
Tensor all_to_all(const DeviceMesh& mesh, int axis, const Tensor& blocks, const std::vector<int64_t>& counts,
                  const std::string& label);
// What the rank at coordinate `from` has.
Tensor broadcast(const DeviceMesh& mesh, int axis, const Tensor& own, int from, const std::string& label);
// The operand of the rank at coordinate `from` on the rank at `to`; the others take no part and get nothing.
Tensor transfer(const DeviceMesh& mesh, int axis, const Tensor& own, int from, int to,
                const std::string& label);

}  // namespace het
