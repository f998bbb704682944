#include "snapshot/run_snapshots.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/io/file.h"
#include "core/net/proof.h"
#include "snapshot/collect.h"
#include "snapshot/upload.h"
#include "snapshot/writer.h"

namespace het {
namespace {

// Elements of a part, from the copy of a state. The tensor is let go with the last bytes.
std::function<void(std::byte*, int64_t, int64_t)> reader_of(std::shared_ptr<StateCopy> copy, StatePart part) {
  return [copy = std::move(copy), part = std::move(part), elements = Tensor()](std::byte* to, int64_t begin,
                                                                               int64_t bytes) mutable {
    if (begin == 0) {
      elements = copy->read(part.name);
      const auto& held = copy->entries().at(part.name).slice;
      const TensorSlice slice = held ? *held : TensorSlice::whole(part.tensor.type.shape);
      if (slice != part.slice) {
        Tensor cut(TensorType{elements.dtype(), part.slice.shape()});
        het::copy(cut, part.slice, elements, slice);
        elements = std::move(cut);
      }
    }
    std::copy_n(elements.bytes() + begin, bytes, to);
    if (begin + bytes == elements.type().bytes()) elements = {};
  };
}

std::vector<SnapshotPart> parts_of(const std::shared_ptr<StateCopy>& copy,
                                   const std::vector<StatePart>& parts) {
  std::vector<SnapshotPart> written;
  for (const StatePart& part : parts) written.push_back({part.name, part.slice, reader_of(copy, part)});
  return written;
}

int64_t bytes_of(const StatePart& part) {
  return part.slice.elements() * het::bytes_of(part.tensor.type.dtype);
}

void make_private_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    fail_environment("cannot make the folder '{}': {}", path, std::strerror(errno));
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != geteuid())
    fail_environment("'{}' is not a folder of this user", path);
}

constexpr std::string_view kSlotPrefix = "slot-";

// use(path) for each file in a folder and those in it. Other processes may remove any of them meanwhile.
template <typename Use>
void each_file_in(const std::filesystem::path& folder, Use use) {
  std::error_code ignored;
  std::filesystem::recursive_directory_iterator at(folder, ignored);
  for (const std::filesystem::recursive_directory_iterator end; !ignored && at != end;
       at.increment(ignored)) {
    std::error_code gone;
    if (at->is_regular_file(gone)) use(at->path());
  }
}

// What a store refuses here does not keep a snapshot from counting.
template <typename Body>
void unless_refused(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::bug) throw;
  }
}

// What a process that is gone was writing, or had set aside to write over.
bool is_orphan(const std::string& name) {
  if (was_left_unfinished(name)) return true;
  if (!name.starts_with(kSlotPrefix)) return false;
  const long pid = std::strtol(name.c_str() + kSlotPrefix.size(), nullptr, 10);
  return pid > 0 && kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
}

}  // namespace

SnapshotTask::SnapshotTask(Version version, Write write)
    : version_(version), write_(std::move(write)), thread_([this] {
        try {
          written_ = write_();
        } catch (...) {
          failure_ = std::current_exception();
        }
        write_ = nullptr;  // lets go of the copy of the state
        done_.store(true, std::memory_order_release);
      }) {}

SnapshotTask::~SnapshotTask() {
  if (thread_.joinable()) thread_.join();
}

const std::vector<SnapshotTask::Written>& SnapshotTask::wait() {
  if (thread_.joinable()) thread_.join();
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return written_;
}

std::vector<SnapshotTiers::Place> RunSnapshots::places_of(const Options& options) {
  std::vector<SnapshotTiers::Place> places;
  if (!options.memory_folder.empty())
    for (const std::string& folder :
         {scarce_folder(options.memory_folder), rest_folder(options.memory_folder),
          replica_folder(options.memory_folder)})
      places.push_back({Tier::memory, Path(folder), nullptr});
  if (options.disk_folder) places.push_back({Tier::disk, *options.disk_folder, nullptr});
  if (options.store != nullptr) places.push_back({Tier::store, {}, options.store});
  return places;
}

RunSnapshots::RunSnapshots(Options options) : options_(std::move(options)), tiers_(places_of(options_)) {
  if (options_.memory_folder.empty() || options_.address.empty()) return;
  make_folders();
  RunReplicas::Options exchange;
  exchange.run = options_.run;
  exchange.secret = options_.secret;
  exchange.address = options_.address;
  exchange.own_folder = scarce_folder(options_.memory_folder);
  exchange.folder = replica_folder(options_.memory_folder) + "/" + hex_of(random_bytes(8));
  exchange.host = options_.host;
  exchange.zone = options_.zone;
  exchange.budget_bytes = options_.memory_bytes;
  exchange.warn = options_.warn;
  exchange_ = std::make_unique<RunReplicas>(std::move(exchange));
}

RunSnapshots::~RunSnapshots() = default;

void RunSnapshots::make_folders() {
  make_private_folder(folder_of(options_.memory_folder));
  make_private_folder(options_.memory_folder);
  for (const std::string& folder :
       {scarce_folder(options_.memory_folder), rest_folder(options_.memory_folder),
        replica_folder(options_.memory_folder)})
    make_private_folder(folder);
}

void RunSnapshots::claim(int64_t run) {
  const std::scoped_lock guard(claiming_);
  if (is_claimed_) return;
  FolderClaim folder, store;
  if (options_.disk_folder) folder = FolderClaim(*options_.disk_folder, "snapshot.folder", run);
  if (options_.store != nullptr)
    if (const auto file = options_.store->file_of("claimed"))
      store = FolderClaim(file->with(folder_of(file->text)), "snapshot.store", run);
  folder_claim_ = std::move(folder);
  store_claim_ = std::move(store);
  is_claimed_ = true;
}

void RunSnapshots::release() {
  const std::scoped_lock guard(claiming_);
  folder_claim_ = store_claim_ = {};
  is_claimed_ = false;
}

void RunSnapshots::renew(FolderClaim& claim) {
  const std::scoped_lock guard(claiming_);
  claim.renew();
}

ReplicaPeer RunSnapshots::own() const {
  return exchange_ != nullptr ? exchange_->own()
                              : ReplicaPeer{"", options_.host, options_.zone, "", options_.memory_bytes};
}

void RunSnapshots::stop_replicas() {
  if (exchange_ != nullptr) exchange_->stop();
}

// What ranks have left for copies of others. Sets memory_; where the parts of a rank do not fit, no rank
// takes snapshots in memory, for those of all make one.
std::vector<ReplicaPeer> RunSnapshots::share_memory(const std::vector<std::vector<WrittenPart>>& written,
                                                    std::vector<ReplicaPeer> peers) {
  memory_ = {options_.memory_bytes, 0, -1};
  if (!is_scarce_) return peers;
  for (size_t r = 0; r < peers.size(); ++r) {
    int64_t bytes = 0;
    for (const WrittenPart& each : written[r]) bytes += bytes_of(each.part);
    bytes *= static_cast<int64_t>(std::tuple_size_v<decltype(slots_)>);
    if (static_cast<int>(r) == rank_) memory_.own_bytes = bytes;
    if (peers[r].free_bytes == 0) continue;
    if (bytes > peers[r].free_bytes && memory_.short_rank < 0) memory_.short_rank = static_cast<int>(r);
    peers[r].free_bytes = std::max<int64_t>(peers[r].free_bytes - bytes, 0);
  }
  if (memory_.short_rank >= 0) is_scarce_ = false;
  return peers;
}

void RunSnapshots::follow(const StateLayout& layout, int rank, const std::vector<ReplicaPeer>& peers,
                          std::string plan) {
  std::vector<std::string> hosts, zones;
  for (const ReplicaPeer& peer : peers) {
    hosts.push_back(peer.host);
    zones.push_back(peer.zone);
  }
  // Where there are several zones, no single one has all copies.
  const bool spreads = options_.replicas > 1 && std::set<std::string>(zones.begin(), zones.end()).size() > 1;
  if (std::set<std::string>(hosts.begin(), hosts.end()).size() == 1)
    for (size_t r = 0; r < hosts.size(); ++r) hosts[r] = std::to_string(r);
  rank_ = rank;
  ranks_ = static_cast<int>(layout.parts.size());
  plan_ = std::move(plan);
  tensors_.clear();
  for (const auto& [name, tensor] : layout.tensors) tensors_.push_back({name, tensor.type, tensor.trained});
  const auto in_memory = assign_writers_of_hosts(layout, hosts, zones);
  const auto is_scarce = [&](const WrittenPart& each) {
    return each.hosts < options_.replicas || (spreads && each.zones == 1);
  };
  is_scarce_ = false;
  for (const auto& parts : in_memory)
    is_scarce_ = is_scarce_ || std::any_of(parts.begin(), parts.end(), is_scarce);
  const std::vector<ReplicaPeer> keepers = share_memory(in_memory, peers);
  std::vector<std::vector<int>> holders(peers.size());
  if (exchange_ != nullptr) {
    holders = replica_holders(keepers, options_.replicas - 1);
    exchange_->follow(keepers, holders[static_cast<size_t>(rank)],
                      keepers[static_cast<size_t>(rank)].free_bytes);
  }
  keepers_.assign(peers.size(), {});
  std::set<std::string> holding;
  scarce_.clear();
  rest_.clear();
  disk_.clear();
  for (size_t r = 0; r < in_memory.size(); ++r)
    for (const WrittenPart& each : in_memory[r]) {
      const bool scarce = is_scarce(each);
      holding.insert(peers[r].host);
      if (scarce) {
        keepers_[r] = holders[r];
        for (const int holder : holders[r]) holding.insert(peers[static_cast<size_t>(holder)].host);
      }
      if (static_cast<int>(r) == rank) (scarce ? scarce_ : rest_).push_back(each.part);
    }
  hosts_ = static_cast<int>(holding.size());
  const auto on_disk = assign_writers(layout, hosts);
  for (const WrittenPart& each : on_disk[static_cast<size_t>(rank)]) disk_.push_back(each.part);
}

SnapshotManifest RunSnapshots::manifest_of(const StateCopy& copy, const About& about) const {
  SnapshotManifest manifest;
  manifest.run = options_.run;
  manifest.version = copy.version();
  manifest.history = copy.history();
  manifest.plan = plan_;
  manifest.rank = rank_;
  manifest.ranks = ranks_;
  manifest.cursor = about.cursor;
  manifest.seed = about.seed;
  manifest.about = about.text;
  manifest.tensors = tensors_;
  return manifest;
}

// Those that are not kept: of two that hold the kept version, the one that was written first.
RunSnapshots::Slots& RunSnapshots::free_slots() {
  Slots *kept = nullptr, *found = nullptr;
  for (Slots& slots : slots_)
    if (kept_ && slots.version == kept_ && (kept == nullptr || slots.written > kept->written)) kept = &slots;
  for (Slots& slots : slots_)
    if (&slots != kept && (found == nullptr || slots.written < found->written)) found = &slots;
  HET_REQUIRE(found != nullptr);
  found->written = ++written_;
  if (found->scarce == nullptr) {
    const std::string name = fmt::format("{}{}-{}", kSlotPrefix, getpid(), hex_of(random_bytes(8)));
    found->scarce = std::make_unique<SnapshotSlot>(scarce_folder(options_.memory_folder), name);
    found->rest = std::make_unique<SnapshotSlot>(rest_folder(options_.memory_folder), name);
  }
  return *found;
}

void RunSnapshots::keep(Version version) {
  kept_ = version;
  if (exchange_ != nullptr) exchange_->drop_before(version);
}

void RunSnapshots::remove_older() {
  if (options_.memory_folder.empty() || !kept_) return;
  each_file_in(options_.memory_folder, [&](const std::filesystem::path& path) {
    const auto name = parse_snapshot_name(path.filename().string());
    // A later step of an earlier generation was trained again since.
    const bool older = name && (name->version < *kept_ || name->version.generation < kept_->generation);
    if (older || is_orphan(path.filename().string())) unlink(path.c_str());
  });
}

// Copies a file of so many bytes of state into the store.
void RunSnapshots::send(ObjectStore& store, const Path& file, int64_t bytes) {
  RateMeter::Transfer sending(tiers_.written(Tier::store));
  if (!upload(store, {file}).front().was_there) sending.arrived(bytes);
}

// That of the run, which lies beside its snapshots.
void RunSnapshots::send_vocabulary(ObjectStore& store, const Path& folder) {
  const Path file = folder.child("vocabulary.json");
  if (vocabulary_sent_ || kind_of(file) != FileKind::file) return;
  store.put("vocabulary.json", file);
  vocabulary_sent_ = true;
}

RunSnapshots::Taken RunSnapshots::take(StateStore& state, bool in_memory, bool on_disk, const About& about) {
  if (tensors_.empty()) fail_usage("a run takes snapshots once its plan is known");
  // One that is written in memory alone is soon read to its end.
  std::shared_ptr<StateCopy> copy = on_disk ? state.copy() : state.read_in_place();
  const SnapshotManifest manifest = manifest_of(*copy, about);
  Taken taken;
  if (in_memory && !options_.memory_folder.empty()) {
    make_folders();
    Slots& slots = free_slots();
    slots.version = manifest.version;
    taken.memory = std::make_shared<SnapshotTask>(
        manifest.version, [self = shared_from_this(), copy = on_disk ? copy : std::move(copy), manifest,
                           exchange = exchange_.get(), scarce = slots.scarce.get(), rest = slots.rest.get(),
                           scarce_parts = scarce_, rest_parts = rest_]() mutable {
          std::vector<SnapshotTask::Written> written;
          const auto write = [&](SnapshotSlot& slot, const std::vector<StatePart>& parts) {
            if (parts.empty()) return;
            slot.write(manifest, parts_of(copy, parts));
            written.push_back({Tier::memory, slot.path()});
          };
          write(*rest, rest_parts);
          write(*scarce, scarce_parts);
          copy.reset();  // the state may change
          if (exchange != nullptr && !scarce_parts.empty()) exchange->replicate(scarce->path());
          return written;
        });
  }
  if (on_disk && options_.disk_folder)
    // One rank removes older snapshots: those that are whole there count.
    taken.disk = std::make_shared<SnapshotTask>(
        manifest.version, [self = shared_from_this(), copy, manifest, folder = *options_.disk_folder,
                           store = options_.store, keep = options_.keep, collects = rank_ == 0, parts = disk_,
                           discarded = std::exchange(discarded_, {})]() mutable {
          std::vector<SnapshotTask::Written> written;
          const CollectOptions needed{keep, {}, std::chrono::hours(24)};
          int64_t bytes = 0;
          self->renew(self->folder_claim_);  // the folder may have been removed
          if (!parts.empty()) {
            make_folder(folder);
            const Path path = snapshot_path(folder, manifest);
            for (const StatePart& part : parts) bytes += bytes_of(part);
            {
              RateMeter::Transfer writing(self->tiers_.written(Tier::disk));
              write_snapshot(path, manifest, parts_of(copy, parts));
              writing.arrived(bytes);
            }
            copy.reset();  // its memory is not needed while the file goes to the store
            written.push_back({Tier::disk, path.text});
          }
          if (collects) collect(open_store(folder), needed);
          if (store == nullptr) return written;
          try {
            self->renew(self->store_claim_);
            // What stays goes with older snapshots.
            for (const std::string& key : discarded) unless_refused([&] { store->remove(key); });
            if (!written.empty()) self->send(*store, folder.with(written.front().path), bytes);
            if (collects) unless_refused([&] { self->send_vocabulary(*store, folder); });  // or with the next
            if (collects) collect(store, needed);
            written.push_back({Tier::store, {}});
          } catch (const Error& error) {  // what is on the disk counts without it
            if (error.kind() == ErrorKind::bug) throw;
            written.push_back({Tier::store, {}, error.sentence()});
          }
          return written;
        });
  return taken;
}

void RunSnapshots::discard_sent(SnapshotTask& task) {
  if (options_.store == nullptr) return;
  for (const SnapshotTask::Written& written : task.wait())
    if (written.tier == Tier::disk) discarded_.push_back(written.path.substr(written.path.rfind('/') + 1));
}

void RunSnapshots::clear_memory() {
  if (options_.memory_folder.empty()) return;
  slots_ = {};
  kept_.reset();
  for (const std::string& folder :
       {scarce_folder(options_.memory_folder), rest_folder(options_.memory_folder),
        replica_folder(options_.memory_folder)})
    each_file_in(folder, [](const std::filesystem::path& path) { unlink(path.c_str()); });
}

void RunSnapshots::leave() {
  if (options_.memory_folder.empty()) return;
  exchange_ = nullptr;
  slots_ = {};
  kept_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(options_.memory_folder, ignored);
}

}  // namespace het
