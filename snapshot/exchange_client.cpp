#include "snapshot/exchange_client.h"

#include <algorithm>
#include <deque>

#include "core/base/error.h"
#include "core/base/visible.h"
#include "core/net/frame.h"
#include "snapshot/exchange_transfer.h"

namespace het {
namespace {

constexpr size_t kMostIdle = 16;  // connections that are kept

void request(ExchangeConnection& connection, const SnapshotRequest& request) {
  connection.send(write_frame(encode_request(request)));
}

SnapshotResponse any_response(ExchangeConnection& connection) {
  const std::string content = connection.receive_frame();
  try {
    return parse_response(content);
  } catch (const Error& error) {
    fail(ErrorKind::peer, "{} sends what is no response: {}", connection.who(), error.sentence());
  }
}

}  // namespace

SnapshotResponse next_response(ExchangeConnection& connection) {
  SnapshotResponse response = any_response(connection);
  if (const auto* refusal = std::get_if<SnapshotRefusal>(&response))
    fail(ErrorKind::peer, "{} refuses: {}", connection.who(), visible(refusal->sentence));
  return response;
}

int64_t read_ranges(ExchangeConnection& connection, const std::string& file,
                    const std::vector<FileRange>& ranges, const std::function<void(size_t)>& receive) {
  int64_t in_flight = 0, file_bytes = 0;
  size_t asked = 0;
  for (size_t next = 0; next < ranges.size(); ++next) {
    HET_REQUIRE(ranges[next].bytes > 0 && ranges[next].bytes <= kRequestBytes, ranges[next].bytes);
    constexpr size_t kMostAsked = 64;  // requests that fit into the peer's socket while it sends
    for (; asked < ranges.size() && asked < next + kMostAsked; ++asked) {
      if (in_flight + ranges[asked].bytes > kMostBytesInFlight) break;
      request(connection, ReadSnapshot{file, ranges[asked].offset, ranges[asked].bytes});
      in_flight += ranges[asked].bytes;
    }
    const SnapshotResponse response = next_response(connection);
    const auto* data = std::get_if<SnapshotData>(&response);
    if (data == nullptr || data->bytes != ranges[next].bytes ||
        (file_bytes != 0 && data->file_bytes != file_bytes))
      fail(ErrorKind::peer, "{} answered a request for {} bytes of '{}' with something else",
           connection.who(), ranges[next].bytes, file);
    file_bytes = data->file_bytes;
    receive(next);
    in_flight -= ranges[next].bytes;
  }
  return file_bytes;
}

// A connection that was kept may have been closed by the peer meanwhile: then another one is made, once.
template <typename Body>
auto PeerSnapshots::with_connection(const Endpoint& peer, const Body& body) {
  std::optional<ExchangeConnection> connection;
  {
    std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(idle_.begin(), idle_.end(), [&](const auto& kept) { return kept.first == peer; });
    if (found != idle_.end()) {
      connection = std::move(found->second);
      idle_.erase(found);
    }
  }
  const auto keep = [&] {
    std::lock_guard lock(mutex_);
    idle_.emplace_front(peer, std::move(*connection));
    if (idle_.size() > kMostIdle) idle_.pop_back();
  };
  if (connection) try {
      auto result = body(*connection);
      keep();
      return result;
    } catch (const Error&) {
      if (!connection->is_lost() || stop_.is_set()) throw;
    }
  connection.emplace(connect_exchange(peer, identity_, stop_));
  auto result = body(*connection);
  keep();
  return result;
}

std::vector<ServedSnapshot> PeerSnapshots::list(const Endpoint& peer) {
  return with_connection(peer, [](ExchangeConnection& connection) {
    request(connection, ListSnapshots{});
    SnapshotResponse response = next_response(connection);
    auto* files = std::get_if<std::vector<ServedSnapshot>>(&response);
    if (files == nullptr)
      fail(ErrorKind::peer, "{} answered a request for a list with something else", connection.who());
    return std::move(*files);
  });
}

void PeerSnapshots::read_range(const Endpoint& peer, const std::string& file, int64_t offset, int64_t bytes,
                               void* into) {
  HET_REQUIRE(offset >= 0 && bytes >= 0, offset, bytes);
  if (bytes == 0) return;
  std::vector<FileRange> ranges;
  for (int64_t at = 0; at < bytes; at += kRequestBytes)
    ranges.push_back({offset + at, std::min(kRequestBytes, bytes - at)});
  with_connection(peer, [&](ExchangeConnection& connection) {
    return read_ranges(connection, file, ranges, [&](size_t i) {
      connection.receive(static_cast<std::byte*>(into) + (ranges[i].offset - offset), ranges[i].bytes);
    });
  });
}

SnapshotTransfer PeerSnapshots::fetch(const Endpoint& peer, const std::string& file, const Path& into,
                                      const FetchOptions& options) {
  return with_connection(
      peer, [&](ExchangeConnection& connection) { return fetch_file(connection, file, into, options); });
}

SnapshotResponse PeerSnapshots::offer(const Endpoint& peer, const SnapshotOffer& offer) {
  return with_connection(peer, [&](ExchangeConnection& connection) {
    request(connection, offer);
    for (;;) {
      SnapshotResponse response = any_response(connection);
      if (std::holds_alternative<OfferPending>(response)) continue;
      if (std::holds_alternative<SnapshotTransfer>(response) ||
          std::holds_alternative<SnapshotRefusal>(response))
        return response;
      fail(ErrorKind::peer, "{} answered an offer with something else", connection.who());
    }
  });
}

}  // namespace het
