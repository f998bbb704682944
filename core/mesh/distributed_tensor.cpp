#include "core/mesh/distributed_tensor.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/plan/inventory.h"
#include "core/tensor/packed.h"

namespace het {
namespace {

bool has(const TensorSlice& held, const TensorSlice& part) {
  return part.is_empty() || intersection(held, part) == part;
}

Tensor empty_of(DType dtype, const TensorSlice& slice) { return Tensor(TensorType{dtype, slice.shape()}); }

// The packed elements of `part`, which `held` has.
Tensor cut(const Tensor& local, const TensorSlice& held, const TensorSlice& part) {
  Tensor result = empty_of(local.dtype(), part);
  if (!part.is_empty()) copy(result, part, local.contiguous(), held);
  return result;
}

// Brings one tensor to lie otherwise.
class Redistribution {
 public:
  Redistribution(const DistributedTensor& x, const Placements& to, const std::vector<TensorSlice>& wanted,
                 const std::string& label, std::vector<Travel>* travels)
      : mesh_(*x.mesh), now_(x), to_(to), wanted_(wanted), label_(label), travels_(travels) {}

  DistributedTensor run() {
    const int axes = static_cast<int>(mesh_.axes().size());
    for (int axis = axes - 1; axis >= 0; --axis)
      if (now_.is_partial(axis) && !is_partial(axis)) reduce(axis);
    if (now_.slices != wanted_) move();
    for (int axis = 0; axis < axes; ++axis)
      if (!now_.is_partial(axis) && is_partial(axis) && mesh_.coordinate(mesh_.place(), axis) != 0)
        now_.local = Tensor::zeros(now_.local.type());  // the first has all of it
    now_.placements = to_;
    return std::move(now_);
  }

 private:
  bool is_partial(int axis) const { return to_[static_cast<size_t>(axis)].lies.is_partial(); }
  const TensorSlice& held(int place) const { return now_.slices[static_cast<size_t>(place)]; }
  const TensorSlice& wanted(int place) const { return wanted_[static_cast<size_t>(place)]; }

  void note(const char* collective, int axis, int64_t elements) {
    const int64_t bytes = elements * bytes_of(now_.type.dtype);
    if (travels_ != nullptr && bytes > 0) travels_->push_back({collective, axis, bytes});
  }

  // Summands along an axis become their sum: at once as parts, where what the ranks shall have are parts of
  // what all of them have a summand of. Ranks that need nothing of it take no part.
  void reduce(int axis) {
    bool is_last = true;
    for (int other = 0; other < axis; ++other)  // whose ranks' summands are of what this axis' ranks have
      is_last = is_last && (!now_.is_partial(other) || is_partial(other));
    bool scatters = is_last;
    for (int place = 0; place < mesh_.size() && scatters; ++place) {
      int64_t together = 0;
      for (const int other : mesh_.along(place, axis)) {
        scatters = scatters && has(held(place), wanted(other));
        together += wanted(other).elements();
      }
      scatters = scatters && together <= held(place).elements();
    }
    const std::vector<int> places = mesh_.along(mesh_.place(), axis);
    const auto others = static_cast<int64_t>(places.size()) - 1;
    const bool is_needed =
        !is_last || !has_all() ||
        std::any_of(places.begin(), places.end(), [&](int place) { return !wanted(place).is_empty(); });
    if (!scatters && is_needed) {
      now_.local = all_reduce(mesh_, axis, now_.local, Reduction::sum, label_);
      note("all_reduce", axis, 2 * others * now_.local.elements());
    } else if (scatters) {
      std::vector<int64_t> counts;
      int64_t elements = 0;
      for (const int place : places) {
        counts.push_back(wanted(place).elements());
        elements += counts.back();
      }
      PackedSlices blocks(now_.type.dtype, elements);
      const Tensor local = now_.local.contiguous();
      for (const int place : places) blocks.write(wanted(place), local, now_.slice());
      const Tensor own = reduce_scatter(mesh_, axis, blocks.tensor(), counts, label_);
      now_.local = own.view(Layout::contiguous({own.dtype(), wanted(mesh_.place()).shape()}));
      now_.slices = wanted_;
      note("reduce_scatter", axis, others * elements);
    }
    now_.placements[static_cast<size_t>(axis)].lies = {};
  }

  // Whether each rank has what it shall have.
  bool has_all() const {
    bool all = true;
    for (int place = 0; place < mesh_.size(); ++place) all = all && has(held(place), wanted(place));
    return all;
  }

  void move() {
    if (has_all()) {
      now_.local = cut(now_.local, now_.slice(), wanted(mesh_.place()));
    } else {
      int axis = static_cast<int>(mesh_.axes().size()) - 1;
      while (axis >= 0 && !suffices(axis)) --axis;
      exchange(axis);
    }
    now_.slices = wanted_;
  }

  // Whether the ranks along an axis have together what each of them shall have.
  bool suffices(int axis) const {
    for (int place = 0; place < mesh_.size(); ++place) {
      std::vector<TensorSlice> have;
      for (const int other : mesh_.along(place, axis)) have.push_back(held(other));
      if (!missing(wanted(place), have).empty()) return false;
    }
    return true;
  }

  // What a rank needs, by the place it comes from: the rank itself where it has it.
  std::map<int, std::vector<TensorSlice>> pieces_for(int receiver, const Inventory& inventory) const {
    const auto sources = inventory.sources(label_, wanted(receiver), receiver);
    HET_REQUIRE(sources.has_value(), to_string(now_.type), receiver);
    std::map<int, std::vector<TensorSlice>> pieces;
    for (const Inventory::Source& source : *sources) pieces[source.holder].push_back(source.slice);
    return pieces;
  }

  void exchange(int axis) {
    const std::vector<int> places = mesh_.along(mesh_.place(), axis);
    const int own = mesh_.place();
    if (gather(axis, places)) return;
    Inventory inventory;
    for (const int place : places) inventory.add(label_, {now_.type}, place, held(place));
    std::vector<int64_t> counts(places.size() * places.size(), 0);
    std::vector<TensorSlice> sent, received;
    int64_t sends = 0, travelling = 0;
    std::map<int, std::vector<TensorSlice>> mine;
    for (size_t to = 0; to < places.size(); ++to) {
      const auto pieces = pieces_for(places[to], inventory);
      if (places[to] == own) mine = pieces;
      for (size_t from = 0; from < places.size(); ++from) {
        const auto found = pieces.find(places[from]);
        if (found == pieces.end() || from == to) continue;  // what is here is copied here
        int64_t& count = counts[from * places.size() + to];
        for (const TensorSlice& piece : found->second) {
          count += piece.elements();
          if (places[from] == own) sent.push_back(piece);
        }
        travelling += count;
        if (places[from] == own) sends += count;
      }
    }
    PackedSlices blocks(now_.type.dtype, sends);
    const Tensor local = now_.local.contiguous();
    for (const TensorSlice& piece : sent) blocks.write(piece, local, held(own));
    PackedSlices arrived(all_to_all(mesh_, axis, blocks.tensor(), counts, label_));
    Tensor result = empty_of(now_.type.dtype, wanted(own));
    if (!mine[own].empty()) copy(result, wanted(own), local, held(own));
    mine.erase(own);
    for (const int from : places)
      for (const TensorSlice& piece : mine[from]) arrived.read(piece, result, wanted(own));
    now_.local = result;
    note("all_to_all", axis, travelling);
  }

  // Where every rank shall have what all have, and they have it once.
  bool gather(int axis, const std::vector<int>& places) {
    std::vector<int64_t> counts;
    int64_t elements = 0;
    for (const int place : places) {
      for (const int other : places)
        if (!has(wanted(other), held(place)) ||
            (other != place && intersection(held(place), held(other)).has_value()))
          return false;
      counts.push_back(held(place).elements());
      elements += counts.back();
    }
    PackedSlices all(all_gather(mesh_, axis, now_.local, counts, label_));
    Tensor result = empty_of(now_.type.dtype, wanted(mesh_.place()));
    for (const int place : places) all.read(held(place), result, wanted(mesh_.place()));
    now_.local = result;
    note("all_gather", axis, (static_cast<int64_t>(places.size()) - 1) * elements);
    return true;
  }

  const DeviceMesh& mesh_;
  DistributedTensor now_;
  const Placements& to_;
  const std::vector<TensorSlice>& wanted_;
  const std::string& label_;
  std::vector<Travel>* travels_;
};

}  // namespace

AxisPlacement sharded_by(const Shape& shape, int64_t dim, Shares shares) {
  AxisPlacement placement;
  placement.units = shape[static_cast<size_t>(dim)];
  placement.lies = {Placement::Kind::sharded, static_cast<int>(dim), dim, {placement.units}};
  placement.shares = std::move(shares);
  return placement;
}

std::optional<std::vector<TensorSlice>> slices_of(const DeviceMesh& mesh, const Shape& shape,
                                                  const Placements& placements) {
  std::vector<TensorSlice> slices;
  for (int place = 0; place < mesh.size(); ++place) {
    TensorSlice slice = TensorSlice::whole(shape);
    std::map<int, int64_t> units;  // left, of logical axes that are cut
    for (size_t a = 0; a < placements.size(); ++a) {
      const auto& [lies, all_units, shares] = placements[a];
      if (!lies.is_sharded()) continue;
      const int64_t left = units.emplace(lies.axis, all_units).first->second;
      const std::vector<int64_t> points = cut_points(left, shares);
      const auto part = static_cast<size_t>(mesh.coordinate(place, static_cast<int>(a)));
      const Range own{points[part], points[part + 1]};
      Ranges keep;
      int64_t segment = 0, start = 0;  // in the whole, and in what the slice has
      for (const int64_t size : lies.segments) {
        const int64_t here = size_of(intersection(slice.ranges(lies.dim), {{segment, segment + size}}));
        if (left > 0 && here % left != 0) return std::nullopt;
        const int64_t granule = left > 0 ? here / left : 0;
        if (own.size() > 0 && granule > 0) {
          if (!keep.empty() && keep.back().end == start + own.begin * granule)
            keep.back().end = start + own.end * granule;
          else
            keep.push_back({start + own.begin * granule, start + own.end * granule});
        }
        segment += size;
        start += here;
      }
      slice = nested(slice, TensorSlice::whole(slice.shape()).narrowed(lies.dim, keep));
      units[lies.axis] = own.size();
    }
    slices.push_back(std::move(slice));
  }
  return slices;
}

DistributedTensor replicated(std::shared_ptr<const DeviceMesh> mesh, const Tensor& whole) {
  Placements placements(mesh->axes().size());
  std::vector<TensorSlice> slices(static_cast<size_t>(mesh->size()), TensorSlice::whole(whole.shape()));
  return {std::move(mesh), whole.type(), std::move(placements), std::move(slices), whole};
}

DistributedTensor redistribute(const DistributedTensor& x, const Placements& to, const std::string& label,
                               std::vector<Travel>* travels) {
  const auto wanted = slices_of(*x.mesh, x.type.shape, to);
  HET_REQUIRE(wanted.has_value(), to_string(x.type));
  return redistribute(x, to, *wanted, label, travels);
}

DistributedTensor redistribute(const DistributedTensor& x, const Placements& to,
                               const std::vector<TensorSlice>& wanted, const std::string& label,
                               std::vector<Travel>* travels) {
  return Redistribution(x, to, wanted, label, travels).run();
}

Tensor gather(const DistributedTensor& x) {
  return redistribute(x, Placements(x.placements.size()), "a tensor that is gathered").local;
}

std::string describe_placements(const DistributedTensor& x) {
  std::string text;
  for (size_t a = 0; a < x.placements.size(); ++a) {
    const auto& [lies, units, shares] = x.placements[a];
    const bool equal =
        std::all_of(shares.begin(), shares.end(), [&](int64_t share) { return share == shares[0]; });
    std::string way = lies.is_partial() ? "partial" : lies.is_sharded() ? "" : "replicated";
    if (lies.is_sharded())
      way =
          fmt::format("dim {}{}{}", lies.dim, equal ? "" : fmt::format(" {}", fmt::join(shares, ":")),
                      lies.segments.size() == 1 ? "" : fmt::format(" in {} segments", lies.segments.size()));
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", x.mesh->axes()[a].name, way);
  }
  return text;
}

namespace {

// "rank 3", "ranks 0 2", or the names of the devices.
std::string name_of_places(const DeviceMesh& mesh, const std::vector<int>& places) {
  std::string text = mesh.devices().empty() ? places.size() == 1 ? "rank" : "ranks" : "";
  for (const int place : places) {
    const auto p = static_cast<size_t>(place);
    text += text.empty() ? "" : " ";
    text += mesh.devices().empty() ? fmt::to_string(mesh.ranks()[p]) : mesh.devices()[p];
  }
  return text;
}

}  // namespace

std::string picture(const DistributedTensor& x) {
  const Shape& shape = x.type.shape;
  std::vector<size_t> dims;  // that are cut
  for (size_t d = 0; d < shape.size(); ++d)
    if (std::any_of(x.slices.begin(), x.slices.end(),
                    [&](const TensorSlice& slice) { return slice.shape()[d] != shape[d]; }))
      dims.push_back(d);
  if (dims.empty()) return "";
  std::vector<std::vector<int64_t>> points;  // where a dimension is cut
  for (const size_t d : dims) {
    std::set<int64_t> found{0, shape[d]};
    for (const TensorSlice& slice : x.slices)
      for (const Range& range : slice.ranges(static_cast<int64_t>(d))) found.insert({range.begin, range.end});
    points.emplace_back(found.begin(), found.end());
  }
  constexpr size_t kMostCells = 8;
  if (dims.size() > 2 || points[0].size() > kMostCells + 1 || points.back().size() > kMostCells + 1) {
    std::string text;
    for (int place = 0; place < x.mesh->size(); ++place)
      text += fmt::format("{}: {}\n", name_of_places(*x.mesh, {place}),
                          to_string(x.slices[static_cast<size_t>(place)]));
    return text;
  }
  // One dimension stands in a row, two in rows and columns.
  const bool flat = dims.size() == 1;
  const std::vector<int64_t> rows = flat ? std::vector<int64_t>{0, 1} : points[0];
  const std::vector<int64_t>& columns = points.back();
  std::vector<std::vector<std::string>> cells{{flat ? "" : fmt::format("dim {} \\ {}", dims[0], dims[1])}};
  if (flat) cells[0][0] = fmt::format("dim {}", dims[0]);
  for (size_t c = 0; c + 1 < columns.size(); ++c)
    cells[0].push_back(fmt::format("{}:{}", columns[c], columns[c + 1]));
  for (size_t r = 0; r + 1 < rows.size(); ++r) {
    cells.push_back({flat ? "" : fmt::format("{}:{}", rows[r], rows[r + 1])});
    for (size_t c = 0; c + 1 < columns.size(); ++c) {
      TensorSlice cell = TensorSlice::whole(shape).narrowed(static_cast<int64_t>(dims.back()),
                                                            Range{columns[c], columns[c + 1]});
      if (!flat) cell = cell.narrowed(static_cast<int64_t>(dims[0]), Range{rows[r], rows[r + 1]});
      std::vector<int> holders;  // places
      for (int place = 0; place < x.mesh->size(); ++place)
        if (intersection(x.slices[static_cast<size_t>(place)], cell).has_value()) holders.push_back(place);
      cells.back().push_back(name_of_places(*x.mesh, holders));
    }
  }
  std::vector<size_t> widths(cells[0].size(), 0);
  for (const auto& row : cells)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const auto& row : cells) {
    for (size_t c = 0; c < row.size(); ++c)
      text += fmt::format("{}{:<{}}", c == 0 ? "" : " | ", row[c], widths[c]);
    text += "\n";
  }
  return text;
}

}  // namespace het
