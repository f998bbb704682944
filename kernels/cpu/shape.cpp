// Copies between strided layouts, and fill.
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// Edge of the square tiles in which a transposing copy moves, so that both sides stay in the first-level
// cache.
constexpr int64_t kEdge = 32;

template <typename Word>
struct StridedCopy {
  Loops loops;    // operand 0: target, 1: source; the target's innermost stride is the smallest
  int crossed;    // the loop along which the source is adjacent, when that is not the innermost; else -1
  int64_t outer;  // iterations of all loops but the innermost and the crossed one

  // Element offsets of outer iteration `index`, and nothing from the innermost or crossed loop.
  void offsets(int64_t index, int64_t& to, int64_t& from) const {
    to = from = 0;
    for (int d = loops.rank - 2; d >= 0; --d) {
      if (d == crossed) continue;
      const int64_t at = index % loops.size[d];
      index /= loops.size[d];
      to += at * loops.stride[0][d];
      from += at * loops.stride[1][d];
    }
  }

  void run_rows(const Word* x, Word* y, int64_t begin, int64_t end) const {
    const int inner = loops.rank - 1;
    const int64_t n = loops.size[inner], to_step = loops.stride[0][inner], from_step = loops.stride[1][inner];
    for (int64_t r = begin; r < end; ++r) {
      int64_t to, from;
      offsets(r, to, from);
      if (to_step == 1 && from_step == 1)
        std::memcpy(y + to, x + from, n * sizeof(Word));
      else
        for (int64_t i = 0; i < n; ++i) y[to + i * to_step] = x[from + i * from_step];
    }
  }

  // Bands of kEdge rows of the crossed loop, [outer x bands].
  int64_t bands() const { return (loops.size[crossed] + kEdge - 1) / kEdge; }

  void run_bands(const Word* x, Word* y, int64_t begin, int64_t end) const {
    const int inner = loops.rank - 1;
    const int64_t n = loops.size[inner], m = loops.size[crossed];
    const int64_t to_row = loops.stride[0][crossed], from_column = loops.stride[1][inner];
    for (int64_t b = begin; b < end; ++b) {
      int64_t to, from;
      offsets(b / bands(), to, from);
      const int64_t row = b % bands() * kEdge, rows = m - row < kEdge ? m - row : kEdge;
      for (int64_t column = 0; column < n; column += kEdge) {
        const int64_t columns = n - column < kEdge ? n - column : kEdge;
        const Word* source = x + from + row + column * from_column;
        Word* target = y + to + row * to_row + column;
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j) target[i * to_row + j] = source[i + j * from_column];
      }
    }
  }
};

template <typename Word>
std::unique_ptr<Kernel> prepare_copy_of(const KernelRequest& request) {
  StridedCopy<Word> copy{copy_loops(request, request.outputs[0], request.inputs[0]), -1, 1};
  const Loops& loops = copy.loops;
  const int inner = loops.rank - 1;
  const int64_t elements = loops.elements();
  if (loops.rank == 1 && loops.stride[0][0] == 1 && loops.stride[1][0] == 1)
    return make_kernel([elements](const KernelArguments& a) {
      parallel_for(elements, 2 * kLightGrain, [&](int64_t begin, int64_t end) {
        std::memcpy(a.out<Word>(0) + begin, a.in<Word>(0) + begin, (end - begin) * sizeof(Word));
      });
    });
  if (loops.stride[0][inner] == 1 && loops.stride[1][inner] != 1)
    for (int d = 0; d < inner; ++d)
      if (loops.stride[1][d] == 1) copy.crossed = d;
  for (int d = 0; d < inner; ++d)
    if (d != copy.crossed) copy.outer *= loops.size[d];
  if (copy.crossed >= 0)
    return make_kernel([copy, inner](const KernelArguments& a) {
      parallel_for(
          copy.outer * copy.bands(), row_grain(kLightGrain, kEdge * copy.loops.size[inner]),
          [&](int64_t begin, int64_t end) { copy.run_bands(a.in<Word>(0), a.out<Word>(0), begin, end); });
    });
  return make_kernel([copy, inner](const KernelArguments& a) {
    parallel_for(copy.outer, row_grain(kLightGrain, copy.loops.size[inner]), [&](int64_t begin, int64_t end) {
      copy.run_rows(a.in<Word>(0), a.out<Word>(0), begin, end);
    });
  });
}

std::unique_ptr<Kernel> prepare_copy(const KernelRequest& request) {
  if (request.inputs[0].type.dtype != request.outputs[0].type.dtype)
    refuse(request, "a change of dtype (use cast)");
  switch (bytes_of(request.inputs[0].type.dtype)) {
    case 1: return prepare_copy_of<uint8_t>(request);
    case 2: return prepare_copy_of<uint16_t>(request);
    case 4: return prepare_copy_of<uint32_t>(request);
    default: return prepare_copy_of<uint64_t>(request);
  }
}

template <typename Word, typename Element>
std::unique_ptr<Kernel> fill_with(int64_t elements, Element element) {
  static_assert(sizeof(Word) == sizeof(Element));
  Word word;
  std::memcpy(&word, &element, sizeof word);
  return make_kernel([elements, word](const KernelArguments& a) {
    parallel_for(elements, 2 * kLightGrain, [&](int64_t begin, int64_t end) {
      Word* y = a.out<Word>(0);
      for (int64_t i = begin; i < end; ++i) y[i] = word;
    });
  });
}

std::unique_ptr<Kernel> prepare_fill(const KernelRequest& request) {
  const Layout& out = request.outputs[0];
  require_packed(request, out);
  const int64_t n = out.type.elements();
  const double value = number(request, "value", 0.0);
  switch (out.type.dtype) {
    case DType::f32: return fill_with<uint32_t>(n, static_cast<float>(value));
    case DType::f64: return fill_with<uint64_t>(n, value);
    case DType::bf16: return fill_with<uint16_t>(n, bf16(static_cast<float>(value)));
    case DType::f16: return fill_with<uint16_t>(n, f16(static_cast<float>(value)));
    case DType::i32: return fill_with<uint32_t>(n, static_cast<int32_t>(value));
    case DType::i64: return fill_with<uint64_t>(n, static_cast<int64_t>(value));
    case DType::u8: return fill_with<uint8_t>(n, static_cast<uint8_t>(value));
    case DType::boolean: return fill_with<uint8_t>(n, static_cast<uint8_t>(value != 0));
    default: refuse_dtype(request, out.type.dtype);
  }
}

std::unique_ptr<Kernel> prepare_constant(const KernelRequest& request) {
  require_packed(request, request.outputs[0]);
  return make_kernel([bytes = constant_bytes(request)](const KernelArguments& a) {
    std::memcpy(a.outputs[0], bytes.data(), bytes.size());
  });
}

}  // namespace

std::vector<KernelEntry> shape_kernels() {
  return {{"copy", prepare_copy}, {"fill", prepare_fill}, {"constant", prepare_constant}};
}

}  // namespace het::cpu::HET_ISA
