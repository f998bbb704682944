// Helpers that read a KernelRequest, for the kernels of every device. Compiled once (request.cpp), for any
// processor, so that files compiled for several instruction sets share no templates of the standard library.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/random.h"
#include "core/device/device.h"

namespace het::kernels {

inline constexpr int kMaxRank = 8;  // of loops after merging
inline constexpr int kMaxOperands = 16;

// Nested loops over the elements of several operands that have one shape: the outermost first, dimensions
// that are adjacent in every operand merged, those of size 1 dropped. rank >= 1.
struct Loops {
  int rank = 1;
  int64_t size[kMaxRank] = {1};
  int64_t stride[kMaxOperands][kMaxRank] = {};  // [operand][loop], elements

  int64_t elements() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= size[d];
    return count;
  }
};

// Operands are broadcast to `shape` first. Throws Error(usage) when more than kMaxRank loops remain.
Loops merge_loops(const KernelRequest& request, const Shape& shape, std::span<const Layout* const> operands);

// The loops of a copy, ordered so that the target is written in the order of its memory: operand 0 is the
// target, operand 1 the source.
Loops copy_loops(const KernelRequest& request, const Layout& to, const Layout& from);

// The loops of a reduction over the input's elements: operand 0 is the input, operand 1 the packed result,
// whose stride is 0 in loops that are summed. All loops when `dims` is absent or empty.
Loops reduction_loops(const KernelRequest& request);

// Sizes before, at and after one dimension (-1: the last).
struct Split3 {
  int64_t outer, size, inner;
};
Split3 split_at(const Shape& shape, int64_t dim);

// Throws Error(usage): this kernel takes no operands of this type.
[[noreturn]] void refuse_dtype(const KernelRequest& request, DType dtype);
[[noreturn]] void refuse(const KernelRequest& request, std::string_view why);
// Throws unless the operand is packed.
void require_packed(const KernelRequest& request, const Layout& layout);
// f32, bf16 or f16: what kernels compute in f32.
bool is_narrow(DType dtype);
// Throws Error(usage) unless all operands are packed and narrow.
void require_packed_floats(const KernelRequest& request);
// Throws Error(usage) naming the first value outside [0, limit).
[[noreturn]] void refuse_index(const char* op, int64_t position, int64_t value, int64_t limit);
// Throws Error(usage): so many tokens from `position` on do not fit.
[[noreturn]] void refuse_position(const char* op, int64_t tokens, int64_t position, int64_t cache);
// Where a token of attention may begin to see: not before the token before it, and not behind itself.
// Throws Error(usage): this one does not.
[[noreturn]] void refuse_start(const char* op, int64_t token, int64_t start);
// The same for a row of as many, unless all do.
void require_starts(const char* op, const int32_t* starts, int64_t count);

// Rows of the last dimension, empty ones too.
int64_t rows_of(const Layout& layout);

// A packed operand as rows of its last dimension.
struct Rows {
  int64_t count, columns;
};
Rows packed_rows(const KernelRequest& request, const Layout& layout);

double number(const KernelRequest& request, std::string_view attribute, double fallback);
int64_t integer(const KernelRequest& request, std::string_view attribute, int64_t fallback);
bool flag(const KernelRequest& request, std::string_view attribute, bool fallback);
// Of constant: its values, as bytes of the result's dtype.
std::vector<std::byte> constant_bytes(const KernelRequest& request);
// Of adamw and adamw_n: the weight decay of one of their parameters.
double weight_decay_of(const KernelRequest& request, size_t parameter);
// Of the attributes `seed` and `stream`: what an operator draws with.
PhiloxKey draw_key(const KernelRequest& request);

inline bool present(std::span<const Layout> operands, size_t i) {
  return i < operands.size() && operands[i].type.dtype != DType::none;
}

}  // namespace het::kernels
