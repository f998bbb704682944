#include "snapshot/exchange_protocol.h"

#include <cstring>
#include <utility>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include "core/base/error.h"
#include "core/base/visible.h"
#include "snapshot/capnp_text.h"
#include "snapshot/exchange.capnp.h"

namespace het {
namespace {

constexpr size_t kMostSentence = 4096, kMostEndpoint = 512;  // bytes

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorKind::peer, "a message {}", fmt::format(format, std::forward<Args>(args)...));
}

std::string text(capnp::Text::Reader from, size_t most) {
  if (from.size() > most) refuse("has a string of {} bytes; {} are allowed", from.size(), most);
  return {from.begin(), from.size()};
}

SnapshotName name_in(const std::string& file) {
  const auto name = parse_snapshot_name(file);
  if (!name) refuse("names '{}', which is no name of a snapshot's file", visible(file));
  return *name;
}

std::string file_name(capnp::Text::Reader from) {
  std::string file = text(from, kMostEndpoint);
  name_in(file);
  return file;
}

int64_t number(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) refuse("gives {} {}; {} to {} is allowed", what, value, least, most);
  return value;
}

SnapshotRequest read(schema::Request::Reader from) {
  switch (from.which()) {
    case schema::Request::LIST: return ListSnapshots{};
    case schema::Request::READ: {
      const auto read = from.getRead();
      return ReadSnapshot{file_name(read.getFile()), number("the offset", read.getOffset(), 0, INT64_MAX),
                          number("a length of", read.getBytes(), 1, kMostBytesInFlight)};
    }
    case schema::Request::OFFER: {
      const auto offer = from.getOffer();
      return SnapshotOffer{file_name(offer.getFile()), number("a file of", offer.getBytes(), 1, INT64_MAX),
                           text(offer.getFrom(), kMostEndpoint)};
    }
  }
  refuse("is a request that is not known here");
}

std::vector<ServedSnapshot> read(capnp::List<schema::FileEntry>::Reader from) {
  if (from.size() > kMostListedFiles) refuse("lists {} files; {} are allowed", from.size(), kMostListedFiles);
  std::vector<ServedSnapshot> files;
  files.reserve(from.size());
  for (const auto entry : from) {
    ServedSnapshot file;
    file.file = text(entry.getName(), kMostEndpoint);
    file.name = name_in(file.file);
    file.bytes = number("a file of", entry.getBytes(), 0, INT64_MAX);
    file.folder = entry.getFolder();
    files.push_back(std::move(file));
  }
  return files;
}

SnapshotResponse read(schema::Response::Reader from) {
  switch (from.which()) {
    case schema::Response::REFUSAL: return SnapshotRefusal{text(from.getRefusal(), kMostSentence)};
    case schema::Response::FILES: return read(from.getFiles());
    case schema::Response::DATA: {
      const auto data = from.getData();
      const int64_t bytes = number("data of", data.getBytes(), 1, kMostBytesInFlight);
      return SnapshotData{bytes, number("a file of", data.getFileBytes(), bytes, INT64_MAX)};
    }
    case schema::Response::WORKING: return OfferPending{};
    case schema::Response::STORED: {
      const auto stored = from.getStored();
      return SnapshotTransfer{number("a transfer of", stored.getTransferred(), 0, INT64_MAX),
                              number("a copy of", stored.getCopied(), 0, INT64_MAX)};
    }
  }
  refuse("is a response that is not known here");
}

void put(schema::Request::Builder to, const ListSnapshots&) { to.setList(); }
void put(schema::Request::Builder to, const ReadSnapshot& from) {
  auto read = to.initRead();
  read.setFile(text_of(from.file));
  read.setOffset(from.offset);
  read.setBytes(from.bytes);
}
void put(schema::Request::Builder to, const SnapshotOffer& from) {
  auto offer = to.initOffer();
  offer.setFile(text_of(from.file));
  offer.setBytes(from.bytes);
  offer.setFrom(text_of(from.from));
}

void put(schema::Response::Builder to, const SnapshotRefusal& from) {
  to.setRefusal(text_of(from.sentence.substr(0, kMostSentence)));
}
void put(schema::Response::Builder to, const std::vector<ServedSnapshot>& from) {
  auto files = to.initFiles(static_cast<unsigned>(from.size()));
  for (unsigned i = 0; i < files.size(); ++i) {
    files[i].setName(text_of(from[i].file));
    files[i].setBytes(from[i].bytes);
    files[i].setFolder(static_cast<uint32_t>(from[i].folder));
  }
}
void put(schema::Response::Builder to, const SnapshotData& from) {
  auto data = to.initData();
  data.setBytes(from.bytes);
  data.setFileBytes(from.file_bytes);
}
void put(schema::Response::Builder to, const OfferPending&) { to.setWorking(); }
void put(schema::Response::Builder to, const SnapshotTransfer& from) {
  auto stored = to.initStored();
  stored.setTransferred(from.transferred);
  stored.setCopied(from.copied);
}

template <typename Schema, typename Value>
std::string encode(const Value& value) {
  capnp::MallocMessageBuilder message;
  const auto root = message.initRoot<Schema>();
  std::visit([&](const auto& alternative) { put(root, alternative); }, value);
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asChars();
  HET_REQUIRE(bytes.size() <= kMostExchangeFrameBytes, bytes.size());
  return {bytes.begin(), bytes.size()};
}

template <typename Schema>
auto parse(std::string_view content) {
  if (content.size() % sizeof(capnp::word) != 0 || content.size() > kMostExchangeFrameBytes)
    refuse("has {} bytes, which no message has", content.size());
  std::vector<uint64_t> aligned(content.size() / sizeof(capnp::word));
  if (!content.empty()) std::memcpy(aligned.data(), content.data(), content.size());
  const kj::ArrayPtr<const capnp::word> words(reinterpret_cast<const capnp::word*>(aligned.data()),
                                              aligned.size());
  capnp::ReaderOptions options;
  options.traversalLimitInWords = words.size();
  options.nestingLimit = 8;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    return read(reader.getRoot<Schema>());
  } catch (const kj::Exception& exception) {
    refuse("cannot be read: {}", exception.getDescription().cStr());
  }
}

}  // namespace

std::string encode_request(const SnapshotRequest& request) { return encode<schema::Request>(request); }
std::string encode_response(const SnapshotResponse& response) { return encode<schema::Response>(response); }
SnapshotRequest parse_request(std::string_view content) { return parse<schema::Request>(content); }
SnapshotResponse parse_response(std::string_view content) { return parse<schema::Response>(content); }

}  // namespace het
