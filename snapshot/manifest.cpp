#include "snapshot/manifest.h"

#include <algorithm>
#include <utility>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "snapshot/capnp_text.h"
#include "snapshot/layout.h"
#include "snapshot/snapshot.capnp.h"

namespace het {
namespace {

// --- writing

template <typename List>
void put_ranges(List list, const TensorSlice& slice) {
  for (unsigned d = 0; d < list.size(); ++d) {
    const Ranges ranges = slice.ranges(d);
    auto dimension = list.init(d, static_cast<unsigned>(ranges.size()));
    for (unsigned r = 0; r < ranges.size(); ++r) {
      dimension[r].setBegin(ranges[r].begin);
      dimension[r].setEnd(ranges[r].end);
    }
  }
}

unsigned count(size_t size) { return static_cast<unsigned>(size); }

// --- reading

// Checks what the message says. Each field is read once: the reader's limit is the size of the message, so
// that a small message whose pointers overlap cannot stand for a large one.
class ManifestReader {
 public:
  ManifestReader(int64_t data_end, const std::string& path) : data_end_(data_end), path_(path) {}

  SnapshotManifest read(schema::Manifest::Reader from) {
    SnapshotManifest manifest;
    manifest.run = text(from.getRun());
    manifest.version = {from.getStep(), from.getGeneration()};
    manifest.history = history(from.getHistory());
    manifest.plan = text(from.getPlan());
    manifest.rank = from.getRank();
    manifest.ranks = from.getRanks();
    manifest.cursor = from.getCursor();
    manifest.seed = from.getSeed();
    manifest.about = text(from.getAbout());
    if (manifest.version.step < 0) refuse("is of step {}", manifest.version.step);
    if (manifest.cursor < 0) refuse("has the cursor {}", manifest.cursor);
    if (manifest.rank < 0 || manifest.rank >= manifest.ranks)
      refuse("is of rank {} of {}", manifest.rank, manifest.ranks);
    for (const auto tensor : from.getTensors()) {
      SnapshotTensor next = read(tensor);
      if (!manifest.tensors.empty() && manifest.tensors.back().name >= next.name)
        refuse("lists the tensors '{}' and '{}' in this order", manifest.tensors.back().name, next.name);
      manifest.tensors.push_back(std::move(next));
    }
    int64_t end = kSnapshotPage;  // of the units so far
    for (const auto unit : from.getUnits()) {
      manifest.units.push_back(read(unit, manifest.tensors));
      const SnapshotUnit& last = manifest.units.back();
      const int64_t bytes = manifest.bytes_of(last);
      const std::string& name = manifest.tensors[last.tensor].name;
      if (last.offset % kSnapshotPage != 0 || last.offset < end)
        refuse("has a part of '{}' at byte {}; a multiple of {} from {} on was expected", name, last.offset,
               kSnapshotPage, end);
      if (last.offset > data_end_ || bytes > data_end_ - last.offset)
        refuse("has a part of '{}' of {} at byte {}, but its data ends at {}", name,
               show_bytes(static_cast<double>(bytes)), last.offset, data_end_);
      if (std::cmp_not_equal(last.checksums.size(), chunks_of(bytes)))
        refuse("has {} checksums for a part of '{}' of {} chunks", last.checksums.size(), name,
               chunks_of(bytes));
      end = last.offset + bytes;
    }
    return manifest;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail_usage("'{}' is no valid snapshot: its manifest {}", path_,
               fmt::format(format, std::forward<Args>(args)...));
  }

  static std::string text(capnp::Text::Reader from) { return {from.begin(), from.size()}; }

  History history(capnp::List<schema::Era>::Reader from) const {
    History history;
    for (const auto era : from) {
      const Era next{era.getGeneration(), era.getFirstStep(), era.getNonce()};
      if (!history.empty() &&
          (next.generation <= history.back().generation || next.first_step <= history.back().first_step))
        refuse("has a history that does not ascend at generation {}", next.generation);
      history.push_back(next);
    }
    return history;
  }

  SnapshotTensor read(schema::Tensor::Reader from) const {
    SnapshotTensor tensor;
    tensor.name = text(from.getName());
    if (tensor.name.empty()) refuse("has a tensor without a name");
    const std::string dtype = text(from.getDtype());
    const auto known = dtype_named(dtype);
    if (!known || *known == DType::none) refuse("gives '{}' the dtype '{}'", tensor.name, dtype);
    tensor.type.dtype = *known;
    for (const int64_t size : from.getShape()) tensor.type.shape.push_back(size);
    int64_t bytes = 0;
    try {
      if (__builtin_mul_overflow(elements_of(tensor.type.shape), het::bytes_of(tensor.type.dtype), &bytes))
        refuse("gives '{}' more bytes than there are numbers for", tensor.name);
    } catch (Error& error) {
      error.add_context(fmt::format("tensor '{}' of the snapshot '{}'", tensor.name, path_));
      throw;
    }
    tensor.trained = from.getTrained();
    return tensor;
  }

  SnapshotUnit read(schema::Unit::Reader from, const std::vector<SnapshotTensor>& tensors) const {
    SnapshotUnit unit;
    unit.tensor = from.getTensor();
    if (unit.tensor >= tensors.size()) refuse("has a part of tensor {} of {}", unit.tensor, tensors.size());
    const SnapshotTensor& tensor = tensors[unit.tensor];
    unit.slice = TensorSlice::whole(tensor.type.shape);
    const auto dimensions = from.getDimensions();
    if (dimensions.size() != 0 && dimensions.size() != tensor.type.shape.size())
      refuse("has a part of '{}' with {} dimensions of {}", tensor.name, dimensions.size(),
             tensor.type.shape.size());
    int64_t d = 0;
    for (const auto dimension : dimensions) {
      Ranges ranges;
      const int64_t size = tensor.type.shape[static_cast<size_t>(d)];
      for (const auto range : dimension) {
        const Range next{range.getBegin(), range.getEnd()};
        if (next.begin < 0 || next.end <= next.begin || next.end > size ||
            (!ranges.empty() && next.begin <= ranges.back().end))
          refuse("has a part of '{}' with the range {}:{} in a dimension of {}", tensor.name, next.begin,
                 next.end, size);
        ranges.push_back(next);
      }
      unit.slice = unit.slice.narrowed(d++, ranges);
    }
    unit.offset = from.getOffset();
    const auto checksums = from.getChecksums();
    unit.checksums.reserve(checksums.size());
    for (const uint32_t checksum : checksums) unit.checksums.push_back(checksum);
    return unit;
  }

  int64_t data_end_;
  const std::string& path_;
};

}  // namespace

int64_t SnapshotManifest::bytes_of(const SnapshotUnit& unit) const {
  return unit.slice.elements() * het::bytes_of(tensors[unit.tensor].type.dtype);
}

int64_t SnapshotManifest::data_bytes() const {
  int64_t total = 0;
  for (const SnapshotUnit& unit : units) total += bytes_of(unit);
  return total;
}

std::vector<std::byte> encode_manifest(const SnapshotManifest& manifest) {
  capnp::MallocMessageBuilder message;
  auto to = message.initRoot<schema::Manifest>();
  to.setRun(text_of(manifest.run));
  to.setStep(manifest.version.step);
  to.setGeneration(manifest.version.generation);
  auto history = to.initHistory(count(manifest.history.size()));
  for (unsigned i = 0; i < history.size(); ++i) {
    history[i].setGeneration(manifest.history[i].generation);
    history[i].setFirstStep(manifest.history[i].first_step);
    history[i].setNonce(manifest.history[i].nonce);
  }
  to.setPlan(text_of(manifest.plan));
  to.setRank(manifest.rank);
  to.setRanks(manifest.ranks);
  to.setCursor(manifest.cursor);
  to.setSeed(manifest.seed);
  to.setAbout(text_of(manifest.about));
  auto tensors = to.initTensors(count(manifest.tensors.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) {
    const SnapshotTensor& from = manifest.tensors[i];
    tensors[i].setName(text_of(from.name));
    tensors[i].setDtype(std::string(name_of(from.type.dtype)));
    auto shape = tensors[i].initShape(count(from.type.shape.size()));
    for (unsigned d = 0; d < shape.size(); ++d) shape.set(d, from.type.shape[d]);
    tensors[i].setTrained(from.trained);
  }
  auto units = to.initUnits(count(manifest.units.size()));
  for (unsigned i = 0; i < units.size(); ++i) {
    const SnapshotUnit& from = manifest.units[i];
    units[i].setTensor(count(from.tensor));
    if (!from.slice.is_whole())
      put_ranges(units[i].initDimensions(count(from.slice.whole_shape().size())), from.slice);
    units[i].setOffset(from.offset);
    auto checksums = units[i].initChecksums(count(from.checksums.size()));
    for (unsigned c = 0; c < checksums.size(); ++c) checksums.set(c, from.checksums[c]);
  }
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.begin());
  return {begin, begin + bytes.size()};
}

SnapshotManifest parse_manifest(std::span<const std::byte> message, int64_t data_end,
                                const std::string& path) {
  HET_REQUIRE(message.size() % sizeof(capnp::word) == 0 &&
                  reinterpret_cast<uintptr_t>(message.data()) % sizeof(capnp::word) == 0,
              message.size());
  const kj::ArrayPtr<const capnp::word> words(reinterpret_cast<const capnp::word*>(message.data()),
                                              message.size() / sizeof(capnp::word));
  capnp::ReaderOptions options;
  options.traversalLimitInWords = words.size();
  options.nestingLimit = 8;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    return ManifestReader(data_end, path).read(reader.getRoot<schema::Manifest>());
  } catch (const kj::Exception& exception) {
    fail_usage("'{}' is no valid snapshot: its manifest cannot be read: {}", path,
               exception.getDescription().cStr());
  }
}

}  // namespace het
