// How the ranks that hold a layer sum its gradients: those that the same ranks sum, of one layer, stand side
// by side in one buffer, a bucket, which is summed at once as soon as the last of them is complete, while the
// backward pass goes on. With a sharded optimizer a bucket holds one block for each rank, of the gradients
// whose parameters it updates, and the parameters go the way back. Gradients of parameters that stages cut
// differently are summed in parts, which are packed into buckets and unpacked again.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "planner/lower/program_writer.h"
#include "planner/lower/rank_assignment.h"

namespace het {

class GradientBuckets {
 public:
  using PlaceOf = std::function<Operand(ValueId)>;

  // Adds the buckets' buffers to the program. `summands`: of each gradient, how many a step of this rank
  // makes. `place`: where a parameter lies, or a gradient that is not in a bucket. `graph`, `assignment` and
  // `out` must outlive it.
  GradientBuckets(const Graph& graph, const RankAssignment& assignment, std::map<ValueId, int> summands,
                  PlaceOf place, ProgramWriter& out);

  struct Place {
    ValueId gradient;
    Operand operand;  // its part of the bucket
    bool written;     // by this rank; otherwise it stays zero here
  };
  const std::vector<Place>& places() const { return places_; }

  // Where a step begins: clears what nothing writes, and starts what is complete without.
  void begin_step();
  // One more summand of a gradient was written.
  void note_summand(ValueId gradient);
  // No summand follows: with a late reduction all sums start here.
  void end_backward();
  // Before a gradient is used: the sum over all its ranks. Other values need nothing.
  void await(ValueId gradient);
  // At the end of a step, with a sharded optimizer: every rank gives the parameters that it updated to the
  // others that hold them.
  void share_parameters();

 private:
  struct Bucket {
    int group;
    Operand all;
    std::vector<ValueId> gradients;
    std::vector<int64_t> offsets = {};  // of each gradient, elements
    std::vector<int64_t> blocks = {};   // elements that each member keeps; empty: every member keeps all
    std::vector<int64_t> copies = {};   // of gradients that members have whole: elements that each gives
    // Of gradients that others cut otherwise: what is copied here when they are complete, and back when it is
    // summed. By gradient, at the same index.
    std::vector<RankAssignment::Piece> pieces = {};
    int start = -1;
    bool awaited = false;
  };

  void make(int group, int layer, DType dtype, std::vector<ValueId> gradients);
  void make_packed(int group, int layer, DType dtype, std::vector<RankAssignment::Piece> pieces);
  int start(const Bucket& bucket);
  void clear_copies(const Bucket& bucket);
  void pack(const Bucket& bucket);
  void unpack(const Bucket& bucket);
  template <typename TensorOf, typename Visit>
  void each_box(const Bucket& bucket, const Operand& all, const TensorOf& tensor_of, const Visit& visit);
  using VisitPart = std::function<void(int owner, const Operand& own, const Operand& packed)>;
  void each_parameter(const Bucket& bucket, const Operand& all, const VisitPart& visit);
  Layout rows_of(const Layout& all, ValueId gradient, Range rows) const;
  size_t member(int group, int rank) const;
  static std::string name_of(const Graph& graph, int layer);
  Operand own_block(const Bucket& bucket, const Operand& all, const std::vector<int64_t>& blocks) const;
  void start_complete();
  bool is_complete(const Bucket& bucket) const;

  const Graph& graph_;
  const RankAssignment& assignment_;
  PlaceOf place_;
  ProgramWriter& out_;
  std::map<ValueId, int> expected_;  // summands still to come
  std::vector<Bucket> buckets_;      // in the order in which those of a group start
  std::vector<Operand> unclean_;     // buckets with places that nothing writes
  std::vector<Place> places_;
};

}  // namespace het
