// An inventory: who holds which slices of which tensors, of which version. What a plan needs is found in it:
// from whom it can come, and what nobody has.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/shape.h"
#include "core/tensor/slice.h"

namespace het {

// The state after a step. A step that is trained again, by another generation of the run, gives another one.
struct Version {
  int64_t step = 0;
  int64_t generation = 0;  // that decided the step
  auto operator<=>(const Version&) const = default;
};

// A value; safe to read from several threads.
class Inventory {
 public:
  struct Tensor {
    TensorType type;       // of the whole
    bool trained = false;  // a parameter, not state of the optimizer
  };

  // Throws Error(usage) where others hold it with another type.
  void add(const std::string& name, const Tensor& tensor, int holder, const TensorSlice& slice,
           Version version = {});

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // A part of what is needed, and all that have the whole of it, ascending; none: nobody has it.
  struct Piece {
    TensorSlice slice;
    std::vector<int> holders;
  };
  // `need` in disjoint pieces, each held whole or not at all by each holder. In an order that depends on the
  // inventory and `need` alone.
  std::vector<Piece> find(const std::string& name, const TensorSlice& need, Version version = {}) const;

  // One holder for each piece: `receiver` itself where it has it, otherwise the next holder in a ring, so
  // that receivers ask different ones. Empty when something is held by nobody.
  struct Source {
    TensorSlice slice;
    int holder;
  };
  std::optional<std::vector<Source>> sources(const std::string& name, const TensorSlice& need, int receiver,
                                             Version version = {}) const;

  // The versions in which somebody holds something, the newest first.
  std::vector<Version> versions() const;
  // The newest version in which somebody has each of the needs.
  struct Need {
    std::string name;
    TensorSlice slice;
  };
  std::optional<Version> newest_with(std::span<const Need> needs) const;

 private:
  struct Holding {
    TensorSlice slice;
    std::vector<int> holders;  // ascending
  };
  std::map<std::string, Tensor> tensors_;
  std::map<std::pair<std::string, Version>, std::vector<Holding>> holdings_;  // each slice once
};

}  // namespace het
