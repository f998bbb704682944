#include "planner/lower/gradient_buckets.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>

#include "core/base/error.h"

namespace het {
namespace {

Operand part_of(const Operand& all, int64_t offset, const TensorType& type) {
  Operand part{all.buffer, Layout::contiguous(type)};
  part.layout.offset = offset;
  return part;
}

}  // namespace

// In an order that all members of a group share: layers backwards, as they are completed.
GradientBuckets::GradientBuckets(const Graph& graph, const RankAssignment& assignment,
                                 std::map<ValueId, int> summands, PlaceOf place, ProgramWriter& out)
    : graph_(graph),
      assignment_(assignment),
      place_(std::move(place)),
      out_(out),
      expected_(std::move(summands)) {
  // With a late reduction all layers share a bucket, unless ranks keep parts of them: those are laid out
  // layer by layer.
  const auto order_of = [&](int layer, bool kept) {
    return assignment_.runtime.late_reduction && !kept ? 1 : -layer;
  };
  // The last two: updated by rows, gathered.
  std::map<std::tuple<int, int, DType, bool, bool>, std::vector<ValueId>> keyed;
  for (const auto& [id, gradient] : assignment_.gradients)
    if (gradient.group >= 0)
      keyed[{gradient.group, order_of(gradient.layer, !gradient.kept_by.empty()), graph_.type(id).dtype,
             assignment_.row_updates.count(id) != 0, gradient.gathered}]
          .push_back(id);
  for (auto& [key, gradients] : keyed) {
    const auto [group, layer, dtype, by_rows, gathered] = key;
    make(group, -layer, dtype, std::move(gradients));
  }
  std::map<std::tuple<int, int, DType, bool>, std::vector<RankAssignment::Piece>>
      packed;  // the last: have an owner
  for (const RankAssignment::Piece& piece : assignment_.pieces)
    packed[{piece.group, order_of(piece.layer, piece.owner >= 0), graph_.type(piece.gradient).dtype,
            piece.owner >= 0}]
        .push_back(piece);
  for (auto& [key, pieces] : packed) {
    const auto [group, layer, dtype, kept] = key;
    make_packed(group, -layer, dtype, std::move(pieces));
  }
}

std::string GradientBuckets::name_of(const Graph& graph, int layer) {
  return layer >= 0 ? fmt::format("gradients of layer {}", graph.layers[layer].name) : "gradients";
}

void GradientBuckets::make_packed(int group, int layer, DType dtype,
                                  std::vector<RankAssignment::Piece> pieces) {
  Bucket bucket{group, {}, {}};
  std::stable_sort(
      pieces.begin(), pieces.end(),
      [](const RankAssignment::Piece& a, const RankAssignment::Piece& b) { return a.owner < b.owner; });
  if (pieces[0].owner >= 0) bucket.blocks.assign(assignment_.groups[group].ranks.size(), 0);
  int64_t elements = 0;
  for (const RankAssignment::Piece& piece : pieces) {
    bucket.gradients.push_back(piece.gradient);
    bucket.offsets.push_back(elements);
    elements += piece.elements;
    if (piece.owner >= 0) bucket.blocks[member(group, piece.owner)] += piece.elements;
  }
  bucket.all = out_.add_whole({name_of(graph_, layer), {dtype, {elements}}});
  bucket.pieces = std::move(pieces);
  buckets_.push_back(std::move(bucket));
}

// Which member of a group a rank is.
size_t GradientBuckets::member(int group, int rank) const {
  const std::vector<int>& ranks = assignment_.groups[group].ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  HET_REQUIRE(found != ranks.end(), rank);
  return static_cast<size_t>(found - ranks.begin());
}

// visit(piece, where in the tensor, where in `all`) for each box of a bucket's pieces. `tensor_of`: the
// gradient, or the parameter.
template <typename TensorOf, typename Visit>
void GradientBuckets::each_box(const Bucket& bucket, const Operand& all, const TensorOf& tensor_of,
                               const Visit& visit) {
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Operand tensor = place_(tensor_of(bucket.pieces[i].gradient));
    HET_REQUIRE(tensor.layout.is_contiguous(), out_.buffer(bucket.all).name);
    int64_t offset = bucket.offsets[i];
    for (Layout box : bucket.pieces[i].places) {
      box.type.dtype = tensor.layout.type.dtype;
      const Operand packed = part_of(all, offset, box.type);
      offset += box.type.elements();
      box.offset += tensor.layout.offset;
      visit(bucket.pieces[i], Operand{tensor.buffer, std::move(box)}, packed);
    }
  }
}

void GradientBuckets::pack(const Bucket& bucket) {
  Node node;
  node.phase = Phase::backward;
  each_box(bucket, bucket.all, std::identity(),
           [&](const RankAssignment::Piece& piece, const Operand& own, const Operand& packed) {
             if (piece.counts)
               out_.copy(node, own, packed, -1);
             else
               out_.fill(node, packed, 0);
           });
}

void GradientBuckets::unpack(const Bucket& bucket) {
  Node node;
  node.phase = Phase::update;
  each_box(bucket, bucket.all, std::identity(),
           [&](const RankAssignment::Piece& piece, const Operand& own, const Operand& packed) {
             if (piece.owner < 0 || piece.owner == assignment_.rank) out_.copy(node, packed, own, -1);
           });
}

void GradientBuckets::make(int group, int layer, DType dtype, std::vector<ValueId> gradients) {
  constexpr int64_t kAligned = 16;  // elements
  const auto kept_by = [&](ValueId id) -> const std::vector<KeptRows>& {
    return assignment_.gradients.at(id).kept_by;
  };
  const bool divided = !kept_by(gradients[0]).empty();
  if (divided)
    std::stable_sort(gradients.begin(), gradients.end(),
                     [&](ValueId a, ValueId b) { return kept_by(a).front().rank < kept_by(b).front().rank; });
  Bucket bucket{group, {}, gradients};
  if (divided) bucket.blocks.assign(assignment_.groups[group].ranks.size(), 0);
  int64_t elements = 0;
  bool gaps = false;
  for (const ValueId id : gradients) {
    bucket.offsets.push_back(elements);
    const int64_t own = graph_.type(id).elements(), padded = (own + kAligned - 1) / kAligned * kAligned;
    gaps = gaps || own != padded || expected_.count(id) == 0;
    elements += padded;
    for (const KeptRows& kept : kept_by(id))
      bucket.blocks[member(group, kept.rank)] +=
          rows_of(Layout::contiguous(graph_.type(id)), id, kept.rows).type.elements();
    if (divided) bucket.blocks[member(group, kept_by(id).back().rank)] += padded - own;
  }
  bucket.all = out_.add_whole({name_of(graph_, layer), {dtype, {elements}}});
  if (assignment_.gradients.at(gradients[0]).gathered && !divided) {
    const auto members = static_cast<int64_t>(assignment_.groups[group].ranks.size());
    for (int64_t m = 0; m < members; ++m) bucket.copies.push_back(share_of(elements, members, m).size());
  }
  for (size_t i = 0; i < gradients.size(); ++i)
    places_.push_back({gradients[i], part_of(bucket.all, bucket.offsets[i], graph_.type(gradients[i])),
                       expected_.count(gradients[i]) != 0});
  if (gaps) unclean_.push_back(bucket.all);
  buckets_.push_back(std::move(bucket));
}

// Where rows of a gradient lie, or of its parameter.
Layout GradientBuckets::rows_of(const Layout& all, ValueId gradient, Range rows) const {
  if (assignment_.row_updates.count(gradient) == 0) return all;  // whole tensors
  return sliced(all, assignment_.gradients.at(gradient).row_dim, rows.begin, rows.size());
}

// This rank's block of a bucket.
Operand GradientBuckets::own_block(const Bucket& bucket, const Operand& all,
                                   const std::vector<int64_t>& blocks) const {
  const size_t own = member(bucket.group, assignment_.rank);
  const int64_t offset =
      std::accumulate(blocks.begin(), blocks.begin() + static_cast<int64_t>(own), int64_t{0});
  return part_of(all, offset, {all.layout.type.dtype, {blocks[own]}});
}

void GradientBuckets::begin_step() {
  for (const Operand& bucket : unclean_) out_.fill(Node{}, bucket, 0);
  if (!assignment_.runtime.late_reduction) start_complete();
}

void GradientBuckets::end_backward() {
  if (assignment_.runtime.late_reduction) start_complete();
}

void GradientBuckets::note_summand(ValueId gradient) {
  const auto found = expected_.find(gradient);
  if (found == expected_.end() || --found->second > 0 || assignment_.gradients.count(gradient) == 0) return;
  if (!assignment_.runtime.late_reduction) start_complete();
}

bool GradientBuckets::is_complete(const Bucket& bucket) const {
  return std::all_of(bucket.gradients.begin(), bucket.gradients.end(), [&](ValueId id) {
    const auto found = expected_.find(id);
    return found == expected_.end() || found->second <= 0;
  });
}

// Start what is complete; within a group never out of order.
void GradientBuckets::start_complete() {
  std::set<int> held;
  for (Bucket& bucket : buckets_) {
    if (bucket.start >= 0 || held.count(bucket.group) != 0) continue;
    if (!is_complete(bucket)) {
      held.insert(bucket.group);
      continue;
    }
    pack(bucket);
    if (bucket.pieces.empty() && !bucket.blocks.empty() &&
        assignment_.gradients.at(bucket.gradients[0]).gathered)
      bucket.awaited = true;  // each member updates rows by its copy
    else
      bucket.start = start(bucket);
  }
}

int GradientBuckets::start(const Bucket& bucket) {
  const std::string name = out_.buffer(bucket.all).name;
  if (!bucket.copies.empty()) {
    CollectiveRequest gather = request_for(CollectiveKind::all_gather, bucket.all, name);
    gather.counts = bucket.copies;
    return out_.start({bucket.group, std::move(gather), own_block(bucket, bucket.all, bucket.copies),
                       bucket.all, Phase::backward});
  }
  clear_copies(bucket);
  if (bucket.blocks.empty())
    return out_.start({bucket.group, request_for(CollectiveKind::all_reduce, bucket.all, name), bucket.all,
                       bucket.all, Phase::backward});
  CollectiveRequest scatter = request_for(CollectiveKind::reduce_scatter, bucket.all, name);
  scatter.counts = bucket.blocks;
  return out_.start({bucket.group, std::move(scatter), bucket.all,
                     own_block(bucket, bucket.all, bucket.blocks), Phase::backward});
}

void GradientBuckets::clear_copies(const Bucket& bucket) {
  Node node;
  node.phase = Phase::backward;
  for (size_t i = 0; i < bucket.gradients.size() && bucket.pieces.empty(); ++i)
    if (assignment_.gradients.at(bucket.gradients[i]).gives_none)
      out_.fill(node, part_of(bucket.all, bucket.offsets[i], graph_.type(bucket.gradients[i])), 0);
}

void GradientBuckets::await(ValueId gradient) {
  for (Bucket& bucket : buckets_) {
    const auto& gradients = bucket.gradients;
    if (bucket.awaited || std::find(gradients.begin(), gradients.end(), gradient) == gradients.end())
      continue;
    HET_REQUIRE(bucket.start >= 0, out_.buffer(bucket.all).name);
    out_.await(bucket.start);
    bucket.awaited = true;
    unpack(bucket);
  }
}

void GradientBuckets::share_parameters() {
  Node node;
  node.phase = Phase::update;
  struct Gather {
    const Bucket* bucket;
    Operand all;
    int start;
  };
  std::vector<Gather> gathers;
  for (const Bucket& bucket : buckets_) {
    if (bucket.blocks.empty()) continue;
    std::string name = out_.buffer(bucket.all).name;
    name.replace(0, std::string_view("gradients").size(), "parameters");
    const Operand all = out_.add_whole({name, bucket.all.layout.type});
    const Operand block = own_block(bucket, all, bucket.blocks);
    // What pads tensors is zero; of an empty block, that it is written.
    if (bucket.pieces.empty() || block.layout.type.elements() == 0)
      out_.fill(node, bucket.pieces.empty() ? all : block, 0);
    each_parameter(bucket, all, [&](int owner, const Operand& own, const Operand& packed) {
      if (owner == assignment_.rank) out_.copy(node, own, packed, -1);
    });
    CollectiveRequest gather = request_for(CollectiveKind::all_gather, all, name);
    gather.counts = bucket.blocks;
    gathers.push_back(
        {&bucket, all, out_.start({bucket.group, std::move(gather), block, all, Phase::update})});
  }
  for (const auto& [bucket, all, start] : gathers) {
    out_.await(start);
    each_parameter(*bucket, all, [&](int owner, const Operand& own, const Operand& packed) {
      if (owner != assignment_.rank) out_.copy(node, packed, own, -1);
    });
  }
}

// visit(owner, where in the parameter, where in `all`) for each part of the parameters of a bucket.
void GradientBuckets::each_parameter(const Bucket& bucket, const Operand& all, const VisitPart& visit) {
  const auto parameter_of = [&](ValueId gradient) { return assignment_.gradients.at(gradient).parameter; };
  each_box(bucket, all, parameter_of,
           [&](const RankAssignment::Piece& piece, const Operand& own, const Operand& packed) {
             visit(piece.owner, own, packed);
           });
  for (size_t i = 0; i < bucket.gradients.size() && bucket.pieces.empty(); ++i) {
    const ValueId id = bucket.gradients[i];
    const Operand own = place_(parameter_of(id));
    const Operand packed = part_of(all, bucket.offsets[i], own.layout.type);
    for (const KeptRows& kept : assignment_.gradients.at(id).kept_by)
      visit(kept.rank, {own.buffer, rows_of(own.layout, id, kept.rows)},
            {packed.buffer, rows_of(packed.layout, id, kept.rows)});
  }
}

}  // namespace het
