// One round of a migration as one rank sees it: what it sends, receives and reads from its tiers. Internal to
// core/run.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/run/migration.h"

namespace het {

// Reads what a rank needs from the store, in the order of the plan, on a thread of its own: the store is
// slow, and what moves between ranks does not wait for it. At most `kMovingBytes` / 2 ahead of take().
class StoreReads {
 public:
  // `rank` reads these moves of the plan. Both outlive it.
  StoreReads(const MigrationPlan& plan, int rank, TierReader* tiers);
  ~StoreReads();  // waits for the read that is under way
  StoreReads(const StoreReads&) = delete;
  StoreReads& operator=(const StoreReads&) = delete;

  // The elements of a move, waiting for them. In the order of the plan. Throws what the read threw.
  Tensor take(const SliceMove& move);

 private:
  struct Read {
    const SliceMove* move;
    std::optional<Tensor> elements;
    std::exception_ptr failure;
  };
  void read_all(Version version, TierReader& tiers);

  std::vector<Read> reads_;
  size_t taken_ = 0;
  std::mutex mutex_;  // of reads_' results and of all below
  std::condition_variable changed_;
  int64_t ahead_bytes_ = 0;  // read or being read, not taken
  bool stopping_ = false;
  std::thread thread_;
};

// What all rounds of a migration share.
struct MovingState {
  Communicator& group;
  const std::vector<Communicator*> lanes;  // that carry the parts: the group, and more of the same ranks
  const std::map<std::string, const StatePart*>& needs;
  const StateStore& state;  // of this rank
  const bool has_version;   // `state` is of the version that moves: of another none is used
  const bool leaves_state;  // for another store: also what this rank has comes into it
  const Version version;
  TierReader* const tiers;
  StoreReads& store;
};

// Messages of one channel go one after the other, each announced by its receiver: several channels for each
// pair of ranks, so that the link is not idle meanwhile; of much that moves each has a connection.
inline constexpr int kMovingChannels = 1 + kMovingLanes;

class MovingRound {
 public:
  MovingRound(const MovingState& common, const MigrationPlan::Round& round)
      : common_(common), round_(round) {}

  // Begin to receive, read what others need, and begin to send it.
  void begin();
  // Until all of this rank's part of it is done. What was damaged is known then.
  void finish();

  bool is_sound() const { return unsound_.empty(); }     // all that came here, and all that was read here
  const std::string& damage() const { return damage_; }  // that was found here, a sentence; empty: none
  // What this rank needs of the round's tensors and has otherwise (for another store: also what it has), less
  // tensors that are not sound.
  std::vector<StateStore::Spare> take_arrived();
  const std::vector<std::string>& tensors() const { return round_.tensors; }
  int64_t bytes() const;  // that this rank takes for it

 private:
  // A part of a tensor in the host's memory.
  struct Piece {
    TensorSlice slice;
    Tensor elements;
  };
  // What goes to one peer, or comes from it. Checksums of all of it follow.
  struct Stream {
    std::vector<const SliceMove*> moves;
    std::vector<int64_t> seals;  // [moves, 2]: whether its elements are those that were read, their checksum
    std::array<int64_t, kMovingChannels> bytes{};  // of the moves, by channel
    int take_channel(int64_t bytes);               // for the next move: the one with the fewest bytes
  };
  struct Receipt {
    const SliceMove* move;
    Tensor elements;  // in their place in what is needed, or beside it
    bool in_place = false;
    Collective* collective = nullptr;
    uint32_t checksum = 0;
  };

  void prepare_needed();
  void begin_receives();
  void begin_sends();
  void keep_own();
  void read_own_tiers();
  void check(const Stream& stream, int peer, const std::vector<const Receipt*>& receipts);

  bool stays(const std::string& name) const;
  const std::vector<Piece>& own(const std::string& name);
  Tensor packed(const SliceMove& move);
  Collective& start(CollectiveKind kind, int peer, int channel, DType dtype, int64_t elements,
                    const std::string& label, const std::byte* in, std::byte* out);
  void place(const SliceMove& move, const Tensor& elements);
  void lose(const SliceMove& move, const std::string& why);

  const MovingState& common_;
  const MigrationPlan::Round& round_;
  std::map<std::string, std::vector<Piece>> own_;  // of tensors that are looked at
  std::map<std::string, StateStore::Spare> arrived_;
  std::vector<Receipt> receipts_;
  std::map<int, Stream> sent_, received_;  // by peer
  std::vector<Tensor> sending_;
  std::vector<std::string> unsound_;  // tensors
  std::string damage_;
  std::vector<std::unique_ptr<Collective>> running_;  // goes before the memory that it uses
};

}  // namespace het
