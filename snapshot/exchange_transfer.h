// Bytes of a peer's file over one connection. Internal to the exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/io/files.h"
#include "snapshot/exchange_client.h"
#include "snapshot/exchange_connection.h"
#include "snapshot/exchange_protocol.h"

namespace het {

// The next response. Throws Error(peer) for a refusal.
SnapshotResponse next_response(ExchangeConnection& connection);

struct FileRange {
  int64_t offset = 0, bytes = 0;
};
// Asks for the ranges, at most kMostBytesInFlight at once, and calls `receive(i)` for each in order, which
// takes its bytes from the connection. A range has 1 to kRequestBytes bytes. Returns the size of the file; 0:
// there are no ranges.
inline constexpr int64_t kRequestBytes = 16 << 20;
int64_t read_ranges(ExchangeConnection& connection, const std::string& file,
                    const std::vector<FileRange>& ranges, const std::function<void(size_t)>& receive);

// PeerSnapshots::fetch over a connection.
SnapshotTransfer fetch_file(ExchangeConnection& connection, const std::string& file, const Path& into,
                            const FetchOptions& options);

}  // namespace het
