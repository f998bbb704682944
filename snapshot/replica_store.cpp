#include "snapshot/replica_store.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <future>
#include <set>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/base/idle_priority.h"
#include "core/base/units.h"
#include "core/io/file.h"
#include "snapshot/reader.h"

namespace het {
namespace {

constexpr size_t kMostPending = 1024;  // ranks

std::shared_ptr<OfferOutcome> refused(std::string sentence) {
  return std::make_shared<OfferOutcome>(SnapshotRefusal{std::move(sentence)});
}

bool stands_before(const HeldReplica& a, const HeldReplica& b) {
  if (a.name.rank != b.name.rank) return a.name.rank < b.name.rank;
  return is_later(a.name.version, b.name.version);
}

// What a writer leaves when it is killed (AtomicFile).
bool is_unfinished(const std::string& name) {
  const auto finished = name_of_unfinished(name);
  return finished && parse_snapshot_name(*finished);
}

std::string show(int64_t bytes) { return show_bytes(static_cast<double>(bytes)); }

}  // namespace

ReplicaStore::ReplicaStore(ReplicaStoreOptions options)
    : options_(std::move(options)), peers_(options_.identity), budget_bytes_(options_.budget_bytes) {
  make_folder(options_.folder);
  folder_ = Descriptor(::open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // File systems without locks leave it to the caller.
  if (folder_ && ::flock(folder_.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail_usage("another process keeps its replicas in '{}'", options_.folder);
  take_over();
  thread_ = std::thread([this] { run(); });
}

ReplicaStore::~ReplicaStore() {
  peers_.stop();
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    if (idle_peers_ != nullptr) idle_peers_->stop();
    changed_.notify_all();
  }
  thread_.join();
  while (!spent_.empty()) ::unlink(pop_spent().c_str());
  for (const Pending& pending : pending_) pending.outcome->finish(SnapshotRefusal{"the process ends"});
}

void ReplicaStore::warn(const std::string& sentence) const {
  if (options_.warn != nullptr) options_.warn(sentence);
}

void ReplicaStore::take_over() {
  const Path folder = options_.folder;
  for (const FolderEntry& entry : list_folder(folder)) {
    const std::string path = folder.child(entry.name).text;
    if (is_unfinished(entry.name)) ::unlink(path.c_str());
    const auto name = parse_snapshot_name(entry.name);
    if (!name || entry.kind != FileKind::file) continue;
    try {
      SnapshotFile::open(path);
      held_.push_back({entry.name, *name, entry.bytes});
    } catch (const Error& error) {
      warn(fmt::format("a replica is removed: {}", error.sentence()));
      ::unlink(path.c_str());
    }
  }
  std::sort(held_.begin(), held_.end(), stands_before);
}

std::vector<HeldReplica> ReplicaStore::held() const {
  std::lock_guard lock(mutex_);
  return held_;
}

const HeldReplica* ReplicaStore::latest_of(int64_t rank) const {
  const auto found = std::find_if(held_.begin(), held_.end(),
                                  [&](const auto& replica) { return replica.name.rank == rank; });
  return found == held_.end() ? nullptr : &*found;
}

bool ReplicaStore::is_held(const std::string& file) const {
  return std::any_of(held_.begin(), held_.end(), [&](const auto& replica) { return replica.file == file; });
}

void ReplicaStore::remove(std::vector<HeldReplica>::iterator replica) {
  ::unlink(Path(options_.folder).child(replica->file).text.c_str());
  held_.erase(replica);
}

// The same, without freeing its memory: on tmpfs that takes a millisecond for each 8 MB.
void ReplicaStore::set_aside(std::vector<HeldReplica>::iterator replica) {
  const std::string path = Path(options_.folder).child(replica->file).text, spent = unfinished_name(path);
  if (std::rename(path.c_str(), spent.c_str()) == 0) spent_.push_back({spent, replica->bytes});
  held_.erase(replica);
}

// One for each rank that replicas are of.
bool ReplicaStore::has_too_many_spent() const {
  std::set<int64_t> ranks;
  for (const HeldReplica& replica : held_) ranks.insert(replica.name.rank);
  return spent_.size() > ranks.size();
}

// The one that was set aside first.
std::string ReplicaStore::pop_spent() {
  std::string path = std::move(spent_.front().path);
  spent_.erase(spent_.begin());
  return path;
}

// One with so many bytes.
std::optional<std::string> ReplicaStore::take_spent(int64_t bytes) {
  const auto found =
      std::find_if(spent_.begin(), spent_.end(), [&](const SpentFile& file) { return file.bytes == bytes; });
  if (found == spent_.end()) return std::nullopt;
  std::string path = std::move(found->path);
  spent_.erase(found);
  return path;
}

void ReplicaStore::set_budget(int64_t bytes) {
  std::lock_guard lock(mutex_);
  budget_bytes_ = bytes;
}

void ReplicaStore::drop_before(const Version& version) {
  std::lock_guard lock(mutex_);
  for (auto at = held_.begin(); at != held_.end();) {
    if (!is_later(version, at->name.version)) {
      ++at;
      continue;
    }
    const auto index = at - held_.begin();
    set_aside(at);
    at = held_.begin() + index;
  }
  changed_.notify_all();
}

// Why nothing is to be fetched; empty: it is.
std::string ReplicaStore::problem_of(const SnapshotOffer& offer, const SnapshotName& name) const {
  if (ending_) return "the process ends";
  if (const HeldReplica* latest = latest_of(name.rank);
      latest != nullptr && is_later(latest->name.version, name.version))
    return fmt::format("'{}' is offered, and '{}' is here, which is later", offer.file, latest->file);
  if (offer.bytes > budget_bytes_)
    return fmt::format("'{}' has {}, and replicas may take {}", offer.file, show(offer.bytes),
                       show(budget_bytes_));
  return {};
}

std::shared_ptr<OfferOutcome> ReplicaStore::on_offer(const SnapshotOffer& offer) {
  const auto name = parse_snapshot_name(offer.file);
  HET_REQUIRE(name, offer.file);
  std::lock_guard lock(mutex_);
  if (is_held(offer.file)) return std::make_shared<OfferOutcome>(SnapshotTransfer{});
  if (std::string problem = problem_of(offer, *name); !problem.empty()) return refused(std::move(problem));
  const auto waiting = std::find_if(pending_.begin(), pending_.end(),
                                    [&](const Pending& pending) { return pending.name.rank == name->rank; });
  Pending next{offer, *name, std::make_shared<OfferOutcome>()};
  if (waiting != pending_.end()) {
    const bool later = is_later(waiting->name.version, name->version);
    const Pending earlier = later ? next : std::exchange(*waiting, next);
    earlier.outcome->finish(SnapshotRefusal{
        fmt::format("'{}' gave way to '{}', which is later", earlier.offer.file, waiting->offer.file)});
    return next.outcome;
  }
  if (pending_.size() >= kMostPending) return refused("too many offers are waiting");
  pending_.push_back(next);
  changed_.notify_all();
  return next.outcome;
}

void ReplicaStore::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !pending_.empty() || has_too_many_spent(); });
    if (ending_) return;
    if (has_too_many_spent()) {
      const std::string path = pop_spent();
      lock.unlock();
      ::unlink(path.c_str());
      lock.lock();
      continue;
    }
    const Pending next = std::move(pending_.front());
    pending_.erase(pending_.begin());
    lock.unlock();
    try {
      fetch(next);
    } catch (const Error& error) {
      const std::string sentence =
          fmt::format("no replica of '{}' was made: {}", next.offer.file, error.sentence());
      next.outcome->finish(SnapshotRefusal{sentence});
      if (!peers_.is_stopped()) warn(sentence);
    } catch (const std::bad_alloc&) {
      next.outcome->finish(SnapshotRefusal{out_of_memory().sentence()});
      warn(fmt::format("no replica of '{}' was made: {}", next.offer.file, out_of_memory().sentence()));
    }
    lock.lock();
  }
}

// An earlier version of `rank`, or one of another rank, that is not the latest of its rank; the earliest
// first.
std::vector<HeldReplica>::iterator ReplicaStore::dispensable(int64_t rank, bool same_rank) {
  auto found = held_.end();
  for (auto at = held_.begin(); at != held_.end(); ++at) {
    if ((at->name.rank == rank) != same_rank || &*at == latest_of(at->name.rank)) continue;
    if (found == held_.end() || is_later(found->name.version, at->name.version)) found = at;
  }
  return found;
}

// Why there is none; empty: there is.
std::string ReplicaStore::make_room(const Pending& next) {
  for (;;) {
    int64_t taken = 0;
    for (const HeldReplica& replica : held_) taken += replica.bytes;
    for (const SpentFile& file : spent_) taken += file.bytes;
    if (next.offer.bytes <= budget_bytes_ - taken) return {};
    if (!spent_.empty()) {
      ::unlink(pop_spent().c_str());
      continue;
    }
    auto goes = dispensable(next.name.rank, true);
    if (goes == held_.end()) goes = dispensable(next.name.rank, false);
    if (goes == held_.end())
      return fmt::format("it has {}; of the {} that replicas may take, the latest ones of all ranks have {}",
                         show(next.offer.bytes), show(budget_bytes_), show(taken));
    remove(goes);
  }
}

void ReplicaStore::fetch(const Pending& next) {
  struct Spent {
    std::optional<std::string> path;
    ~Spent() {
      if (path) ::unlink(path->c_str());  // where it was not used
    }
  } spent;
  FetchOptions options;
  options.bytes = next.offer.bytes;
  const Path folder = options_.folder;
  {
    std::lock_guard lock(mutex_);
    if (is_held(next.offer.file)) return next.outcome->finish(SnapshotTransfer{});  // offered twice
    spent.path = take_spent(next.offer.bytes);
    if (const std::string problem = make_room(next); !problem.empty())
      fail(ErrorKind::environment, "{}", problem);
    if (const HeldReplica* latest = latest_of(next.name.rank)) options.previous = folder.child(latest->file);
    options.spent = spent.path;
  }
  const SnapshotTransfer made = transfer(next, options);
  {
    std::lock_guard lock(mutex_);
    held_.push_back({next.offer.file, next.name, next.offer.bytes});
    std::sort(held_.begin(), held_.end(), stands_before);
  }
  next.outcome->finish(made);
}

SnapshotTransfer ReplicaStore::transfer_from(PeerSnapshots& peers, const Pending& next,
                                             const FetchOptions& options) const {
  return peers.fetch(parse_endpoint(next.offer.from), next.offer.file,
                     Path(options_.folder).child(next.offer.file), options);
}

// Throws what PeerSnapshots::fetch does.
SnapshotTransfer ReplicaStore::transfer(const Pending& next, const FetchOptions& options) {
  FetchPriority& priority = priorities_[next.name.rank];
  if (priority.is_idle()) {
    if (const auto made = transfer_idle(next, options)) return *made;
    priority.give_up_idle();
  }
  const auto began = std::chrono::steady_clock::now();
  const SnapshotTransfer made = transfer_from(peers_, next, options);
  priority.count_normal(next.offer.bytes, seconds_since(began));
  return made;
}

std::shared_ptr<PeerSnapshots> ReplicaStore::idle_peers() {
  std::lock_guard lock(mutex_);
  if (idle_peers_ == nullptr || idle_peers_->is_stopped()) {
    ExchangeIdentity identity = options_.identity;
    identity.idle = true;
    idle_peers_ = std::make_shared<PeerSnapshots>(std::move(identity));
    if (ending_) idle_peers_->stop();
  }
  return idle_peers_;
}

// Nothing: it took too long, or failed. The thread that waits keeps its priority, for it holds the lock at
// times.
std::optional<SnapshotTransfer> ReplicaStore::transfer_idle(const Pending& next,
                                                            const FetchOptions& options) {
  FetchPriority& priority = priorities_[next.name.rank];
  const std::shared_ptr<PeerSnapshots> peers = idle_peers();
  const auto began = std::chrono::steady_clock::now();
  std::future<SnapshotTransfer> made;
  try {
    made = std::async(std::launch::async, [&] {
      take_idle_priority();
      return transfer_from(*peers, next, options);
    });
  } catch (const std::system_error&) {  // the machine has no thread left
    return std::nullopt;
  }
  if (made.wait_for(priority.limit(next.offer.bytes)) != std::future_status::ready) peers->stop();
  try {
    const SnapshotTransfer transfer = made.get();
    priority.count_idle(transfer.transferred, seconds_since(began));
    return transfer;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace het
