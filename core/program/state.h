// The named tensors that outlive a step: parameters, optimizer moments, caches. Several executors (training,
// evaluation, generation) share one store. Used from one thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/io/stored.h"
#include "core/plan/history.h"
#include "core/program/program.h"
#include "core/tensor/tensor.h"

namespace het {

// The tensors of a state as they were at one moment, in the host's memory. On a device with separate memory
// the copies may still be under way. Used from one thread at a time; what read() gave may be used from any.
class StateCopy {
 public:
  struct Entry {
    TensorType type;
    bool trained = false;
    std::optional<TensorSlice> slice;  // what of a tensor it is; none: all of it
  };
  const std::map<std::string, Entry>& entries() const { return entries_; }
  Version version() const { return version_; }
  const History& history() const { return history_; }
  bool done() const { return transfer_ == nullptr || transfer_->done(); }
  // Waits until all is copied. A view of the copy, whose memory lives as long; of a state that is read in
  // place, to be used while the StateCopy lives.
  Tensor read(const std::string& name);

 private:
  friend class StateStore;
  StateCopy() = default;

  std::shared_ptr<Device> device_;
  std::vector<std::shared_ptr<Memory>> sources_;
  std::shared_ptr<Memory> memory_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, int64_t> offsets_;
  Version version_;
  History history_;
  std::unique_ptr<Transfer> transfer_;  // goes before what it copies
  std::map<std::string, std::shared_ptr<Memory>> in_place_;
  std::shared_ptr<const void> reading_;  // what changes the state waits until it is gone
};

class StateStore {
 public:
  StateStore(std::shared_ptr<Device> device, uint64_t seed) : device_(std::move(device)), seed_(seed) {}

  struct Entry {
    TensorType type;
    std::shared_ptr<Memory> memory;
    bool trained = false;
    std::optional<TensorSlice> slice;  // what of a tensor it is; none: all of it
    // What of the tensor is at version(); none: all of the slice. Of a parameter that ranks update in parts
    // the others' parts are missing when a step ends before they came.
    std::optional<TensorSlice> current;
  };

  Device& device() const { return *device_; }
  const std::shared_ptr<Device>& shared_device() const { return device_; }
  // The entry that a buffer of a program is, made on first use: read from what set_initial() was given,
  // else initialised. Of what exists whole and is needed in part, the part is kept. Throws Error(usage) when
  // it exists with another type.
  const Entry& require(const BufferSpec& buffer);

  // What a tensor begins with: `read` gives the packed elements of a slice.
  struct InitialTensor {
    TensorType type;
    std::function<Tensor(const TensorSlice&)> read;
  };
  // When a program first needs `name`, its part of `tensor` is read, converted from one floating-point type
  // to another, and `tensor` is released.
  void set_initial(const std::string& name, InitialTensor tensor) {
    initial_.insert_or_assign(name, std::move(tensor));
  }
  void set_initial(const std::string& name, const StoredTensor& tensor) {
    set_initial(name, {tensor.type(), [tensor](const TensorSlice& slice) { return tensor.read(slice); }});
  }
  void clear_initial() { initial_.clear(); }            // nothing else will be needed; closes the files
  int64_t bytes_restored() const { return restored_; }  // read from initial tensors, as they are stored
  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  const std::map<std::string, Entry>& entries() const { return entries_; }

  Tensor read(const std::string& name) const;  // a copy on the host
  // The same without a copy where the device computes in the host's memory: not to be written to, and of no
  // use when a program has run meanwhile.
  Tensor view(const std::string& name) const;
  int64_t bytes() const;
  // All of it as it is now, copied beside what the device does next; steps that executors run meanwhile come
  // to their update when it is done. The memory is used again once nothing holds the copy any more.
  std::shared_ptr<StateCopy> copy();
  // The same without a copy where the device computes in the host's memory: what changes the state waits
  // until the StateCopy is gone, which another thread has to see to.
  std::shared_ptr<StateCopy> read_in_place();
  // Until all copies are made, and none is read in place: what changes the state comes after this. Where the
  // device has separate memory the host does not wait.
  void await_copies();
  double seconds_waited() const { return seconds_waited_; }  // the host in await_copies(), in all
  // Converted to the entry's dtype; creates it if new. An entry that is a part takes its part of a whole
  // tensor.
  void write(const std::string& name, const Tensor& tensor);
  // An executor that uses it keeps its memory, and refuses to run again.
  void drop(const std::string& name) { replaced_ += entries_.erase(name); }
  // Counts entries whose memory was given up, or replaced.
  uint64_t replaced() const { return replaced_; }

  // The version of all that it holds: advance() is called when a step was decided and this rank's part of its
  // update is made, with what of those parameters is current that others update in part; complete() when
  // their parts have come. Steps are decided by the generation that began last.
  Version version() const { return version_; }
  void set_version(Version version) { version_ = version; }
  // `generation` decides the steps from here on.
  void begin_generation(int64_t generation) { generation_ = generation; }
  int64_t generation() const { return generation_; }
  // Of that generation: Era::nonce. Kept until another is set.
  void set_nonce(int64_t nonce) { nonce_ = nonce; }
  int64_t nonce() const { return nonce_; }
  // The decisions that led to version().
  const History& history() const { return history_; }
  void set_history(History history) { history_ = std::move(history); }
  void advance(const std::map<std::string, TensorSlice>& current);
  void complete(const std::string& name) { entries_.at(name).current.reset(); }
  // --- moved between the members of a run (core/run/migration.h)

  // The entry is replaced, or made: the packed elements of a slice, none: of the whole.
  void install(const std::string& name, const std::optional<TensorSlice>& slice, bool trained,
               const Tensor& part);
  // A part of a tensor beside the entries.
  struct Spare {
    std::string name;
    TensorSlice slice;
    bool trained = false;
    Tensor part;
    std::shared_ptr<Memory> memory;  // of the device, where `part` lies in it
  };
  // One whose elements are to be written.
  Spare make_spare(const std::string& name, const TensorSlice& slice, bool trained, DType dtype) const;
  // The entry is replaced, or made: by the spare's memory where that is the device's, else by a copy. What
  // else holds the spare's tensor shares its memory with the entry.
  void install(const Spare& spare);
  // What came for a layout that was not reached, kept beside the entries until the next one is.
  void keep_spare(Spare spare) { spares_.push_back(std::move(spare)); }
  void drop_spares() { spares_.clear(); }
  void clear();  // drops everything
  const std::vector<Spare>& spares() const { return spares_; }

  // Counts changes, so that what is computed from state alone is computed again only when it must.
  uint64_t revision() const { return revision_; }
  void touch() { ++revision_; }

 private:
  struct Readers {  // that read in place
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;
  };
  Tensor first_value(const BufferSpec& buffer);
  std::shared_ptr<StateCopy> as_it_is() const;

  std::shared_ptr<Device> device_;
  uint64_t seed_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, InitialTensor> initial_;
  int64_t restored_ = 0;
  Version version_;
  int64_t generation_ = 0, nonce_ = 0;
  History history_;
  std::vector<Spare> spares_;
  uint64_t revision_ = 1;
  uint64_t replaced_ = 0;
  std::shared_ptr<Memory> copied_;  // of the last copy
  int64_t copied_bytes_ = 0;
  double seconds_waited_ = 0;
  const std::shared_ptr<Readers> readers_ = std::make_shared<Readers>();
};

TensorSlice slice_of(const StateStore::Entry& entry);          // all that it has
TensorSlice current_slice_of(const StateStore::Entry& entry);  // what of that is at the store's version

// Initial values of a tensor: element i of the stream (seed, name). Independent of plan and device.
Tensor initial_tensor(const std::string& name, const TensorType& type, const Initial& initial, uint64_t seed);
// A slice of it; draws only what it needs.
Tensor initial_part(const std::string& name, DType dtype, const TensorSlice& slice, const Initial& initial,
                    uint64_t seed);

}  // namespace het
