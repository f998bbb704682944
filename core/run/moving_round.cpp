#include "core/run/moving_round.h"

#include <algorithm>

#include "core/base/crc32c.h"
#include "core/base/error.h"

namespace het {
namespace {

// Of the first channel: no program's messages have these tags.
constexpr int kTag = 1000;

// The packed elements of `part` where they lie side by side in those of `held`.
std::optional<Tensor> view_of(const Tensor& elements, const TensorSlice& held, const TensorSlice& part) {
  if (part.is_empty() || shared_elements(held, part) != part.elements()) return std::nullopt;
  if (part == held) return elements;
  const std::vector<Layout> boxes = views(part, held, elements.dtype());
  if (boxes.size() != 1 || !boxes.front().is_contiguous()) return std::nullopt;
  Layout layout = boxes.front();
  layout.offset += elements.layout().offset;
  return elements.view(std::move(layout));
}

uint32_t checksum_of(const Tensor& elements) { return crc32c(elements.bytes(), elements.type().bytes()); }

}  // namespace

// ---- the store

StoreReads::StoreReads(const MigrationPlan& plan, int rank, TierReader* tiers) {
  for (const MigrationPlan::Round& round : plan.rounds)
    for (const SliceMove& move : round.moves)
      if (move.tier == Tier::store && move.from == rank && move.to == rank) reads_.push_back({&move, {}, {}});
  if (reads_.empty()) return;
  HET_REQUIRE(tiers != nullptr);
  thread_ = std::thread([this, version = plan.version, tiers] { read_all(version, *tiers); });
}

StoreReads::~StoreReads() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StoreReads::read_all(Version version, TierReader& tiers) {
  for (Read& read : reads_) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return stopping_ || ahead_bytes_ == 0 || ahead_bytes_ + read.move->bytes <= kMovingBytes / 2;
      });
      if (stopping_) return;
      ahead_bytes_ += read.move->bytes;
    }
    std::optional<Tensor> elements;
    std::exception_ptr failure;
    try {
      elements = tiers.read(read.move->tier, version, read.move->tensor, read.move->slice).contiguous();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    read.elements = std::move(elements);
    read.failure = failure;
    changed_.notify_all();
  }
}

Tensor StoreReads::take(const SliceMove& move) {
  Read& read = reads_.at(taken_++);
  HET_REQUIRE(read.move == &move, read.move->tensor, move.tensor);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return read.elements || read.failure; });
  ahead_bytes_ -= move.bytes;
  changed_.notify_all();
  if (read.failure) std::rethrow_exception(read.failure);
  Tensor elements = *std::move(read.elements);
  read.elements.reset();
  return elements;
}

// ---- the round

int64_t MovingRound::bytes() const {
  int64_t bytes = 0;
  const int rank = common_.group.rank();
  for (const SliceMove& move : round_.moves)
    if (move.from == rank || move.to == rank) bytes += move.bytes;
  return bytes;
}

void MovingRound::begin() {
  prepare_needed();
  begin_receives();
  begin_sends();
  keep_own();
  read_own_tiers();
}

// Whether the state has exactly what is needed of a tensor.
bool MovingRound::stays(const std::string& name) const {
  if (common_.leaves_state || !common_.has_version) return false;
  const auto entry = common_.state.entries().find(name);
  return entry != common_.state.entries().end() && !entry->second.current &&
         slice_of(entry->second) == common_.needs.at(name)->slice;
}

void MovingRound::prepare_needed() {
  for (const std::string& name : round_.tensors) {
    const auto need = common_.needs.find(name);
    if (need == common_.needs.end() || stays(name)) continue;
    const StatePart& wanted = *need->second;
    arrived_.emplace(
        name, common_.state.make_spare(name, wanted.slice, wanted.tensor.trained, wanted.tensor.type.dtype));
  }
}

int MovingRound::Stream::take_channel(int64_t of_move) {
  const auto least = std::min_element(bytes.begin(), bytes.end());
  *least += of_move;
  return static_cast<int>(least - bytes.begin());
}

Collective& MovingRound::start(CollectiveKind kind, int peer, int channel, DType dtype, int64_t elements,
                               const std::string& label, const std::byte* in, std::byte* out) {
  CollectiveRequest request;
  request.kind = kind;
  request.dtype = dtype;
  request.counts = {elements};
  request.peer = peer;
  request.tag = kTag + channel;
  request.label = label;
  running_.push_back(common_.lanes[static_cast<size_t>(channel) % common_.lanes.size()]->prepare(request));
  running_.back()->start(in, out);
  return *running_.back();
}

void MovingRound::begin_receives() {
  const int rank = common_.group.rank();
  for (const SliceMove& move : round_.moves) {
    if (move.to != rank || move.from == rank) continue;
    Stream& stream = received_[move.from];
    const int channel = stream.take_channel(move.bytes);
    stream.moves.push_back(&move);
    const StateStore::Spare& needed = arrived_.at(move.tensor);
    Receipt receipt{&move, {}, false, nullptr, 0};
    if (auto view = view_of(needed.part, needed.slice, move.slice)) {
      receipt.elements = *std::move(view);
      receipt.in_place = true;
    } else {
      receipt.elements = Tensor(TensorType{needed.part.dtype(), move.slice.shape()});
    }
    receipt.collective = &start(CollectiveKind::receive, move.from, channel, receipt.elements.dtype(),
                                move.slice.elements(), move.tensor, nullptr, receipt.elements.bytes());
    receipts_.push_back(std::move(receipt));
  }
  for (auto& [peer, stream] : received_) {
    stream.seals.resize(2 * stream.moves.size());
    start(CollectiveKind::receive, peer, 0, DType::i64, static_cast<int64_t>(stream.seals.size()),
          "checksums of the state", nullptr, reinterpret_cast<std::byte*>(stream.seals.data()));
  }
}

// A part that is damaged is sent as zeros that are called unsound: the receiver waits for so many bytes.
void MovingRound::begin_sends() {
  const int rank = common_.group.rank();
  for (const SliceMove& move : round_.moves) {
    if (move.from != rank || move.to == rank) continue;
    Stream& stream = sent_[move.to];
    const int channel = stream.take_channel(move.bytes);
    stream.moves.push_back(&move);
    Tensor elements;
    bool sound = true;
    try {
      elements = packed(move);
    } catch (const Error& error) {
      if (move.tier == Tier::live) throw;
      lose(move, error.sentence());
      sound = false;
      elements = Tensor::zeros(TensorType{DType::u8, {move.bytes}});
    }
    stream.seals.push_back(sound ? 1 : 0);
    stream.seals.push_back(sound ? checksum_of(elements) : 0);
    start(CollectiveKind::send, move.to, channel, elements.dtype(), elements.elements(), move.tensor,
          elements.bytes(), nullptr);
    sending_.push_back(std::move(elements));
  }
  for (auto& [peer, stream] : sent_)
    start(CollectiveKind::send, peer, 0, DType::i64, static_cast<int64_t>(stream.seals.size()),
          "checksums of the state", reinterpret_cast<const std::byte*>(stream.seals.data()), nullptr);
}

// What this rank has of a tensor in the version that moves: to send, and as its own part of what it needs.
const std::vector<MovingRound::Piece>& MovingRound::own(const std::string& name) {
  const auto [found, is_new] = own_.try_emplace(name);
  std::vector<Piece>& pieces = found->second;
  if (!is_new || !common_.has_version) return pieces;
  const auto entry = common_.state.entries().find(name);
  if (entry != common_.state.entries().end()) {
    const Tensor all = common_.state.view(name);
    const TensorSlice slice = slice_of(entry->second), current = current_slice_of(entry->second);
    if (const auto view = view_of(all, slice, current)) {
      pieces.push_back({current, *view});
    } else if (!current.is_empty()) {
      pieces.push_back({current, Tensor(TensorType{all.dtype(), current.shape()})});
      copy(pieces.back().elements, current, all, slice);
    }
  }
  for (const StateStore::Spare& spare : common_.state.spares())
    if (spare.name == name) pieces.push_back({spare.slice, spare.part});
  return pieces;
}

void MovingRound::keep_own() {
  for (auto& [name, needed] : arrived_)
    for (const Piece& piece : own(name))
      if (shared_elements(needed.slice, piece.slice) > 0)
        copy(needed.part, needed.slice, piece.elements, piece.slice);
}

void MovingRound::read_own_tiers() {
  const int rank = common_.group.rank();
  for (const SliceMove& move : round_.moves) {
    if (move.from != rank || move.to != rank || move.tier == Tier::store) continue;
    try {
      place(move, packed(move));
    } catch (const Error& error) {
      if (move.tier == Tier::live) throw;
      lose(move, error.sentence());
    }
  }
}

Tensor MovingRound::packed(const SliceMove& move) {
  if (move.tier != Tier::live) {
    HET_REQUIRE(common_.tiers != nullptr, move.tensor);
    return common_.tiers->read(move.tier, common_.version, move.tensor, move.slice).contiguous();
  }
  const std::vector<Piece>& pieces = own(move.tensor);
  std::vector<TensorSlice> held;
  for (const Piece& piece : pieces) {
    if (auto view = view_of(piece.elements, piece.slice, move.slice)) return *std::move(view);
    held.push_back(piece.slice);
  }
  if (!missing(move.slice, held).empty() || pieces.empty())
    fail(ErrorKind::bug, "rank {} is to send {} of '{}', which it has not", common_.group.rank(),
         to_string(move.slice), move.tensor);
  Tensor result(TensorType{pieces.front().elements.dtype(), move.slice.shape()});
  for (const Piece& piece : pieces)
    if (shared_elements(move.slice, piece.slice) > 0) copy(result, move.slice, piece.elements, piece.slice);
  return result;
}

void MovingRound::place(const SliceMove& move, const Tensor& elements) {
  StateStore::Spare& needed = arrived_.at(move.tensor);
  copy(needed.part, needed.slice, elements, move.slice);
}

void MovingRound::lose(const SliceMove& move, const std::string& why) {
  if (std::find(unsound_.begin(), unsound_.end(), move.tensor) == unsound_.end())
    unsound_.push_back(move.tensor);
  if (damage_.empty()) damage_ = why;
}

void MovingRound::finish() {
  const int rank = common_.group.rank();
  std::map<int, std::vector<const Receipt*>> by_peer;
  for (Receipt& receipt : receipts_) {
    receipt.collective->wait();
    receipt.checksum = checksum_of(receipt.elements);
    if (!receipt.in_place) place(*receipt.move, receipt.elements);
    by_peer[receipt.move->from].push_back(&receipt);
  }
  for (const SliceMove& move : round_.moves) {
    if (move.tier != Tier::store || move.from != rank || move.to != rank) continue;
    try {
      place(move, common_.store.take(move));
    } catch (const Error& error) {
      lose(move, error.sentence());
    }
  }
  for (const auto& collective : running_)
    if (std::none_of(receipts_.begin(), receipts_.end(),
                     [&](const Receipt& receipt) { return receipt.collective == collective.get(); }))
      collective->wait();
  for (const auto& [peer, stream] : received_) check(stream, peer, by_peer[peer]);
}

void MovingRound::check(const Stream& stream, int peer, const std::vector<const Receipt*>& receipts) {
  for (size_t i = 0; i < receipts.size(); ++i) {
    const SliceMove& move = *receipts[i]->move;
    if (stream.seals[2 * i] == 0) {
      unsound_.push_back(move.tensor);  // the sender says why
    } else if (stream.seals[2 * i] != 1 || stream.seals[2 * i + 1] != receipts[i]->checksum) {
      lose(move, fmt::format("rank {} received other bytes of '{}' {} than rank {} sent",
                             common_.group.rank(), move.tensor, to_string(move.slice), peer));
    }
  }
}

std::vector<StateStore::Spare> MovingRound::take_arrived() {
  std::vector<StateStore::Spare> result;
  for (auto& [name, spare] : arrived_)
    if (std::find(unsound_.begin(), unsound_.end(), name) == unsound_.end())
      result.push_back(std::move(spare));
  arrived_.clear();
  return result;
}

}  // namespace het
