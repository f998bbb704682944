#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

const Layout kNone;

}  // namespace

int64_t View::strided_offset_of(int64_t flat) const {
  int64_t offset = 0;
  for (int64_t d = rank() - 1; d >= 0; --d) {
    offset += flat % layout_->type.shape[d] * layout_->strides[d];
    flat /= layout_->type.shape[d];
  }
  return offset;
}

View Operands::none() { return View(nullptr, kNone, false); }

int64_t leading(const Layout& layout, int64_t n) {
  int64_t rows = 1;
  for (size_t d = 0; d + n < layout.type.shape.size(); ++d) rows *= layout.type.shape[d];
  return rows;
}

}  // namespace het::reference
