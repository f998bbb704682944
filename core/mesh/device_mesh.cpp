#include "core/mesh/device_mesh.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/base/nearest.h"

namespace het {
namespace {

Tensor run(Communicator& group, const CollectiveRequest& request, const Tensor& in, Shape out) {
  const Tensor packed = in.contiguous();
  Tensor result(TensorType{request.dtype, std::move(out)});
  run_once(group, request, packed.bytes(), result.bytes());
  return result;
}

CollectiveRequest request_of(CollectiveKind kind, const Tensor& own, std::vector<int64_t> counts,
                             const std::string& label) {
  CollectiveRequest request;
  request.kind = kind;
  request.dtype = own.dtype();
  request.counts = std::move(counts);
  request.label = label;
  return request;
}

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Tensor copy_of(const Tensor& own, Shape shape) {
  return own.clone().view(Layout::contiguous({own.dtype(), std::move(shape)}));
}

}  // namespace

DeviceMesh::DeviceMesh(std::shared_ptr<Groups> groups, std::shared_ptr<Agreement> agreement,
                       std::shared_ptr<MeshEager> eager, MeshLayout layout)
    : groups_(std::move(groups)),
      agreement_(std::move(agreement)),
      eager_(std::move(eager)),
      layout_(std::move(layout)) {
  const int available = groups_ != nullptr ? groups_->size() : 1;
  int64_t places = 1;
  for (const MeshAxis& axis : axes()) {
    if (axis.size < 1) fail_usage("mesh: {} = {}; an axis has 1 rank at least", axis.name, axis.size);
    places *= axis.size;
  }
  if (places != available)
    fail_usage("{} needs {} ranks; this run has {} (hetrun --workers {} starts so many here)",
               to_string(*this), places, available, places);
  std::vector<int>& ranks = layout_.ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(available));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  for (int rank = 0; rank < available; ++rank)
    if (static_cast<int>(sorted.size()) != available || sorted[static_cast<size_t>(rank)] != rank)
      fail_usage("mesh: ranks = {{ {} }}; each of the ranks 0 to {} has one place", fmt::join(ranks, ", "),
                 available - 1);
  if (!devices().empty() && devices().size() != ranks.size())
    fail_usage("mesh: {} names of devices for {} ranks", devices().size(), ranks.size());
  const int own = groups_ != nullptr ? groups_->rank() : 0;
  place_ = static_cast<int>(std::find(ranks.begin(), ranks.end(), own) - ranks.begin());
  agree_on(fmt::format("het.{} over ranks {}", to_string(*this), fmt::join(ranks, ", ")));
  for (int axis = -1; axis < static_cast<int>(axes().size()); ++axis) {
    std::vector<int> members;
    for (const int place : along(place_, axis)) members.push_back(ranks[static_cast<size_t>(place)]);
    groups_of_.push_back(members.size() > 1 ? &groups_->group(members) : nullptr);
  }
}

int DeviceMesh::axis_named(std::string_view name) const {
  std::vector<std::string> names;
  for (size_t a = 0; a < axes().size(); ++a) {
    if (axes()[a].name == name) return static_cast<int>(a);
    names.push_back(axes()[a].name);
  }
  const std::string nearest = nearest_name(std::string(name), names);
  fail_usage("{} has no axis '{}'{}", to_string(*this), name,
             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
}

int DeviceMesh::coordinate(int place, int axis) const {
  for (size_t a = axes().size(); a-- > static_cast<size_t>(axis) + 1;) place /= axes()[a].size;
  return place % axes()[static_cast<size_t>(axis)].size;
}

std::vector<int> DeviceMesh::along(int place, int axis) const {
  std::vector<int> places;
  for (int other = 0; other < size(); ++other) {
    bool differs = false;
    for (int a = 0; a < static_cast<int>(axes().size()) && axis >= 0; ++a)
      differs = differs || (a != axis && coordinate(other, a) != coordinate(place, a));
    if (!differs) places.push_back(other);
  }
  return places;
}

void DeviceMesh::agree_on(const std::string& what, const std::string& detail) const {
  if (agreement_ != nullptr) agreement_->on(what, detail);
}

std::string to_string(const DeviceMesh& mesh) {
  std::string text = "mesh {";
  for (const MeshAxis& axis : mesh.axes())
    text += fmt::format("{} {} = {}", text.ends_with('{') ? "" : ",", axis.name, axis.size);
  const std::vector<int>& ranks = mesh.ranks();
  if (!mesh.devices().empty())
    text += fmt::format(", devices = {{ \"{}\" }}", fmt::join(mesh.devices(), "\", \""));
  else if (!std::is_sorted(ranks.begin(), ranks.end()))
    text += fmt::format(", ranks = {{ {} }}", fmt::join(ranks, ", "));
  return text + " }";
}

Tensor all_reduce(const DeviceMesh& mesh, int axis, const Tensor& own, Reduction reduction,
                  const std::string& label) {
  Communicator* group = mesh.group(axis);
  if (group == nullptr) return copy_of(own, own.shape());
  CollectiveRequest request = request_of(CollectiveKind::all_reduce, own, {own.elements()}, label);
  request.reduction = reduction;
  return run(*group, request, own, own.shape());
}

Tensor all_gather(const DeviceMesh& mesh, int axis, const Tensor& own, const std::vector<int64_t>& counts,
                  const std::string& label) {
  Communicator* group = mesh.group(axis);
  if (group == nullptr) return copy_of(own, {own.elements()});
  return run(*group, request_of(CollectiveKind::all_gather, own, counts, label), own, {sum_of(counts)});
}

Tensor reduce_scatter(const DeviceMesh& mesh, int axis, const Tensor& blocks,
                      const std::vector<int64_t>& counts, const std::string& label) {
  Communicator* group = mesh.group(axis);
  if (group == nullptr) return copy_of(blocks, {blocks.elements()});
  return run(*group, request_of(CollectiveKind::reduce_scatter, blocks, counts, label), blocks,
             {counts[static_cast<size_t>(group->rank())]});
}

Tensor all_to_all(const DeviceMesh& mesh, int axis, const Tensor& blocks, const std::vector<int64_t>& counts,
                  const std::string& label) {
  Communicator* group = mesh.group(axis);
  if (group == nullptr) return copy_of(blocks, {blocks.elements()});
  int64_t elements = 0;
  for (int from = 0; from < group->size(); ++from)
    elements += counts[static_cast<size_t>(from * group->size() + group->rank())];
  return run(*group, request_of(CollectiveKind::all_to_all, blocks, counts, label), blocks, {elements});
}

Tensor broadcast(const DeviceMesh& mesh, int axis, const Tensor& own, int from, const std::string& label) {
  Communicator* group = mesh.group(axis);
  if (group == nullptr) return copy_of(own, own.shape());
  CollectiveRequest request = request_of(CollectiveKind::broadcast, own, {own.elements()}, label);
  request.peer = from;
  return run(*group, request, own, own.shape());
}

Tensor transfer(const DeviceMesh& mesh, int axis, const Tensor& own, int from, int to,
                const std::string& label) {
  const int here = mesh.coordinate(mesh.place(), axis);
  if (here != from && here != to) return {};
  if (from == to) return copy_of(own, own.shape());
  CollectiveRequest request =
      request_of(here == from ? CollectiveKind::send : CollectiveKind::receive, own, {own.elements()}, label);
  request.peer = here == from ? to : from;
  Tensor result = run(*mesh.group(axis), request, own, own.shape());
  return here == to ? result : Tensor();
}

}  // namespace het
