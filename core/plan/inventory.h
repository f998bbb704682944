// An inventory: for each tensor and version, which holder has which slices. It answers where a slice that a
// plan needs can come from, and which slices are missing.
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

// The state after a step. If another generation of the run trains a step again, that is another version.
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

  // Throws Error(usage) if another holder has it with another type.
  void add(const std::string& name, const Tensor& tensor, int holder, const TensorSlice& slice,
           Version version = {});

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // A part of a slice, and every holder that has all of that part, ascending. No holders: it is missing.
  struct Piece {
    TensorSlice slice;
    std::vector<int> holders;
  };
  // `need` in disjoint pieces; each holder has all of a piece or none of it. The order depends only on the
  // inventory and `need`.
  std::vector<Piece> find(const std::string& name, const TensorSlice& need, Version version = {}) const;

  // One holder for each piece: `receiver` itself if it has the piece, otherwise the next holder above it
  // (after the last, the first), so that receivers use different holders. nullopt: a piece is missing.
  struct Source {
    TensorSlice slice;
    int holder;
  };
  std::optional<std::vector<Source>> sources(const std::string& name, const TensorSlice& need, int receiver,
                                             Version version = {}) const;

  // The slices that one holder has of a tensor.
  std::vector<TensorSlice> held_by(int holder, const std::string& name, Version version = {}) const;

  // The versions with any slice held, the newest first.
  std::vector<Version> versions() const;
  // The newest version that covers every need.
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
