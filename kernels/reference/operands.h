// What every reference kernel works on: operands of any dtype and strides, read and written as double. Slow
// and plain on purpose: these kernels are the oracle that the fast ones are compared with.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/bits.h"
#include "core/device/device.h"
#include "core/tensor/convert.h"

namespace het::reference {

// One operand of one run.
class View {
 public:
  View(std::byte* base, const Layout& layout, bool adds)
      : base_(base),
        layout_(&layout),
        dtype_(layout.type.dtype),
        adds_(adds),
        packed_(layout.is_contiguous()) {}

  bool present() const { return base_ != nullptr && layout_->type.present(); }
  DType dtype() const { return dtype_; }
  const Layout& layout() const { return *layout_; }
  int64_t elements() const { return layout_->type.elements(); }
  int64_t rank() const { return static_cast<int64_t>(layout_->type.shape.size()); }
  int64_t size(int64_t dim) const { return layout_->type.shape[from_start(dim, rank())]; }
  std::byte* base() const { return base_; }

  // By row-major index.
  double operator[](int64_t flat) const { return load_element(base_, dtype_, offset_of(flat)); }
  // All of them, row-major, into `values`, which it returns: for operands that are read many times.
  const double* read(double* values) const {
    for (int64_t i = 0; i < elements(); ++i) values[i] = (*this)[i];
    return values;
  }
  // Written, or added when the request says so; an absent result is ignored.
  void set(int64_t flat, double value) const {
    if (present()) put(offset_of(flat), value);
  }
  // By one index for each dimension.
  template <typename... Index>
  double at(Index... index) const {
    return load_element(base_, dtype_, offset_at(index...));
  }
  template <typename... Index>
  void set_at(double value, Index... index) const {
    if (present()) put(offset_at(index...), value);
  }

  int64_t offset_of(int64_t flat) const { return packed_ ? flat : strided_offset_of(flat); }

 private:
  int64_t strided_offset_of(int64_t flat) const;
  template <typename... Index>
  int64_t offset_at(Index... index) const {
    int64_t offset = 0;
    size_t dim = 0;
    ((offset += static_cast<int64_t>(index) * layout_->strides[dim++]), ...);
    return offset;
  }
  // Rounded to nearest; integers saturate, NaN becomes 0 there.
  void put(int64_t offset, double value) const {
    store_element(base_, dtype_, adds_ ? load_element(base_, dtype_, offset) + value : value, offset);
  }

  std::byte* base_;
  const Layout* layout_;
  DType dtype_;
  bool adds_, packed_;
};

// The static half of a request, kept by its kernel.
struct Layouts {
  std::vector<Layout> inputs, outputs;
  uint32_t accumulate = 0;

  explicit Layouts(const KernelRequest& request)
      : inputs(request.inputs.begin(), request.inputs.end()),
        outputs(request.outputs.begin(), request.outputs.end()),
        accumulate(request.accumulate) {}
};

// The operands of one run.
struct Operands {
  const Layouts& layouts;
  const KernelArguments& arguments;

  bool has_in(size_t i) const { return i < layouts.inputs.size() && layouts.inputs[i].type.present(); }
  bool has_out(size_t i) const { return i < layouts.outputs.size() && layouts.outputs[i].type.present(); }
  View in(size_t i) const { return has_in(i) ? View(arguments.inputs[i], layouts.inputs[i], false) : none(); }
  View out(size_t i) const {
    return has_out(i) ? View(arguments.outputs[i], layouts.outputs[i], has_bit(layouts.accumulate, i))
                      : none();
  }
  double* scratch() const { return reinterpret_cast<double*>(arguments.workspace); }

 private:
  static View none();
};

// A kernel from `body(const Operands&)`; `scratch` doubles of workspace.
template <typename Body>
std::unique_ptr<Kernel> kernel_of(const KernelRequest& request, Body body, int64_t scratch = 0) {
  return make_kernel(
      [layouts = Layouts(request), body = std::move(body)](const KernelArguments& arguments) {
        body(Operands{layouts, arguments});
      },
      scratch * static_cast<int64_t>(sizeof(double)));
}

// Elements of all dimensions but the last `n`.
int64_t leading(const Layout& layout, int64_t n);

}  // namespace het::reference
