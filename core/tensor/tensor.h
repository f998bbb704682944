// A tensor is a typed, strided view of a buffer that it shares. Copying a Tensor copies the view, not the
// elements; the buffer lives until its last view is gone. Buffers are host memory aligned to 64 bytes;
// a device's own memory is held by its executor and copied out to a Tensor to be looked at.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "core/tensor/shape.h"

namespace het {

// Host memory, 64-byte aligned, large blocks on huge pages where the system grants them. Owns its bytes.
class Buffer {
 public:
  explicit Buffer(int64_t bytes);  // throws Error(environment) when the memory is not available
  // Bytes that another object keeps alive through `owner` (a mapped file).
  Buffer(std::byte* data, int64_t bytes, std::shared_ptr<const void> owner);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  std::shared_ptr<const void> owner_;
};

// Bytes in live Buffers of this process that it allocated itself; the Lua side collects when they grow.
int64_t live_buffer_bytes();

class Tensor {
 public:
  Tensor() = default;                // empty: !present()
  explicit Tensor(TensorType type);  // contiguous, uninitialised
  Tensor(std::shared_ptr<Buffer> buffer, Layout layout);

  static Tensor zeros(TensorType type);
  template <typename T>
  static Tensor of(const std::vector<T>& values, Shape shape);

  bool present() const { return layout_.type.present(); }
  const TensorType& type() const { return layout_.type; }
  DType dtype() const { return layout_.type.dtype; }
  const Shape& shape() const { return layout_.type.shape; }
  const Layout& layout() const { return layout_; }
  int64_t elements() const { return layout_.type.elements(); }
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }

  std::byte* bytes() const;  // address of the first element
  template <typename T>
  T* data() const;  // the same, checked against the dtype
  // The elements in order; the tensor must be contiguous.
  template <typename T>
  std::span<T> span() const;

  Tensor view(Layout layout) const { return Tensor(buffer_, std::move(layout)); }
  Tensor contiguous() const;             // itself, or a packed copy
  Tensor clone() const;                  // a packed copy
  Tensor to(DType dtype) const;          // itself, or a converted packed copy
  void copy_from(const Tensor& source);  // same shape, any dtypes and strides

  double at(int64_t flat_index) const;  // element by row-major index, as a double
  void set(int64_t flat_index, double value);

 private:
  std::shared_ptr<Buffer> buffer_;
  Layout layout_;
};

// As a matrix, numbers in aligned columns; long dimensions abridged to their first and last three entries.
std::string to_string(const Tensor& tensor);

namespace detail {
void require_dtype(DType actual, DType wanted);
void require_contiguous(const Layout& layout);
}  // namespace detail

template <typename T>
T* Tensor::data() const {
  detail::require_dtype(dtype(), dtype_of<T>);
  return reinterpret_cast<T*>(bytes());
}

template <typename T>
std::span<T> Tensor::span() const {
  detail::require_contiguous(layout_);
  return {data<T>(), static_cast<size_t>(elements())};
}

template <typename T>
Tensor Tensor::of(const std::vector<T>& values, Shape shape) {
  Tensor result(TensorType{dtype_of<T>, std::move(shape)});
  for (size_t i = 0; i < values.size(); ++i) result.data<T>()[i] = values[i];
  return result;
}

}  // namespace het
