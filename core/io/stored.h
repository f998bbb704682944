// A tensor that stands in mapped files: nothing of it is read before it is asked for, and then only the part
// that was asked for. A value; it keeps its files mapped.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/tensor/slice.h"
#include "core/tensor/tensor.h"

namespace het {

// A mapped file that counts how much of it was handed out.
struct StoredFile {
  explicit StoredFile(const Path& path) : mapped(path) {}

  MappedFile mapped;
  std::atomic<int64_t> bytes_read = 0;
};

class StoredTensor {
 public:
  // Packed elements from byte `offset` of the file on, which the caller has checked to be there. `name`: in
  // errors.
  StoredTensor(std::shared_ptr<StoredFile> file, std::string name, int64_t offset, TensorType type);

  const TensorType& type() const { return type_; }

  // The matrix [columns, rows] of one that is stored as [rows, columns]. Throws Error(usage) when it is none.
  StoredTensor transposed() const;
  // Tensors one below the other, along their first dimension. Throws Error(usage) when the others' types do
  // not fit the first's.
  static StoredTensor joined(const std::vector<StoredTensor>& parts);

  // Rows [first, first + count) of the first dimension. Throws Error(usage) where it has no such rows.
  StoredTensor rows(int64_t first, int64_t count) const;
  // The same elements in another shape; a transposed matrix keeps its rows. Throws Error(usage) where this
  // has not as many.
  StoredTensor reshaped(Shape shape) const;

  // The elements of a slice, packed. A whole tensor that stands in one piece is a view of the mapping. Throws
  // Error(usage) for booleans other than 0 and 1.
  Tensor read(const TensorSlice& slice) const;
  Tensor read() const { return read(TensorSlice::whole(type_.shape)); }

 private:
  struct Piece {
    std::shared_ptr<StoredFile> file;
    std::string name;
    int64_t offset, bytes;
  };
  Tensor read_stored(const TensorSlice& slice) const;  // as it is stored

  TensorType type_;            // as it is read
  std::vector<Piece> pieces_;  // that follow each other
  bool transposed_ = false;    // between how it is stored and how it is read
};

}  // namespace het
