#include "core/io/stored.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"

namespace het {
namespace {

TensorType flipped(TensorType type) {
  std::swap(type.shape[0], type.shape[1]);
  return type;
}

}  // namespace

StoredTensor::StoredTensor(std::shared_ptr<StoredFile> file, std::string name, int64_t offset,
                           TensorType type)
    : type_(std::move(type)) {
  const int64_t bytes = type_.bytes();
  HET_REQUIRE(offset >= 0 && bytes <= file->mapped.bytes() - offset, name, offset, bytes,
              file->mapped.path());
  pieces_.push_back({std::move(file), std::move(name), offset, bytes});
}

StoredTensor StoredTensor::transposed() const {
  if (type_.shape.size() != 2)
    fail_usage("'{}': tensor '{}' is {}; a matrix is needed", pieces_[0].file->mapped.path(), pieces_[0].name,
               to_string(type_));
  StoredTensor result = *this;
  result.type_ = flipped(type_);
  result.transposed_ = !transposed_;
  return result;
}

StoredTensor StoredTensor::joined(const std::vector<StoredTensor>& parts) {
  HET_REQUIRE(!parts.empty());
  StoredTensor result = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const StoredTensor& part = parts[i];
    TensorType wanted = result.type_;
    if (!wanted.shape.empty() && !part.type_.shape.empty()) wanted.shape[0] = part.type_.shape[0];
    if (wanted.shape.empty() || part.type_ != wanted || result.transposed_ || part.transposed_)
      fail_usage("'{}': tensor '{}' is {}, which cannot be joined to '{}', {}",
                 part.pieces_[0].file->mapped.path(), part.pieces_[0].name, to_string(part.type_),
                 parts[0].pieces_[0].name, to_string(parts[0].type_));
    result.type_.shape[0] += part.type_.shape[0];
    result.pieces_.insert(result.pieces_.end(), part.pieces_.begin(), part.pieces_.end());
  }
  return result;
}

StoredTensor StoredTensor::rows(int64_t first, int64_t count) const {
  if (transposed_ || type_.shape.empty() || first < 0 || count < 0 || first > type_.shape[0] - count)
    fail_usage("'{}': tensor '{}' is {}; it has no rows {} to {}", pieces_[0].file->mapped.path(),
               pieces_[0].name, to_string(type_), first, first + count - 1);
  StoredTensor result = *this;
  const int64_t row = type_.shape[0] == 0 ? 0 : type_.bytes() / type_.shape[0];
  result.type_.shape[0] = count;
  result.pieces_.clear();
  int64_t at = 0;  // bytes before the piece
  for (const Piece& piece : pieces_) {
    const int64_t begin = std::max(first * row, at), end = std::min((first + count) * row, at + piece.bytes);
    if (begin < end || (result.pieces_.empty() && &piece == &pieces_.back()))
      result.pieces_.push_back({piece.file, piece.name, piece.offset + std::max<int64_t>(begin - at, 0),
                                std::max<int64_t>(end - begin, 0)});
    at += piece.bytes;
  }
  return result;
}

StoredTensor StoredTensor::reshaped(Shape shape) const {
  const bool keeps_rows = !shape.empty() && shape[0] == type_.shape[0];
  if ((transposed_ && !keeps_rows) || elements_of(shape) != elements_of(type_.shape))
    fail_usage("'{}': tensor '{}' is {}; it cannot be taken as {}", pieces_[0].file->mapped.path(),
               pieces_[0].name, to_string(type_), to_string(shape));
  StoredTensor result = *this;
  result.type_.shape = std::move(shape);
  return result;
}

Tensor StoredTensor::read(const TensorSlice& slice) const {
  HET_REQUIRE(slice.whole_shape() == type_.shape, to_string(slice), to_string(type_));
  if (!transposed_) return read_stored(slice);
  if (type_.shape.size() != 2) {  // reshaped: its rows are those of the matrix
    const int64_t rows = type_.shape[0];
    const StoredTensor matrix = reshaped({rows, rows == 0 ? 0 : type_.elements() / rows});
    return take(matrix.read().view(Layout::contiguous(type_)), slice);
  }
  const Tensor part = read_stored(
      TensorSlice::whole(flipped(type_).shape).narrowed(0, slice.ranges(1)).narrowed(1, slice.ranges(0)));
  return part.view(permuted(part.layout(), {1, 0})).contiguous();
}

Tensor StoredTensor::read_stored(const TensorSlice& slice) const {
  const TensorType whole = transposed_ ? flipped(type_) : type_;
  // Mappings are private; what leaves this function as a view is made writable first.
  const auto data_of = [](const Piece& piece) {
    return const_cast<std::byte*>(piece.file->mapped.data()) + piece.offset;
  };
  const auto take_note = [&](const Piece& piece, const std::byte* data, int64_t bytes) {
    if (whole.dtype == DType::boolean &&
        std::any_of(data, data + bytes, [](std::byte b) { return b > std::byte{1}; }))
      fail_usage("'{}': tensor '{}' is BOOL but holds bytes other than 0 and 1", piece.file->mapped.path(),
                 piece.name);
    piece.file->bytes_read += bytes;
  };
  const Piece& first = pieces_[0];
  const bool aligned =
      reinterpret_cast<uintptr_t>(data_of(first)) % static_cast<uintptr_t>(bytes_of(whole.dtype)) == 0;
  if (slice.is_whole() && pieces_.size() == 1 && aligned && first.bytes > 0) {
    take_note(first, data_of(first), first.bytes);
    first.file->mapped.make_writable(first.offset, first.bytes);
    return Tensor(std::make_shared<Buffer>(data_of(first), first.bytes, first.file),
                  Layout::contiguous(whole));
  }

  Tensor result(TensorType{whole.dtype, slice.shape()});
  // Bytes [from, from + bytes) of the pieces, as if they were one.
  const auto copy = [&](int64_t from, int64_t to, int64_t bytes) {
    for (const Piece& piece : pieces_) {
      const int64_t begin = std::max<int64_t>(from, 0), end = std::min(from + bytes, piece.bytes);
      if (begin < end) {
        const std::byte* data = data_of(piece) + begin;
        take_note(piece, data, end - begin);
        std::memcpy(result.bytes() + to + begin - from, data, static_cast<size_t>(end - begin));
      }
      from -= piece.bytes;
    }
  };
  each_run(TensorSlice::whole(whole.shape), slice, bytes_of(whole.dtype), copy);
  return result;
}

}  // namespace het
