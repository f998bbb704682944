// A libnccl for the emulated GPUs, whose ranks are threads of one process. It keeps to NCCL's rules where
// breaking them would pass unnoticed otherwise: a communicator is at work for a while before it is ready; the
// first message between two ranks connects them, for which both must come; nothing may be asked of a
// communicator that is at work; operations of one communicator match in order; those of a peer that aborted
// never end, and the error shows beside them; an abort waits for all that its GPU's streams do.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/comm/reduce.h"
#include "kernels/cuda/nccl_api.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kVersion = 22809;
constexpr milliseconds kInit{3};     // after the last rank has come
constexpr milliseconds kNotice{10};  // until a peer's abort is noticed

[[noreturn]] void misused(const std::string& what) {
  std::fprintf(stderr, "emulated NCCL: %s\n", what.c_str());
  std::abort();
}

enum class Kind : uint8_t { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, receive };

struct Call {
  Kind kind;
  const std::byte* in;
  std::byte* out;
  size_t count;
  nccl::Type type;
  nccl::Op op;
  int root;  // or peer
};

het::DType dtype_of(nccl::Type type) {
  switch (type) {
    case nccl::f32: return het::DType::f32;
    case nccl::f64: return het::DType::f64;
    case nccl::bf16: return het::DType::bf16;
    case nccl::f16: return het::DType::f16;
    case nccl::i32: return het::DType::i32;
    case nccl::i64: return het::DType::i64;
    case nccl::u8: return het::DType::u8;
  }
  misused("a type that there is not");
}

// One rank's part in an operation, when its stream has come to it.
struct Part {
  Call call;
  bool done = false;
};

// What the ranks of a communicator share; all under its mutex.
struct Meeting {
  explicit Meeting(int ranks)
      : here(static_cast<size_t>(ranks)), aborted(here.size()), finalized(here.size()), next(here.size()) {}
  std::mutex mutex;
  std::vector<bool> here, aborted, finalized;
  Clock::time_point complete{}, first_abort{};
  std::vector<int64_t> next;  // by rank: collectives taken up
  std::map<int64_t, std::map<int, std::shared_ptr<Part>>> collectives;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Part>>> sends, receives;  // by from and to
  std::set<std::pair<int, int>> greeted;  // rank and peer: it has called for a message
  bool is_connected(int a, int b) const {
    return a == b || (greeted.contains({a, b}) && greeted.contains({b, a}));
  }
};

void run_collective(std::map<int, std::shared_ptr<Part>>& parts) {
  const Call& first = parts.at(0)->call;
  const int ranks = static_cast<int>(parts.size());
  for (auto& [rank, part] : parts)
    if (part->call.kind != first.kind || part->call.count != first.count || part->call.type != first.type ||
        part->call.op != first.op || part->call.root != first.root)
      misused("ranks take part in different operations at one place");
  const het::DType dtype = dtype_of(first.type);
  const auto bytes = first.count * static_cast<size_t>(het::bytes_of(dtype));
  const auto reduction = first.op == nccl::max ? het::Reduction::max : het::Reduction::sum;
  const auto reduced = [&](size_t offset) {
    std::vector<const std::byte*> inputs;
    for (int rank = 0; rank < ranks; ++rank) inputs.push_back(parts.at(rank)->call.in + offset);
    std::vector<std::byte> result(bytes);
    het::reduce_blocks(dtype, reduction, result.data(), inputs.data(), ranks,
                       static_cast<int64_t>(first.count));
    return result;
  };
  const auto copy = [&](std::byte* to, const std::byte* from) { std::memmove(to, from, bytes); };
  switch (first.kind) {
    case Kind::all_reduce: {
      const auto result = reduced(0);
      for (auto& [rank, part] : parts) copy(part->call.out, result.data());
      break;
    }
    case Kind::reduce: copy(parts.at(first.root)->call.out, reduced(0).data()); break;
    case Kind::broadcast: {
      const std::vector<std::byte> data(parts.at(first.root)->call.in, parts.at(first.root)->call.in + bytes);
      for (auto& [rank, part] : parts) copy(part->call.out, data.data());
      break;
    }
    case Kind::all_gather: {
      std::vector<std::byte> data;
      for (auto& [rank, part] : parts) data.insert(data.end(), part->call.in, part->call.in + bytes);
      for (auto& [rank, part] : parts) std::memcpy(part->call.out, data.data(), data.size());
      break;
    }
    case Kind::reduce_scatter: {
      std::vector<std::vector<std::byte>> results;
      for (int rank = 0; rank < ranks; ++rank) results.push_back(reduced(static_cast<size_t>(rank) * bytes));
      for (auto& [rank, part] : parts) copy(part->call.out, results[static_cast<size_t>(rank)].data());
      break;
    }
    default: misused("a message among collectives");
  }
  for (auto& [rank, part] : parts) part->done = true;
}

// What streams of a GPU are doing for NCCL: an abort waits for it, as freeing memory does.
struct Busy {
  std::mutex mutex;
  std::map<int, int> launches;  // by device
};
Busy& busy() {
  static Busy all;
  return all;
}

}  // namespace

namespace nccl {

struct Comm {
  std::shared_ptr<Meeting> meeting;
  int ranks = 0, rank = 0;
  bool finalizing = false;
  std::shared_ptr<std::atomic<bool>> abort = std::make_shared<std::atomic<bool>>(false);
  std::set<int> devices;
  // What waits for pairs to be connected before it is launched.
  std::vector<Call> held;
  cudaStream_t held_for = nullptr;
};

}  // namespace nccl

namespace {

using nccl::Comm;
using nccl::Result;

struct World {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Meeting>> meetings;
  uint64_t ids = 0;
};
World& world() {
  static World all;
  return all;
}

void launch(Comm& comm, std::vector<Call> calls, cudaStream_t stream) {
  struct Launch {
    std::vector<Call> calls;
    std::vector<std::shared_ptr<Part>> parts;
    bool begun = false;
  };
  const int device = stream->device();
  comm.devices.insert(device);
  {
    std::lock_guard lock(busy().mutex);
    ++busy().launches[device];
  }
  stream->push([launch = std::make_shared<Launch>(Launch{std::move(calls), {}, false}), device,
                meeting = comm.meeting, rank = comm.rank, ranks = comm.ranks, abort = comm.abort] {
    const auto ended = [&] {
      std::lock_guard lock(busy().mutex);
      --busy().launches[device];
      return true;
    };
    std::lock_guard lock(meeting->mutex);
    if (abort->load()) return ended();
    if (!launch->begun) {
      if (meeting->first_abort != Clock::time_point{}) return false;  // the memory of others may be gone
      launch->begun = true;
      for (const Call& call : launch->calls) {
        const auto part = std::make_shared<Part>(Part{call});
        launch->parts.push_back(part);
        if (call.kind == Kind::send || call.kind == Kind::receive) {
          const bool sends = call.kind == Kind::send;
          const std::pair<int, int> way = sends ? std::pair(rank, call.root) : std::pair(call.root, rank);
          auto& others = sends ? meeting->receives[way] : meeting->sends[way];
          if (others.empty()) {
            (sends ? meeting->sends : meeting->receives)[way].push_back(part);
            continue;
          }
          const std::shared_ptr<Part> other = others.front();
          others.pop_front();
          if (other->call.count != call.count || other->call.type != call.type)
            misused("the two ends of a message differ");
          const Call& from = sends ? call : other->call;
          const Call& to = sends ? other->call : call;
          std::memmove(to.out, from.in, call.count * static_cast<size_t>(het::bytes_of(dtype_of(call.type))));
          part->done = other->done = true;
        } else {
          const int64_t place = meeting->next[static_cast<size_t>(rank)]++;
          auto& parts = meeting->collectives[place];
          parts[rank] = part;
          if (static_cast<int>(parts.size()) < ranks) continue;
          run_collective(parts);
          meeting->collectives.erase(place);
        }
      }
    }
    for (const auto& part : launch->parts)
      if (!part->done) return false;
    return ended();
  });
}

// With the meeting's mutex held: whether the communicator is at work, or what became of it.
Result state_of(Comm& comm) {
  Meeting& meeting = *comm.meeting;
  const Clock::time_point now = Clock::now();
  if (meeting.first_abort != Clock::time_point{} && now - meeting.first_abort >= kNotice)
    return nccl::remote_error;
  if (comm.finalizing) {
    const auto done = std::count(meeting.finalized.begin(), meeting.finalized.end(), true);
    return done == comm.ranks ? nccl::success : nccl::in_progress;
  }
  if (meeting.complete == Clock::time_point{} || now - meeting.complete < kInit) return nccl::in_progress;
  for (const Call& call : comm.held)
    if (!meeting.is_connected(comm.rank, call.root)) return nccl::in_progress;
  return nccl::success;
}

thread_local int depth = 0;
thread_local std::vector<std::tuple<Comm*, cudaStream_t, Call>> grouped;
thread_local std::vector<Comm*> to_abort;

Result launch_group() {
  Result result = nccl::success;
  auto calls = std::exchange(grouped, {});
  while (!calls.empty()) {
    Comm& comm = *std::get<0>(calls.front());
    const cudaStream_t stream = std::get<1>(calls.front());
    std::vector<Call> own;
    for (const auto& [other, on, call] : calls)
      if (other == &comm) own.push_back(call);
    std::erase_if(calls, [&](const auto& entry) { return std::get<0>(entry) == &comm; });
    std::unique_lock lock(comm.meeting->mutex);
    if (const Result state = state_of(comm); state == nccl::in_progress) {
      misused("something is asked of a communicator that is at work");
    } else if (state != nccl::success) {
      result = state;
      continue;
    }
    bool connected = true;
    for (const Call& call : own) {
      if (call.kind != Kind::send && call.kind != Kind::receive) continue;
      comm.meeting->greeted.insert({comm.rank, call.root});
      connected &= comm.meeting->is_connected(comm.rank, call.root);
    }
    if (connected) {
      lock.unlock();
      launch(comm, std::move(own), stream);
    } else {
      comm.held = std::move(own);
      comm.held_for = stream;
      result = nccl::in_progress;
    }
  }
  return result;
}

Result add(Comm* comm, cudaStream_t stream, const Call& call) {
  if (call.count == 0) misused("an operation of nothing");
  grouped.emplace_back(comm, stream, call);
  return depth > 0 ? nccl::success : launch_group();
}

void tell_abort(Comm& comm) {
  std::lock_guard lock(comm.meeting->mutex);
  comm.abort->store(true);
  comm.meeting->aborted[static_cast<size_t>(comm.rank)] = true;
  if (comm.meeting->first_abort == Clock::time_point{}) comm.meeting->first_abort = Clock::now();
}

// Freeing the communicator's memory waits for its GPU.
void finish_abort(Comm* comm) {
  for (const int device : comm->devices) {
    const Clock::time_point since = Clock::now();
    for (;;) {
      {
        std::lock_guard lock(busy().mutex);
        if (busy().launches[device] == 0) break;
      }
      if (Clock::now() - since > std::chrono::seconds(20))
        misused("an abort waits for operations of other communicators that no rank aborts");
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  delete comm;
}

const std::byte* at(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* at(void* p) { return static_cast<std::byte*>(p); }

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) { return *version = kVersion, nccl::success; }

Result ncclGetUniqueId(nccl::UniqueId* id) {
  std::lock_guard lock(world().mutex);
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "id %llu", static_cast<unsigned long long>(++world().ids));
  return nccl::success;
}

Result ncclCommInitRankConfig(Comm** comm, int ranks, nccl::UniqueId id, int rank, nccl::Config* config) {
  if (config->size != sizeof *config || config->magic != 0xcafebeef || config->version < 21400)
    return nccl::invalid_argument;
  if (config->blocking != 0) misused("a communicator that would block");
  auto made = std::make_unique<Comm>();
  made->ranks = ranks;
  made->rank = rank;
  {
    std::lock_guard lock(world().mutex);
    std::shared_ptr<Meeting>& meeting = world().meetings[id.internal];
    if (meeting == nullptr) meeting = std::make_shared<Meeting>(ranks);
    made->meeting = meeting;
  }
  Meeting& meeting = *made->meeting;
  std::lock_guard lock(meeting.mutex);
  if (static_cast<int>(meeting.here.size()) != ranks || rank < 0 || rank >= ranks ||
      meeting.here[static_cast<size_t>(rank)])
    misused("a rank comes twice, or of another number of ranks");
  meeting.here[static_cast<size_t>(rank)] = true;
  if (std::count(meeting.here.begin(), meeting.here.end(), true) == ranks) meeting.complete = Clock::now();
  *comm = made.release();
  return nccl::in_progress;
}

Result ncclCommGetAsyncError(Comm* comm, Result* error) {
  std::vector<Call> ready;
  {
    std::lock_guard lock(comm->meeting->mutex);
    *error = state_of(*comm);
    if (*error == nccl::success) ready = std::exchange(comm->held, {});
  }
  if (!ready.empty()) launch(*comm, std::move(ready), comm->held_for);
  return nccl::success;
}

Result ncclCommFinalize(Comm* comm) {
  std::lock_guard lock(comm->meeting->mutex);
  comm->finalizing = true;
  comm->meeting->finalized[static_cast<size_t>(comm->rank)] = true;
  return nccl::in_progress;
}

Result ncclCommDestroy(Comm* comm) {
  delete comm;
  return nccl::success;
}

Result ncclCommAbort(Comm* comm) {
  tell_abort(*comm);
  if (depth > 0)
    to_abort.push_back(comm);
  else
    finish_abort(comm);
  return nccl::success;
}

const char* ncclGetErrorString(Result result) {
  return result == nccl::remote_error ? "remote process exited or there was a network error" : "some error";
}
const char* ncclGetLastError(Comm*) { return "emulated"; }

Result ncclGroupStart() {
  ++depth;
  return nccl::success;
}
Result ncclGroupEnd() {
  if (--depth > 0) return nccl::success;
  for (Comm* comm : std::exchange(to_abort, {})) finish_abort(comm);
  return launch_group();
}

Result ncclAllReduce(const void* in, void* out, size_t count, nccl::Type type, nccl::Op op, Comm* comm,
                     cudaStream_t stream) {
  return add(comm, stream, {Kind::all_reduce, at(in), at(out), count, type, op, 0});
}
Result ncclReduce(const void* in, void* out, size_t count, nccl::Type type, nccl::Op op, int root, Comm* comm,
                  cudaStream_t stream) {
  return add(comm, stream, {Kind::reduce, at(in), at(out), count, type, op, root});
}
Result ncclBroadcast(const void* in, void* out, size_t count, nccl::Type type, int root, Comm* comm,
                     cudaStream_t stream) {
  return add(comm, stream, {Kind::broadcast, at(in), at(out), count, type, nccl::sum, root});
}
Result ncclAllGather(const void* in, void* out, size_t count, nccl::Type type, Comm* comm,
                     cudaStream_t stream) {
  return add(comm, stream, {Kind::all_gather, at(in), at(out), count, type, nccl::sum, 0});
}
Result ncclReduceScatter(const void* in, void* out, size_t count, nccl::Type type, nccl::Op op, Comm* comm,
                         cudaStream_t stream) {
  return add(comm, stream, {Kind::reduce_scatter, at(in), at(out), count, type, op, 0});
}
Result ncclSend(const void* in, size_t count, nccl::Type type, int peer, Comm* comm, cudaStream_t stream) {
  return add(comm, stream, {Kind::send, at(in), nullptr, count, type, nccl::sum, peer});
}
Result ncclRecv(void* out, size_t count, nccl::Type type, int peer, Comm* comm, cudaStream_t stream) {
  return add(comm, stream, {Kind::receive, nullptr, at(out), count, type, nccl::sum, peer});
}

}  // extern "C"
