#include "core/tensor/slice.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/base/error.h"
#include "core/tensor/tensor.h"

namespace het {
namespace {

Ranges all_of(int64_t size) { return size == 0 ? Ranges{} : Ranges{{0, size}}; }

// `ranges` in the one form that a set has.
Ranges joined(Ranges ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.begin >= range.end; });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  Ranges result;
  for (const Range& range : ranges)
    if (!result.empty() && range.begin <= result.back().end)
      result.back().end = std::max(result.back().end, range.end);
    else
      result.push_back(range);
  return result;
}

void require_same_whole(const TensorSlice& a, const TensorSlice& b) {
  HET_REQUIRE(a.whole_shape() == b.whole_shape(), to_string(a.whole_shape()), to_string(b.whole_shape()));
}

// Indices that two packed dimensions share: where they begin in each, and how many follow.
struct Shared {
  int64_t from, to, size;
};

std::vector<Shared> shared_of(const Ranges& from, const Ranges& to) {
  std::vector<Shared> result;
  int64_t before_from = 0, before_to = 0;  // packed entries of the ranges that were passed
  for (size_t i = 0, j = 0; i < from.size() && j < to.size();) {
    const Range both{std::max(from[i].begin, to[j].begin), std::min(from[i].end, to[j].end)};
    if (both.size() > 0) {
      const Shared next{before_from + both.begin - from[i].begin, before_to + both.begin - to[j].begin,
                        both.size()};
      if (!result.empty() && result.back().from + result.back().size == next.from &&
          result.back().to + result.back().size == next.to)
        result.back().size += next.size;
      else
        result.push_back(next);
    }
    if (from[i].end <= to[j].end)
      before_from += from[i++].size();
    else
      before_to += to[j++].size();
  }
  return result;
}

// The dimensions of two packed slices; those at the end that both have whole, and alike, are one block.
struct Walk {
  Walk(const TensorSlice& from, const TensorSlice& to, int64_t element_bytes) : block(element_bytes) {
    const Shape from_shape = from.shape(), to_shape = to.shape();
    for (size_t d = from_shape.size(); d-- > 0;) {
      std::vector<Shared> both =
          shared_of(from.ranges(static_cast<int64_t>(d)), to.ranges(static_cast<int64_t>(d)));
      const bool folds =
          dims.empty() && both.size() == 1 && both[0].size == from_shape[d] && both[0].size == to_shape[d];
      if (folds) {
        block *= from_shape[d];
      } else {
        const int64_t from_step = dims.empty() ? block : dims.back().from_step * dims.back().from_size;
        const int64_t to_step = dims.empty() ? block : dims.back().to_step * dims.back().to_size;
        dims.push_back({std::move(both), from_step, to_step, from_shape[d], to_shape[d]});
      }
    }
  }

  struct Dim {
    std::vector<Shared> both;
    int64_t from_step, to_step;  // bytes from one index to the next
    int64_t from_size, to_size;
  };
  std::vector<Dim> dims;  // innermost first
  int64_t block;          // bytes that lie together in both
};

template <class Visit>
void walk(const std::vector<Walk::Dim>& dims, size_t left, int64_t from, int64_t to, int64_t block,
          const Visit& visit) {
  if (left == 0) return visit(from, to, block);
  const Walk::Dim& dim = dims[left - 1];
  for (const Shared& run : dim.both) {
    if (left == 1) {
      visit(from + run.from * dim.from_step, to + run.to * dim.to_step, run.size * block);
      continue;
    }
    for (int64_t i = 0; i < run.size; ++i)
      walk(dims, left - 1, from + (run.from + i) * dim.from_step, to + (run.to + i) * dim.to_step, block,
           visit);
  }
}

}  // namespace

int64_t size_of(const Ranges& ranges) {
  int64_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

int64_t shared_size(const Ranges& a, const Ranges& b) {
  int64_t size = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    size += std::max<int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    if (a[i].end <= b[j].end)
      ++i;
    else
      ++j;
  }
  return size;
}

Ranges intersection(const Ranges& a, const Ranges& b) {
  Ranges result;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Range both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (both.size() > 0) result.push_back(both);
    if (a[i].end <= b[j].end)
      ++i;
    else
      ++j;
  }
  return result;
}

Ranges difference(const Ranges& a, const Ranges& b) {
  Ranges result;
  size_t j = 0;
  for (Range left : a) {
    while (j < b.size() && b[j].end <= left.begin) ++j;
    for (size_t k = j; k < b.size() && b[k].begin < left.end; ++k) {
      if (left.begin < b[k].begin) result.push_back({left.begin, b[k].begin});
      left.begin = std::max(left.begin, b[k].end);
    }
    if (left.size() > 0) result.push_back(left);
  }
  return result;
}

TensorSlice TensorSlice::whole(Shape shape) {
  TensorSlice slice;
  slice.whole_ = std::move(shape);
  return slice;
}

Ranges TensorSlice::ranges(int64_t dim) const {
  const auto d = static_cast<size_t>(from_start(dim, whole_.size()));
  HET_REQUIRE(d < whole_.size(), dim, to_string(whole_));
  return kept_.empty() ? all_of(whole_[d]) : kept_[d];
}

Shape TensorSlice::shape() const {
  Shape shape = whole_;
  for (size_t d = 0; d < kept_.size(); ++d) shape[d] = size_of(kept_[d]);
  return shape;
}

TensorSlice TensorSlice::narrowed(int64_t dim, const Ranges& keep) const {
  const auto d = static_cast<size_t>(from_start(dim, whole_.size()));
  HET_REQUIRE(d < whole_.size(), dim, to_string(whole_));
  TensorSlice result = *this;
  if (result.kept_.empty())
    for (const int64_t size : whole_) result.kept_.push_back(all_of(size));
  result.kept_[d] = intersection(result.kept_[d], joined(keep));
  const bool all = std::equal(whole_.begin(), whole_.end(), result.kept_.begin(),
                              [](int64_t size, const Ranges& kept) { return size_of(kept) == size; });
  if (all) result.kept_.clear();
  return result;
}

std::optional<TensorSlice> intersection(const TensorSlice& a, const TensorSlice& b) {
  require_same_whole(a, b);
  if (shared_elements(a, b) == 0) return std::nullopt;
  if (b.is_whole()) return a;
  TensorSlice both = a;
  for (size_t d = 0; d < a.whole_shape().size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    both = both.narrowed(dim, b.ranges(dim));
  }
  return both;
}

int64_t shared_elements(const TensorSlice& a, const TensorSlice& b) {
  require_same_whole(a, b);
  int64_t elements = 1;
  for (size_t d = 0; d < a.whole_.size(); ++d)
    elements *= a.is_whole() && b.is_whole() ? a.whole_[d]
                : a.is_whole()               ? size_of(b.kept_[d])
                : b.is_whole()               ? size_of(a.kept_[d])
                                             : shared_size(a.kept_[d], b.kept_[d]);
  return elements;
}

std::vector<TensorSlice> difference(const TensorSlice& a, const TensorSlice& b) {
  require_same_whole(a, b);
  if (a.is_empty()) return {};
  if (b.is_empty()) return {a};
  // Of dimension d what b has not, where the dimensions before are in both: the product of sets minus a
  // product.
  std::vector<TensorSlice> result;
  TensorSlice both = a;
  for (size_t d = 0; d < a.whole_shape().size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const Ranges own = both.ranges(dim);
    if (TensorSlice only = both.narrowed(dim, difference(own, b.ranges(dim))); !only.is_empty())
      result.push_back(std::move(only));
    both = both.narrowed(dim, b.ranges(dim));
    if (both.ranges(dim).empty()) break;
  }
  return result;
}

namespace {

std::vector<TensorSlice> without(const std::vector<TensorSlice>& parts, const TensorSlice& slice) {
  std::vector<TensorSlice> left;
  for (const TensorSlice& part : parts) {
    std::vector<TensorSlice> rest = difference(part, slice);
    left.insert(left.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  }
  return left;
}

}  // namespace

std::vector<TensorSlice> missing(const TensorSlice& need, std::span<const TensorSlice> have) {
  std::vector<TensorSlice> left;
  if (!need.is_empty()) left.push_back(need);
  for (const TensorSlice& slice : have) {
    if (left.empty()) break;
    left = without(left, slice);
  }
  return left;
}

std::vector<TensorSlice> refine(std::span<const TensorSlice> slices) {
  std::vector<TensorSlice> parts, seen;
  for (const TensorSlice& slice : slices) {
    if (slice.is_empty() || std::find(seen.begin(), seen.end(), slice) != seen.end()) continue;
    seen.push_back(slice);
    std::vector<TensorSlice> next, rest{slice};
    for (const TensorSlice& part : parts) {
      const auto both = intersection(part, slice);
      if (!both) {
        next.push_back(part);
        continue;
      }
      next.push_back(*both);
      for (TensorSlice& outside : difference(part, slice)) next.push_back(std::move(outside));
      rest = without(rest, part);
    }
    next.insert(next.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
    parts = std::move(next);
  }
  return parts;
}

TensorSlice nested(const TensorSlice& held, const TensorSlice& part) {
  HET_REQUIRE(part.whole_shape() == held.shape(), to_string(part.whole_shape()), to_string(held));
  TensorSlice result = held;
  for (size_t d = 0; d < held.whole_shape().size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    Ranges keep;
    int64_t before = 0;  // packed indices of the ranges that were passed
    for (const Range& range : held.ranges(dim)) {
      for (const Range& packed : intersection({{before, before + range.size()}}, part.ranges(dim)))
        keep.push_back({range.begin + packed.begin - before, range.begin + packed.end - before});
      before += range.size();
    }
    result = result.narrowed(dim, keep);
  }
  return result;
}

void each_run(const TensorSlice& from, const TensorSlice& to, int64_t element_bytes,
              const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  require_same_whole(from, to);
  if (from.is_empty() || to.is_empty()) return;
  const Walk both(from, to, element_bytes);
  walk(both.dims, both.dims.size(), 0, 0, both.block, visit);
}

void copy(Tensor& to, const TensorSlice& to_slice, const Tensor& from, const TensorSlice& from_slice) {
  HET_REQUIRE(to.dtype() == from.dtype(), name_of(to.dtype()), name_of(from.dtype()));
  HET_REQUIRE(to.shape() == to_slice.shape(), to_string(to.shape()), to_string(to_slice));
  HET_REQUIRE(from.shape() == from_slice.shape(), to_string(from.shape()), to_string(from_slice));
  HET_REQUIRE(to.layout().is_contiguous() && from.layout().is_contiguous());
  each_run(from_slice, to_slice, bytes_of(to.dtype()), [&](int64_t source, int64_t target, int64_t bytes) {
    std::memcpy(to.bytes() + target, from.bytes() + source, static_cast<size_t>(bytes));
  });
}

Tensor take(const Tensor& whole, const TensorSlice& slice) {
  Tensor part(TensorType{whole.dtype(), slice.shape()});
  copy(part, slice, whole, TensorSlice::whole(slice.whole_shape()));
  return part;
}

void put(Tensor& whole, const Tensor& part, const TensorSlice& slice) {
  copy(whole, TensorSlice::whole(slice.whole_shape()), part, slice);
}

std::vector<Layout> views(const TensorSlice& part, const TensorSlice& held, DType dtype) {
  HET_REQUIRE(part.is_empty() || intersection(part, held) == part, to_string(part), to_string(held));
  std::vector<Layout> boxes;
  if (part.is_empty()) return boxes;
  boxes.push_back(Layout::contiguous({dtype, held.shape()}));
  for (size_t d = 0; d < part.whole_shape().size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const std::vector<Shared> runs = shared_of(part.ranges(dim), held.ranges(dim));
    std::vector<Layout> next;
    for (const Layout& box : boxes)
      for (const Shared& run : runs) next.push_back(sliced(box, dim, run.to, run.size));
    boxes = std::move(next);
  }
  return boxes;
}

std::string to_string(const TensorSlice& slice) {
  std::string text = "[";
  for (size_t d = 0; d < slice.whole_shape().size(); ++d) {
    const Ranges ranges = slice.ranges(static_cast<int64_t>(d));
    if (d > 0) text += ", ";
    if (size_of(ranges) == slice.whole_shape()[d]) {
      text += ":";
    } else if (ranges.empty()) {
      text += "0:0";
    } else {
      for (size_t i = 0; i < ranges.size(); ++i)
        text += fmt::format("{}{}:{}", i > 0 ? "+" : "", ranges[i].begin, ranges[i].end);
    }
  }
  return text + "]";
}

namespace {

// Reads what to_string writes.
class SliceReader {
 public:
  SliceReader(const Shape& whole, std::string_view text) : whole_(whole), text_(text) {}

  TensorSlice read() {
    TensorSlice slice = TensorSlice::whole(whole_);
    take("[");
    for (size_t d = 0; d < whole_.size(); ++d) {
      if (d > 0) take(",");
      slice = slice.narrowed(static_cast<int64_t>(d), ranges(whole_[d]));
    }
    take("]");
    skip_spaces();
    if (at_ != text_.size()) refuse("goes on after its ']'");
    return slice;
  }

 private:
  Ranges ranges(int64_t size) {
    if (next_is(":")) return all_of(size);
    Ranges result;
    do {
      const int64_t begin = number();
      take(":");
      const int64_t end = number();
      if (begin > end || end > size) refuse(fmt::format("has {}:{} of a dimension of {}", begin, end, size));
      if (!result.empty() && begin < result.back().end) refuse("has ranges that do not ascend");
      result.push_back({begin, end});
    } while (next_is("+"));
    return result;
  }
  int64_t number() {
    skip_spaces();
    int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, problem] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (problem != std::errc() || value < 0) refuse(fmt::format("has no number at letter {}", at_ + 1));
    at_ += static_cast<size_t>(end - begin);
    return value;
  }
  bool next_is(std::string_view word) {
    skip_spaces();
    const bool is = text_.substr(at_).starts_with(word);
    if (is) at_ += word.size();
    return is;
  }
  void take(std::string_view word) {
    if (!next_is(word)) refuse(fmt::format("has no '{}' at letter {}", word, at_ + 1));
  }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    fail_usage("'{}' is no slice of a tensor {}: it {}", text_, to_string(whole_), why);
  }

  const Shape& whole_;
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

TensorSlice parse_slice(const Shape& whole, std::string_view text) { return SliceReader(whole, text).read(); }

}  // namespace het
