// Runs one case on a device: operands at odd addresses and strides between guard bytes, results poisoned
// beforehand. Every function returns what is wrong as sentences; none means that all is well.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/device/device.h"
#include "core/tensor/tensor.h"
#include "tests/ops/case.h"

namespace het::ops_test {

// How operands that may be strided are laid out; all others are packed.
enum class Placing : uint8_t {
  packed,
  padded,    // gaps between rows, as in a slice of something wider
  permuted,  // outer dimensions in reverse order of memory, as after a transpose
  reversed,  // all dimensions in reverse order of memory: only for `copy`
  spaced,    // gaps of 8 elements between rows: for accesses of 16 bytes
};
std::string_view name_of(Placing placing);

// Draws of one operand, the same for every dtype and device up to rounding.
Tensor drawn(const OperandCase& operand, const TensorType& type, uint64_t stream);
std::vector<Tensor> drawn_inputs(const Case& test, DType dtype);

// The results in f64 from the values that `inputs` hold (rounded as they are), by plain loops.
std::vector<Tensor> oracle(const OpDef& op, const std::vector<Tensor>& inputs, const Attributes& attributes);

// A case in one dtype: its operands and what they should give.
struct TypedCase {
  const Case& test;
  DType dtype;
  std::vector<Tensor> inputs, wanted;
};
TypedCase typed_case(const Case& test, DType dtype);

// Run the kernel of `device` for this case and compare with the oracle. `supported` is set to false when the
// device refuses the dtype.
struct Trial {
  const TypedCase& typed;
  Placing placing = Placing::packed;
  uint32_t accumulate = 0;
  bool aligned = false;  // operands begin at multiples of 64 bytes, not three elements past one
  uint32_t absent = 0;   // bit o: result o is not asked for
};
std::vector<std::string> compare(Device& device, const Trial& trial, bool& supported);

// What differs between a result and what it should be.
std::optional<std::string> difference(const Tensor& result, const Tensor& wanted, const Tolerance& tolerance);

// Gradients through lowering (and fusion, if asked to) on the reference device in f64 against central
// differences.
std::vector<std::string> check_gradient(const Case& test, bool fused);

// The case as a graph of one node, run on `device` through lowering: for operators without kernels of their
// own.
std::vector<std::string> check_graph(const std::shared_ptr<Device>& device, const Case& test, DType dtype);

}  // namespace het::ops_test
