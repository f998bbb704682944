#include "core/io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace het {
namespace {

constexpr int kHeaderDepth = 3;  // file, tensor, shape
constexpr int64_t kAlignment = 64;

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr DTypeName kDTypes[] = {{DType::f64, "F64"},   {DType::f32, "F32"},     {DType::f16, "F16"},
                                 {DType::bf16, "BF16"}, {DType::i64, "I64"},     {DType::i32, "I32"},
                                 {DType::u8, "U8"},     {DType::boolean, "BOOL"}};

const char* file_name_of(DType dtype) {
  for (const DTypeName& known : kDTypes)
    if (known.dtype == dtype) return known.name;
  fail(ErrorKind::bug, "a tensor of dtype {} cannot be saved", dtype);
}

// Problems of one tensor's entry are reported with the file and the tensor's name.
class EntryReader {
 public:
  EntryReader(const std::string& path, const std::string& name, const Json& json)
      : path_(path), name_(name), json_(json) {}

  SafetensorsEntry read(int64_t data_bytes) const {
    if (!json_.is_object()) refuse("is not described by a JSON object");
    for (const auto& [key, member] : *as_object(json_))
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        refuse(fmt::format("has the unknown field '{}'", key));
    SafetensorsEntry entry{name_, {dtype(), {}}};
    const Json::array_t& shape = array("shape");
    if (shape.size() > kMostDimensions)
      refuse(fmt::format("has {} dimensions; at most {} are read", shape.size(), kMostDimensions));
    int64_t bytes = bytes_of(entry.type.dtype);
    bool empty = false;
    for (const Json& size : shape) {
      const int64_t n = number("shape", size);
      entry.type.shape.push_back(n);
      empty = empty || n == 0;
      // Sizes of 0 count as 1, so that strides cannot overflow either.
      if (__builtin_mul_overflow(bytes, std::max<int64_t>(n, 1), &bytes))
        refuse("has a shape of more bytes than there are numbers for");
    }
    if (empty) bytes = 0;
    const Json::array_t& offsets = array("data_offsets");
    if (offsets.size() != 2) refuse(fmt::format("has {} data_offsets instead of two", offsets.size()));
    entry.begin = number("data_offsets", offsets[0]);
    entry.end = number("data_offsets", offsets[1]);
    if (entry.begin > entry.end || entry.end > data_bytes)
      refuse(fmt::format("has the data_offsets [{}, {}], but the file has {} bytes of data{}", entry.begin,
                         entry.end, data_bytes, entry.begin > entry.end ? "" : "; it may be truncated"));
    if (entry.end - entry.begin != bytes)
      refuse(fmt::format("is {}, which takes {} bytes, but its data_offsets [{}, {}] hold {}",
                         to_string(entry.type), bytes, entry.begin, entry.end, entry.end - entry.begin));
    return entry;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail_usage("'{}': tensor '{}' {}", path_, name_, why);
  }

  const Json& member(const char* field) const {
    const Json* found = find_member(json_, field);
    if (found == nullptr) refuse(fmt::format("has no '{}'", field));
    return *found;
  }
  const Json::array_t& array(const char* field) const {
    const Json::array_t* found = as_array(member(field));
    if (found == nullptr) refuse(fmt::format("has a '{}' that is no list", field));
    return *found;
  }
  int64_t number(const char* field, const Json& json) const {
    const int64_t* found = as_integer(json);
    if (found == nullptr || *found < 0)
      refuse(fmt::format("has {} in its '{}'; whole numbers from 0 are wanted", dump(json), field));
    return *found;
  }
  DType dtype() const {
    const std::string* found = as_string(member("dtype"));
    if (found == nullptr) refuse("has a 'dtype' that is no text");
    for (const DTypeName& known : kDTypes)
      if (*found == known.name) return known.dtype;
    refuse(fmt::format("has dtype '{}'; F64, F32, F16, BF16, I64, I32, U8 and BOOL are read", *found));
  }

  const std::string& path_;
  const std::string& name_;
  const Json& json_;
};

// The data must be covered by the tensors exactly: no byte twice, none left over.
void require_exact_cover(const std::vector<SafetensorsEntry>& entries, int64_t data_bytes,
                         const std::string& path) {
  int64_t next = 0;
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < next)
      fail_usage("'{}': tensors '{}' and '{}' overlap at byte {} of the data", path, before->name, entry.name,
                 entry.begin);
    if (entry.begin > next)
      fail_usage("'{}': bytes {} to {} of the data, before tensor '{}', belong to no tensor", path, next,
                 entry.begin, entry.name);
    next = entry.end;
    before = &entry;
  }
  if (next != data_bytes)
    fail_usage("'{}': {} bytes at the end belong to no tensor", path, data_bytes - next);
}

StoredSafetensors open_one(const Path& path) {
  const auto file = std::make_shared<StoredFile>(path);
  const SafetensorsHeader header =
      parse_safetensors_header(file->mapped.text(), file->mapped.bytes(), path.text);
  StoredSafetensors result;
  result.metadata = header.metadata;
  result.files.push_back(file);
  for (const SafetensorsEntry& entry : header.entries)
    result.tensors.emplace(entry.name,
                           StoredTensor(file, entry.name, header.data_start + entry.begin, entry.type));
  return result;
}

StoredSafetensors open_shards(const Path& at) {
  const std::string& index = at.text;
  const Json json = read_json(at);
  const Json::object_t* map = as_object(find_member(json, "weight_map"));
  if (map == nullptr) fail_usage("'{}' has no 'weight_map' from tensor names to files", index);
  const size_t slash = index.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : index.substr(0, slash + 1);
  std::set<std::string> shards;
  for (const auto& [name, shard] : *map) {
    if (!shard.is_string() || as_string(shard)->empty() || as_string(shard)->find('/') != std::string::npos)
      fail_usage("'{}': tensor '{}' stands in {}; the name of a file beside the index is wanted", index, name,
                 dump(shard));
    shards.insert(*as_string(shard));
  }
  StoredSafetensors result;
  for (const std::string& shard : shards) {
    StoredSafetensors part = open_one(at.with(folder + shard));
    result.metadata.merge(part.metadata);
    result.files.push_back(part.files.front());
    for (auto& [name, tensor] : part.tensors)
      if (!result.tensors.emplace(name, std::move(tensor)).second)
        fail_usage("'{}': tensor '{}' stands in more than one file, '{}' among them", index, name, shard);
  }
  for (const auto& [name, shard] : *map)
    if (result.tensors.count(name) == 0)
      fail_usage("'{}': tensor '{}' is said to stand in '{}', but it does not", index, name,
                 *as_string(shard));
  return result;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view file, int64_t file_bytes,
                                           const std::string& path) {
  if (file_bytes < 8 || file.size() < 8)
    fail_usage(
        "'{}' is not a safetensors file or is truncated: it has {} bytes, fewer than the 8 of the header's "
        "length",
        path, file_bytes);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(file[static_cast<size_t>(i)]);
  if (length > static_cast<uint64_t>(kMostHeaderBytes))
    fail_usage("'{}' is not a safetensors file: its header would be {} bytes, more than {}", path, length,
               show_bytes(kMostHeaderBytes));
  const int64_t bytes = static_cast<int64_t>(length);
  if (bytes > file_bytes - 8 || file.size() < length + 8)
    fail_usage("'{}' is truncated: its header says it takes {} bytes, but only {} follow", path, bytes,
               file_bytes - 8);
  const std::string_view text = file.substr(8, length);
  if (text.empty() || text[0] != '{')
    fail_usage("'{}' is not a safetensors file: its header does not begin with '{{'", path);

  SafetensorsHeader header;
  header.data_start = 8 + bytes;
  const int64_t data_bytes = file_bytes - header.data_start;
  const Json json = parse_json(text, fmt::format("the header of '{}'", path), kHeaderDepth);
  for (const auto& [name, member] : *as_object(json)) {
    if (name != "__metadata__") {
      header.entries.push_back(EntryReader(path, name, member).read(data_bytes));
      continue;
    }
    if (!member.is_object()) fail_usage("'{}': '__metadata__' is no JSON object", path);
    for (const auto& [key, value] : *as_object(member)) {
      if (!value.is_string()) fail_usage("'{}': the metadata '{}' is no text", path, key);
      header.metadata[key] = *as_string(value);
    }
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  require_exact_cover(header.entries, data_bytes, path);
  return header;
}

int64_t StoredSafetensors::bytes_read() const {
  int64_t total = 0;
  for (const auto& file : files) total += file->bytes_read;
  return total;
}

StoredSafetensors open_safetensors(const Path& path) {
  const std::string index_end = ".index.json";
  if (kind_of(path) == FileKind::folder) {
    const Path whole = path.child("model.safetensors"), index = whole.with(whole.text + index_end);
    if (kind_of(whole) != FileKind::none) return open_one(whole);
    if (kind_of(index) != FileKind::none) return open_shards(index);
    fail_usage("the folder '{}' holds neither model.safetensors nor model.safetensors.index.json", path.text);
  }
  return path.text.size() > index_end.size() && path.text.ends_with(index_end) ? open_shards(path)
                                                                               : open_one(path);
}

void write_safetensors(const Path& where, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata, bool staged) {
  const std::string& path = where.text;
  // Wide elements first: as the header ends at a multiple of 64 bytes, every tensor is aligned to its
  // elements.
  std::vector<const std::pair<const std::string, Tensor>*> order;
  for (const auto& named : tensors) {
    if (!named.second.present()) fail_usage("cannot save '{}': tensor '{}' is empty", path, named.first);
    if (named.first == "__metadata__")
      fail_usage("cannot save '{}': a tensor cannot be named '__metadata__'", path);
    order.push_back(&named);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return bytes_of(a->second.dtype()) > bytes_of(b->second.dtype());
  });

  Json::object_t header;
  if (!metadata.empty()) {
    Json::object_t entries;
    for (const auto& [key, value] : metadata) entries.emplace_back(key, value);
    header.emplace_back("__metadata__", std::move(entries));
  }
  int64_t offset = 0;
  for (const auto* named : order) {
    const TensorType& type = named->second.type();
    Json::array_t shape;
    for (const int64_t size : type.shape) shape.emplace_back(size);
    const int64_t end = offset + type.bytes();
    header.emplace_back(named->first, Json::object_t{{"dtype", file_name_of(type.dtype)},
                                                     {"shape", std::move(shape)},
                                                     {"data_offsets", Json::array_t{offset, end}}});
    offset = end;
  }
  std::string text = dump(Json(std::move(header)));
  text.append(
      static_cast<size_t>((kAlignment - (8 + static_cast<int64_t>(text.size())) % kAlignment) % kAlignment),
      ' ');

  AtomicFile file(where);
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  file.write(length);
  file.write(text);
  for (const auto* named : order) {
    const Tensor packed = named->second.contiguous();
    file.write(packed.bytes(), packed.type().bytes());
  }
  staged ? file.stage() : file.commit();
}

}  // namespace het
