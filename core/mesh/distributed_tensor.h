// A tensor that lies over the ranks of a device mesh: along each axis replicated, sharded or partial. Each
// rank has one slice of it, or a summand of that slice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/range.h"
#include "core/graph/placements.h"
#include "core/mesh/device_mesh.h"
#include "core/tensor/slice.h"
#include "core/tensor/tensor.h"

namespace het {

// How a tensor lies along one axis of a mesh: a Placement with its shares.
struct AxisPlacement {
  Placement lies;     // lies.axis: two mesh axes that cut the same one cut the parts of the first again
  int64_t units = 1;  // of sharded ones: in which the segments are cut
  Shares shares;      // by coordinate
  bool operator==(const AxisPlacement&) const = default;
};
using Placements = std::vector<AxisPlacement>;  // by axis of the mesh

// Dimension `dim` cut in proportion to the shares.
AxisPlacement sharded_by(const Shape& shape, int64_t dim, Shares shares);

// What each place of the mesh has of a tensor that lies so. nullopt where that cannot be: a part of one axis
// has no whole number of another one's units.
std::optional<std::vector<TensorSlice>> slices_of(const DeviceMesh& mesh, const Shape& shape,
                                                  const Placements& placements);

// A value: tensors are never written through it. Its functions are called by every rank alike.
struct DistributedTensor {
  std::shared_ptr<const DeviceMesh> mesh;
  TensorType type;  // of the whole
  Placements placements;
  std::vector<TensorSlice> slices;  // by place
  Tensor local;                     // this rank's

  const TensorSlice& slice() const { return slices[static_cast<size_t>(mesh->place())]; }
  bool is_partial(int axis) const { return placements[static_cast<size_t>(axis)].lies.is_partial(); }
};

// What a redistribution did: "all_gather", along which axis (-1: all ranks), and the bytes that travel, of
// all ranks along it together.
struct Travel {
  std::string collective;
  int axis;
  int64_t bytes;
};

// A tensor that every rank has whole.
DistributedTensor replicated(std::shared_ptr<const DeviceMesh> mesh, const Tensor& whole);
// The same tensor lying otherwise: sums first, then by slices of what is here where that suffices, otherwise
// between the ranks along one axis if they have all of it together, else between all. Moves nothing, and
// copies nothing, when it lies so already. `label` names it in messages; `travels`, if given,
// gets an entry for each collective.
DistributedTensor redistribute(const DistributedTensor& x, const Placements& to,
                               const std::string& label = "", std::vector<Travel>* travels = nullptr);
// The same, where `wanted` says what each place needs: the slices of `to`, or no element on a rank that does
// without.
DistributedTensor redistribute(const DistributedTensor& x, const Placements& to,
                               const std::vector<TensorSlice>& wanted, const std::string& label,
                               std::vector<Travel>* travels);
// All of it, on every rank.
Tensor gather(const DistributedTensor& x);

// "data dim 0, model partial".
std::string describe_placements(const DistributedTensor& x);
// Which rank or device has which part, drawn as a grid of the first two dimensions that are cut.
std::string picture(const DistributedTensor& x);

}  // namespace het
