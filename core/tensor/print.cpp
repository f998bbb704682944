// Tensors as text: matrices of aligned numbers, long dimensions abridged.
#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/tensor/tensor.h"

namespace het {
namespace {

constexpr int64_t kEdge = 3;   // entries shown at each end of an abridged dimension
constexpr int64_t kWhole = 8;  // a dimension up to this long is shown whole

std::vector<int64_t> shown_indices(int64_t size) {
  std::vector<int64_t> indices;
  if (size <= kWhole) {
    for (int64_t i = 0; i < size; ++i) indices.push_back(i);
  } else {
    for (int64_t i = 0; i < kEdge; ++i) indices.push_back(i);
    indices.push_back(-1);  // the gap
    for (int64_t i = size - kEdge; i < size; ++i) indices.push_back(i);
  }
  return indices;
}

class Printer {
 public:
  explicit Printer(const Tensor& tensor) : tensor_(tensor) {
    const Shape& shape = tensor.shape();
    steps_ = contiguous_strides(shape);
    collect(0, 0);
    for (const double v : values_) choose(v);
    for (const double v : values_) width_ = std::max(width_, number(v).size());
  }

  std::string text() {
    if (tensor_.shape().empty()) return number(tensor_.at(0));
    write(0, 0, "");
    return text_;
  }

 private:
  void collect(size_t dim, int64_t flat) {
    if (dim == tensor_.shape().size()) {
      values_.push_back(tensor_.at(flat));
      return;
    }
    for (const int64_t i : shown_indices(tensor_.shape()[dim]))
      if (i >= 0) collect(dim + 1, flat + i * steps_[dim]);
  }

  void choose(double v) {
    if (!std::isfinite(v)) return;
    whole_ = whole_ && v == std::floor(v) && std::abs(v) < 1e7;
    const double size = std::abs(v);
    if (size != 0) {
      largest_ = std::max(largest_, size);
      smallest_ = std::min(smallest_, size);
    }
  }

  std::string number(double v) const {
    if (tensor_.dtype() == DType::boolean) return v != 0 ? "true" : "false";
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
    if (!is_float(tensor_.dtype())) return fmt::format("{:.0f}", v);
    if (whole_) return fmt::format("{:.0f}.", v);
    if (largest_ >= 1e6 || (smallest_ < 1e-4 && largest_ < 1e-2)) return fmt::format("{:.4e}", v);
    return fmt::format("{:.4f}", v);
  }

  void write(size_t dim, int64_t flat, const std::string& indent) {
    const Shape& shape = tensor_.shape();
    text_ += '[';
    bool first = true;
    for (const int64_t i : shown_indices(shape[dim])) {
      if (dim + 1 == shape.size()) {
        text_ += first ? "" : ", ";
        text_ += i < 0 ? "..." : fmt::format("{:>{}}", number(tensor_.at(flat + i * steps_[dim])), width_);
      } else {
        if (!first) text_ += "\n" + std::string(shape.size() - dim > 2 ? "\n" : "") + indent + ' ';
        if (i < 0)
          text_ += "...";
        else
          write(dim + 1, flat + i * steps_[dim], indent + ' ');
      }
      first = false;
    }
    text_ += ']';
  }

  const Tensor& tensor_;
  Strides steps_;
  std::vector<double> values_;
  std::string text_;
  size_t width_ = 0;
  bool whole_ = true;
  double largest_ = 0, smallest_ = 1e300;
};

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.present()) return "(no tensor)";
  // Of many dimensions even the abridged ones are too many numbers to read, or to hold as text.
  constexpr int64_t kMostShown = int64_t{1} << 16;
  int64_t shown = 1;
  for (const int64_t size : tensor.shape()) {
    shown *= size <= kWhole ? size : 2 * kEdge;
    if (shown > kMostShown) return to_string(tensor.type());
  }
  return fmt::format("{}\n{}", Printer(tensor).text(), to_string(tensor.type()));
}

}  // namespace het
