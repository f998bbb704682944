#include "planner/gradient_buckets.h"

#include <algorithm>
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
GradientBuckets::GradientBuckets(const Graph& graph, const Work& work, std::map<ValueId, int> summands,
                                 PlaceOf place, ProgramWriter& out)
    : graph_(graph), work_(work), place_(std::move(place)), out_(out), expected_(std::move(summands)) {
  std::map<std::tuple<int, int, DType>, std::vector<ValueId>> keyed;
  for (const auto& [id, gradient] : work_.gradients)
    if (gradient.group >= 0) keyed[{gradient.group, -gradient.layer, graph_.type(id).dtype}].push_back(id);
  for (auto& [key, gradients] : keyed) {
    const auto [group, layer, dtype] = key;
    make(group, -layer, dtype, std::move(gradients));
  }
  std::map<std::tuple<int, int, DType>, std::vector<Work::Piece>> packed;
  for (const Work::Piece& piece : work_.pieces)
    packed[{piece.group, -piece.layer, graph_.type(piece.gradient).dtype}].push_back(piece);
  for (auto& [key, pieces] : packed) {
    const auto [group, layer, dtype] = key;
    make_packed(group, -layer, dtype, std::move(pieces));
  }
}

std::string GradientBuckets::name_of(const Graph& graph, int layer) {
  return layer >= 0 ? fmt::format("gradients of layer {}", graph.layers[layer].name) : "gradients";
}

void GradientBuckets::make_packed(int group, int layer, DType dtype, std::vector<Work::Piece> pieces) {
  Bucket bucket{group, {}, {}};
  int64_t elements = 0;
  for (const Work::Piece& piece : pieces) {
    bucket.gradients.push_back(piece.gradient);
    bucket.offsets.push_back(elements);
    elements += piece.elements;
  }
  bucket.all = out_.add_whole({name_of(graph_, layer), {dtype, {elements}}});
  bucket.pieces = std::move(pieces);
  buckets_.push_back(std::move(bucket));
}

// visit(where in the gradient, where in the bucket) for each box of a bucket's pieces.
template <typename Visit>
void GradientBuckets::each_box(const Bucket& bucket, const Visit& visit) {
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Operand gradient = place_(bucket.pieces[i].gradient);
    HET_REQUIRE(gradient.layout.is_contiguous(), out_.buffer(bucket.all).name);
    int64_t offset = bucket.offsets[i];
    for (Layout box : bucket.pieces[i].places) {
      const Operand packed = part_of(bucket.all, offset, box.type);
      offset += box.type.elements();
      box.offset += gradient.layout.offset;
      visit(bucket.pieces[i], Operand{gradient.buffer, std::move(box)}, packed);
    }
  }
}

void GradientBuckets::pack(const Bucket& bucket) {
  Node node;
  node.phase = Phase::backward;
  each_box(bucket, [&](const Work::Piece& piece, const Operand& own, const Operand& packed) {
    if (piece.counts)
      out_.copy(node, own, packed, -1);
    else
      out_.fill(node, packed, 0);
  });
}

void GradientBuckets::unpack(const Bucket& bucket) {
  Node node;
  node.phase = Phase::update;
  each_box(bucket, [&](const Work::Piece&, const Operand& own, const Operand& packed) {
    out_.copy(node, packed, own, -1);
  });
}

void GradientBuckets::make(int group, int layer, DType dtype, std::vector<ValueId> gradients) {
  constexpr int64_t kAligned = 16;  // elements
  const std::vector<int>& ranks = work_.groups[group].ranks;
  std::stable_sort(gradients.begin(), gradients.end(), [&](ValueId a, ValueId b) {
    return work_.gradients.at(a).owner < work_.gradients.at(b).owner;
  });
  int64_t elements = 0;
  bool gaps = false;
  std::vector<int64_t> offsets, blocks(ranks.size(), 0);
  for (const ValueId id : gradients) {
    offsets.push_back(elements);
    const int64_t own = graph_.type(id).elements(), padded = (own + kAligned - 1) / kAligned * kAligned;
    gaps = gaps || own != padded || expected_.count(id) == 0;
    elements += padded;
    const auto owner = std::find(ranks.begin(), ranks.end(), work_.gradients.at(id).owner);
    if (owner != ranks.end()) blocks[owner - ranks.begin()] += padded;
  }
  Bucket bucket{group, out_.add_whole({name_of(graph_, layer), {dtype, {elements}}}), gradients};
  bucket.offsets = offsets;
  if (work_.gradients.at(gradients[0]).owner >= 0) bucket.blocks = blocks;
  for (size_t i = 0; i < gradients.size(); ++i)
    places_.push_back({gradients[i], part_of(bucket.all, offsets[i], graph_.type(gradients[i])),
                       expected_.count(gradients[i]) != 0});
  if (gaps) unclean_.push_back(bucket.all);
  buckets_.push_back(std::move(bucket));
}

// This rank's block of a bucket.
Operand GradientBuckets::own_block(const Bucket& bucket, const Operand& all) const {
  const std::vector<int>& ranks = work_.groups[bucket.group].ranks;
  int64_t offset = 0;
  size_t own = 0;
  for (; ranks[own] != work_.rank; ++own) offset += bucket.blocks[own];
  return part_of(all, offset, {all.layout.type.dtype, {bucket.blocks[own]}});
}

void GradientBuckets::begin_step() {
  for (const Operand& bucket : unclean_) out_.fill(Node{}, bucket, 0);
  start_complete();
}

void GradientBuckets::note_summand(ValueId gradient) {
  const auto found = expected_.find(gradient);
  if (found == expected_.end() || --found->second > 0 || work_.gradients.count(gradient) == 0) return;
  start_complete();
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
    const std::string name = out_.buffer(bucket.all).name;
    if (bucket.blocks.empty()) {
      bucket.start = out_.start({bucket.group, request_for(CollectiveKind::all_reduce, bucket.all, name),
                                 bucket.all, bucket.all, Phase::backward});
      continue;
    }
    CollectiveRequest scatter = request_for(CollectiveKind::reduce_scatter, bucket.all, name);
    scatter.counts = bucket.blocks;
    bucket.start = out_.start(
        {bucket.group, std::move(scatter), bucket.all, own_block(bucket, bucket.all), Phase::backward});
  }
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
    out_.fill(node, all, 0);
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const Work::Gradient& gradient = work_.gradients.at(bucket.gradients[i]);
      if (gradient.owner == work_.rank)
        out_.copy(node, place_(gradient.parameter),
                  part_of(all, bucket.offsets[i], graph_.type(gradient.parameter)), -1);
    }
    CollectiveRequest gather = request_for(CollectiveKind::all_gather, all, name);
    gather.counts = bucket.blocks;
    gathers.push_back(
        {&bucket, all,
         out_.start({bucket.group, std::move(gather), own_block(bucket, all), all, Phase::update})});
  }
  for (const auto& [bucket, all, start] : gathers) {
    out_.await(start);
    for (size_t i = 0; i < bucket->gradients.size(); ++i) {
      const Work::Gradient& gradient = work_.gradients.at(bucket->gradients[i]);
      if (gradient.owner != work_.rank)
        out_.copy(node, part_of(all, bucket->offsets[i], graph_.type(gradient.parameter)),
                  place_(gradient.parameter), -1);
    }
  }
}

}  // namespace het
