// The operations that one device has under way by NCCL: which are done, which are held up and by which rank,
// and how they end together. Internal to nccl*.cpp.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/operations.h"
#include "kernels/cuda/nccl_api.h"
#include "kernels/cuda/runtime.h"

namespace het::HET_CUDA {

inline constexpr std::chrono::milliseconds kLook{5};    // how often operations under way are looked at
inline constexpr std::chrono::milliseconds kGrace{20};  // for what a lost peer sent before
inline constexpr std::chrono::milliseconds kName{
    500};  // after an error of NCCL's, for the host to hear who is lost
inline constexpr std::chrono::seconds kDrain{30};  // for the GPU to end what was aborted
inline constexpr int64_t kSequences = 1ll << 40;   // our operations on the board, apart from the host's

class NcclGroup;

struct NcclOperation : TrackedOperation {
  cudaEvent_t ready = nullptr;  // on the compute stream: the operand is there
  cudaEvent_t done = nullptr;   // on the lane's stream
  bool queued = false;          // NCCL has taken it up; `done` is recorded
  CommClock::time_point waited_since{}, lost_since{}, error_since{};  // noticed; zero: not so
  bool warned = false;
};

// One communicator of NCCL's with its stream, on which operations run in their order: all collectives of a
// group, or the messages of one channel.
struct NcclLane : OperationQueue {
  bool exchanges = false;  // some collective sends from each rank to each
  nccl::Comm* comm = nullptr;
  cudaStream_t stream = nullptr;
  bool connected = false;

  NcclOperation& oldest() const { return static_cast<NcclOperation&>(*first()); }
};

// All communicators of one device, from the first until a failure: one that fails takes all others with it,
// because ncclCommAbort of one can wait for kernels of another that will never end. NCCL is called with the
// mutex held, never for long: nothing here blocks, but for an abort.
class NcclContext : public OperationTracker {
 public:
  explicit NcclContext(const Context& context);
  ~NcclContext();
  NcclContext(const NcclContext&) = delete;
  NcclContext& operator=(const NcclContext&) = delete;

  // Abort everything. `why`: as reported to peers, and the operations' reason. Returns when nothing touches
  // the memory of operations any more, or when the GPU has not stopped within kDrain. Called without the
  // mutex.
  void fail(const std::string& why);
  // Take from the lanes what is done.
  void reap();
  // Throws Error(peer) with the reason of an operation that was lost, unless that was thrown before.
  void throw_untold();
  // The end of a wait: as OperationTracker's, and the reason counts as reported.
  void end_wait(NcclOperation& operation);

  const nccl::Functions& nccl;
  const int ordinal;
  const cudaStream_t compute;

  // Guarded by the mutex, as all of all groups is.
  std::vector<NcclGroup*> groups;

 private:
  void monitor();
  void look(Lock& lock);

  bool closing_ = false;
  std::string untold_;  // the reason of an operation that was lost; empty: none, or it was reported
  std::thread monitor_;
};

// Wait a little, with the lock given back meanwhile.
void pause(OperationTracker::Lock& lock, CommClock::time_point since);

// What is due in a wait that is looked at now and then: one warning, then the end.
enum class Due { nothing, warning, failure };
Due due_after(CommClock::duration waited, bool warned, const Timeouts& timeouts);

// Why the first of these that is lost is; empty: none is, for all the host's group knows.
std::string lost_among(const std::vector<int>& peers, FailureDetector& detector);

// "waiting 1.0 s for rank 2 on h (has not arrived) during <what>", or for one that holds it up; `over`: "lost
// rank 2 on h (did not arrive within 1.0 s) during <what>". `sequence`: of the operation on the board;
// absent: who waits for it as well is not asked.
std::string waiting_sentence(FailureDetector& detector, const std::string& what, CommClock::time_point since,
                             bool over, std::vector<int> missing, std::optional<int64_t> sequence);

}  // namespace het::HET_CUDA
