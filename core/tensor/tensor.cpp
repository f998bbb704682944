#include "core/tensor/tensor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/units.h"
#include "core/tensor/convert.h"

namespace het {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;

std::atomic<int64_t> live_bytes{0};

// Linux promises memory that it does not have, and ends the process that touches it. So ask it first: once
// for every so many bytes, since the answer takes some 100 us.
void require_available(int64_t bytes) {
  constexpr int64_t kUnasked = int64_t{64} << 20;
  static std::atomic<int64_t> unasked{0};
  const int64_t wanted = unasked += bytes;
  if (wanted < kUnasked) return;
  unasked = 0;
  if (const int64_t available = available_memory(); wanted > available)
    fail_environment("cannot allocate {} of host memory: {} are available", show_bytes(bytes),
                     show_bytes(available));
}

int64_t element_offset(const Layout& layout, int64_t flat) {
  int64_t offset = 0;
  for (size_t i = layout.type.shape.size(); i-- > 0;) {
    const int64_t size = layout.type.shape[i];
    offset += flat % size * layout.strides[i];
    flat /= size;
  }
  return offset;
}

// Call visit(element offset) for each element in row-major order.
template <typename Visit>
void for_each_offset(const Layout& layout, const Visit& visit) {
  const Shape& shape = layout.type.shape;
  if (layout.type.elements() == 0) return;
  std::vector<int64_t> index(shape.size(), 0);
  int64_t offset = 0;
  for (;;) {
    visit(offset);
    size_t d = shape.size();
    while (d > 0) {
      --d;
      offset += layout.strides[d];
      if (++index[d] < shape[d]) break;
      offset -= layout.strides[d] * shape[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (shape.empty()) return;
  }
}

}  // namespace

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  HET_REQUIRE(bytes >= 0, bytes);
  require_available(bytes);
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  const int64_t rounded = std::max<int64_t>(alignment, (bytes + alignment - 1) / alignment * alignment);
  data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (data_ == nullptr) fail_environment("cannot allocate {} of host memory", show_bytes(bytes));
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage)
    madvise(data_, rounded, MADV_HUGEPAGE);  // only advice: failure costs speed alone
#endif
  live_bytes += bytes_;
}

Buffer::Buffer(std::byte* data, int64_t bytes, std::shared_ptr<const void> owner)
    : data_(data), bytes_(bytes), owner_(std::move(owner)) {
  HET_REQUIRE(owner_ != nullptr);
}

Buffer::~Buffer() {
  if (owner_) return;
  live_bytes -= bytes_;
  std::free(data_);
}

int64_t live_buffer_bytes() { return live_bytes; }

Tensor::Tensor(TensorType type)
    : buffer_(std::make_shared<Buffer>(type.bytes())), layout_(Layout::contiguous(std::move(type))) {}

Tensor::Tensor(std::shared_ptr<Buffer> buffer, Layout layout)
    : buffer_(std::move(buffer)), layout_(std::move(layout)) {}

Tensor Tensor::zeros(TensorType type) {
  Tensor result(std::move(type));
  std::memset(result.bytes(), 0, result.type().bytes());
  return result;
}

std::byte* Tensor::bytes() const {
  HET_REQUIRE(buffer_ != nullptr);
  return buffer_->data() + layout_.offset * bytes_of(layout_.type.dtype);
}

Tensor Tensor::contiguous() const { return layout_.is_contiguous() ? *this : clone(); }

Tensor Tensor::clone() const {
  Tensor result(type());
  result.copy_from(*this);
  return result;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == this->dtype()) return contiguous();
  Tensor result(TensorType{dtype, shape()});
  result.copy_from(*this);
  return result;
}

void Tensor::copy_from(const Tensor& source) {
  if (source.shape() != shape())
    fail_usage("cannot copy a tensor of shape {} into one of shape {}", to_string(source.shape()),
               to_string(shape()));
  const int64_t to_bytes = bytes_of(dtype()), from_bytes = bytes_of(source.dtype());
  std::byte* to = bytes();
  const std::byte* from = source.bytes();
  if (dtype() == source.dtype() && layout_.is_contiguous() && source.layout().is_contiguous()) {
    std::memmove(to, from, type().bytes());
    return;
  }
  std::vector<int64_t> offsets;
  offsets.reserve(elements());
  for_each_offset(source.layout(), [&](int64_t offset) { offsets.push_back(offset); });
  size_t i = 0;
  for_each_offset(layout_, [&](int64_t offset) {
    const std::byte* element = from + offsets[i++] * from_bytes;
    if (dtype() == source.dtype())
      std::memcpy(to + offset * to_bytes, element, to_bytes);
    else
      store_element(to + offset * to_bytes, dtype(), load_element(element, source.dtype()));
  });
}

double Tensor::at(int64_t flat) const {
  HET_REQUIRE(flat >= 0 && flat < elements(), flat, elements());
  return load_element(bytes() + element_offset(layout_, flat) * bytes_of(dtype()), dtype());
}

void Tensor::set(int64_t flat, double value) {
  HET_REQUIRE(flat >= 0 && flat < elements(), flat, elements());
  store_element(bytes() + element_offset(layout_, flat) * bytes_of(dtype()), dtype(), value);
}

void detail::require_dtype(DType actual, DType wanted) {
  if (actual != wanted) fail(ErrorKind::bug, "a tensor of {} was read as {}", actual, wanted);
}

void detail::require_contiguous(const Layout& layout) {
  if (!layout.is_contiguous())
    fail(ErrorKind::bug, "a strided view of {} was read as if it were packed", to_string(layout.type));
}

}  // namespace het
