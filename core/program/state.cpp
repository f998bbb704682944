#include "core/program/state.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/base/random.h"

namespace het {

namespace {

// Elements 4 * block .. 4 * block + 3 of a stream: four draws for each counter; normals in pairs by the
// transform of Box and Muller.
std::array<float, 4> drawn(PhiloxKey key, const Initial& initial, int64_t block) {
  const auto words = philox(key, static_cast<uint64_t>(block));
  std::array<float, 4> draws{};
  for (size_t i = 0; i < 4; i += 2) {
    if (initial.kind == Initial::Kind::uniform) {
      for (size_t j = i; j < i + 2; ++j)
        draws[j] = static_cast<float>((2.0 * uniform_of(words[j]) - 1.0) * initial.scale);
    } else {
      const double radius = std::sqrt(-2.0 * std::log((words[i] + 0.5) * 0x1p-32)) * initial.scale;
      const double angle = 6.283185307179586 * (words[i + 1] + 0.5) * 0x1p-32;
      draws[i] = static_cast<float>(radius * std::cos(angle));
      draws[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
  return draws;
}

}  // namespace

Tensor initial_part(const std::string& name, DType dtype, const TensorSlice& slice, const Initial& initial,
                    uint64_t seed) {
  Tensor values(TensorType{DType::f32, slice.shape()});
  float* out = values.data<float>();
  const bool draws = initial.kind == Initial::Kind::uniform || initial.kind == Initial::Kind::normal;
  if (!draws) {
    std::fill_n(out, values.elements(), initial.kind == Initial::Kind::ones ? 1.0F : 0.0F);
    return values.to(dtype);
  }
  const PhiloxKey key = philox_key(seed, hash_of(name));
  each_run(TensorSlice::whole(slice.whole_shape()), slice, 1, [&](int64_t from, int64_t to, int64_t count) {
    const int64_t first = from / 4, blocks = (from + count + 3) / 4 - first;
    parallel_for(blocks, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t block = first + begin; block < first + end; ++block) {
        const std::array<float, 4> values_of_block = drawn(key, initial, block);
        for (int64_t i = 0; i < 4; ++i) {
          const int64_t at = block * 4 + i - from;
          if (at >= 0 && at < count) out[to + at] = values_of_block[static_cast<size_t>(i)];
        }
      }
    });
  });
  return values.to(dtype);
}

Tensor initial_tensor(const std::string& name, const TensorType& type, const Initial& initial,
                      uint64_t seed) {
  return initial_part(name, type.dtype, TensorSlice::whole(type.shape), initial, seed);
}

TensorSlice slice_of(const StateStore::Entry& entry) {
  return entry.slice.value_or(TensorSlice::whole(entry.type.shape));
}

TensorSlice current_slice_of(const StateStore::Entry& entry) {
  return entry.current.value_or(slice_of(entry));
}

const StateStore::Entry& StateStore::require(const BufferSpec& buffer) {
  const auto found = entries_.find(buffer.name);
  if (found != entries_.end()) {
    Entry& entry = found->second;
    if (buffer.slice && !entry.slice && entry.type.shape == buffer.slice->whole_shape()) {
      const Tensor part = take(read(buffer.name), *buffer.slice);
      entry.type = part.type();
      ++replaced_;
      entry.memory = device_->allocate(entry.type.bytes());
      entry.slice = buffer.slice;
      device_->copy_in(entry.memory->address(), part.bytes(), entry.type.bytes());
      touch();
    }
    if (entry.type != buffer.type)
      fail_usage("'{}' is {} in this state, the model needs {}", buffer.name, to_string(entry.type),
                 to_string(buffer.type));
    if (slice_of(entry) != slice_of(buffer))
      fail_usage("'{}' is divided over the ranks in this state otherwise than the model needs", buffer.name);
    entry.trained = entry.trained || buffer.trained;
    return entry;
  }
  const Tensor values = first_value(buffer);
  Entry entry{buffer.type, device_->allocate(buffer.type.bytes()), buffer.trained, buffer.slice, {}};
  device_->copy_in(entry.memory->address(), values.bytes(), buffer.type.bytes());
  touch();
  return entries_.emplace(buffer.name, std::move(entry)).first->second;
}

Tensor StateStore::first_value(const BufferSpec& buffer) {
  const TensorType whole{buffer.type.dtype, buffer.slice ? buffer.slice->whole_shape() : buffer.type.shape};
  const TensorSlice slice = buffer.slice.value_or(TensorSlice::whole(whole.shape));
  const auto stored = initial_.find(buffer.name);
  if (stored == initial_.end()) {
    return initial_part(buffer.name, whole.dtype, slice, buffer.initial, seed_);
  }
  const TensorType& type = stored->second.type;
  const bool fits = type.shape == whole.shape &&
                    (type.dtype == whole.dtype || (is_float(type.dtype) && is_float(whole.dtype)));
  if (!fits)
    fail_usage("'{}' is {} where it was saved, the model needs {}", buffer.name, to_string(type),
               to_string(whole));
  const Tensor part = stored->second.read(slice);
  restored_ += part.type().bytes();
  initial_.erase(stored);
  return part.to(whole.dtype);
}

Tensor StateStore::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_usage("there is no state named '{}'", name);
  Tensor result(found->second.type);
  device_->copy_out(result.bytes(), found->second.memory->address(), result.type().bytes());
  return result;
}

Tensor StateStore::view(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end() || device_->has_own_memory()) return read(name);
  const auto& [type, memory] = std::tie(found->second.type, found->second.memory);
  return Tensor(std::make_shared<Buffer>(memory->address(), type.bytes(), memory), Layout::contiguous(type));
}

int64_t StateStore::bytes() const {
  int64_t total = 0;
  for (const auto& [name, entry] : entries_) total += entry.type.bytes();
  return total;
}

std::shared_ptr<StateCopy> StateStore::as_it_is() const {
  std::shared_ptr<StateCopy> result(new StateCopy);
  for (const auto& [name, entry] : entries_)
    result->entries_[name] = {entry.type, entry.trained, entry.slice};
  result->version_ = version_;
  result->history_ = history_;
  result->device_ = device_;
  return result;
}

std::shared_ptr<StateCopy> StateStore::read_in_place() {
  if (device_->has_own_memory()) return copy();
  const std::shared_ptr<StateCopy> result = as_it_is();
  for (const auto& [name, entry] : entries_) result->in_place_[name] = entry.memory;
  const std::lock_guard lock(readers_->mutex);
  ++readers_->count;
  result->reading_ = std::shared_ptr<const void>(nullptr, [readers = readers_](const void*) {
    const std::lock_guard ended(readers->mutex);
    --readers->count;
    readers->changed.notify_all();
  });
  return result;
}

void StateStore::await_copies() {
  const double began = steady_seconds();
  device_->wait_for_transfers();
  std::unique_lock lock(readers_->mutex);
  readers_->changed.wait(lock, [&] { return readers_->count == 0; });
  seconds_waited_ += steady_seconds() - began;
}

std::shared_ptr<StateCopy> StateStore::copy() {
  std::shared_ptr<StateCopy> result = as_it_is();
  int64_t total = 0;
  for (const auto& [name, entry] : entries_) {
    result->offsets_[name] = total;
    result->sources_.push_back(entry.memory);
    total += aligned(entry.type.bytes());
  }
  if (copied_.use_count() != 1 || copied_bytes_ < total) {
    copied_ = nullptr;
    copied_ = device_->allocate_staging(total);
    copied_bytes_ = total;
  }
  result->memory_ = copied_;
  std::vector<CopyOut> copies;
  for (const auto& [name, entry] : entries_)
    copies.push_back(
        {copied_->address() + result->offsets_.at(name), entry.memory->address(), entry.type.bytes()});
  result->transfer_ = device_->begin_transfer(copies);
  return result;
}

Tensor StateCopy::read(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_usage("there is no state named '{}'", name);
  if (transfer_ != nullptr) transfer_->wait();
  const TensorType& type = found->second.type;
  if (const auto memory = in_place_.find(name); memory != in_place_.end())
    return Tensor(std::make_shared<Buffer>(memory->second->address(), type.bytes(), memory->second),
                  Layout::contiguous(type));
  return Tensor(std::make_shared<Buffer>(memory_->address() + offsets_.at(name), type.bytes(), memory_),
                Layout::contiguous(type));
}

void StateStore::advance(const std::map<std::string, TensorSlice>& current) {
  version_ = {version_.step + 1, generation_};
  append(history_, version_, nonce_);
  for (auto& [name, entry] : entries_) {
    const auto part = current.find(name);
    if (part == current.end())
      entry.current.reset();
    else
      entry.current = part->second;
  }
  touch();
}

void StateStore::install(const std::string& name, const std::optional<TensorSlice>& slice, bool trained,
                         const Tensor& part) {
  await_copies();
  Entry entry{part.type(), device_->allocate(part.type().bytes()), trained, slice, {}};
  device_->copy_in(entry.memory->address(), part.bytes(), part.type().bytes());
  replaced_ += entries_.count(name);
  entries_.insert_or_assign(name, std::move(entry));
  touch();
}

StateStore::Spare StateStore::make_spare(const std::string& name, const TensorSlice& slice, bool trained,
                                         DType dtype) const {
  const TensorType type{dtype, slice.shape()};
  if (device_->has_own_memory()) return {name, slice, trained, Tensor(type), nullptr};
  const std::shared_ptr<Memory> memory = device_->allocate(type.bytes());
  Tensor part(std::make_shared<Buffer>(memory->address(), type.bytes(), memory), Layout::contiguous(type));
  return {name, slice, trained, std::move(part), memory};
}

void StateStore::install(const Spare& spare) {
  const auto slice = spare.slice.is_whole() ? std::nullopt : std::optional<TensorSlice>(spare.slice);
  if (spare.memory == nullptr) return install(spare.name, slice, spare.trained, spare.part);
  await_copies();
  replaced_ += entries_.count(spare.name);
  entries_.insert_or_assign(spare.name, Entry{spare.part.type(), spare.memory, spare.trained, slice, {}});
  touch();
}

void StateStore::clear() {
  replaced_ += entries_.size();
  entries_.clear();
  spares_.clear();
  touch();
}

void StateStore::write(const std::string& name, const Tensor& tensor) {
  auto found = entries_.find(name);
  if (found == entries_.end())
    found =
        entries_.emplace(name, Entry{tensor.type(), device_->allocate(tensor.type().bytes()), false, {}, {}})
            .first;
  Entry& entry = found->second;
  if (entry.slice && tensor.shape() == entry.slice->whole_shape())
    return write(name, take(tensor.contiguous(), *entry.slice));
  if (entry.type.shape != tensor.shape())
    fail_usage("'{}' has shape {}, the tensor to write has shape {}", name, to_string(entry.type.shape),
               to_string(tensor.shape()));
  const Tensor values = tensor.to(entry.type.dtype);
  await_copies();
  device_->copy_in(entry.memory->address(), values.bytes(), entry.type.bytes());
  touch();
}

}  // namespace het
