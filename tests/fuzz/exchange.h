// What every fuzzer of the messages between processes that exchange snapshots asks: any bytes are refused
// with an Error of the peer kind, or read as a value that is in its ranges, and that is the same when it is
// written and read again.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/error.h"
#include "core/net/frame.h"
#include "snapshot/exchange_protocol.h"

namespace het::fuzz {

inline void check_value(const ListSnapshots&) {}
inline void check_value(const ReadSnapshot& read) {
  if (!parse_snapshot_name(read.file) || read.file.find('/') != std::string::npos) std::abort();
  if (read.offset < 0 || read.bytes < 1 || read.bytes > kMostBytesInFlight) std::abort();
}
inline void check_value(const SnapshotOffer& offer) {
  if (!parse_snapshot_name(offer.file) || offer.bytes < 1) std::abort();
}
inline void check_value(const SnapshotRefusal&) {}
inline void check_value(const std::vector<ServedSnapshot>& files) {
  if (files.size() > kMostListedFiles) std::abort();
  for (const ServedSnapshot& file : files)
    if (file.bytes < 0 || file.folder < 0 || to_string(file.name) != file.file) std::abort();
}
inline void check_value(const SnapshotData& data) {
  if (data.bytes < 1 || data.bytes > kMostBytesInFlight || data.file_bytes < data.bytes) std::abort();
}
inline void check_value(const OfferPending&) {}
inline void check_value(const SnapshotTransfer& transfer) {
  if (transfer.transferred < 0 || transfer.copied < 0) std::abort();
}

// True when `parse` accepts the bytes. Aborts when it breaks the promise.
template <typename Parse, typename Encode>
bool exchange_message(std::string_view input, const Parse& parse, const Encode& encode) {
  try {
    const auto value = parse(input);
    std::visit([](const auto& alternative) { check_value(alternative); }, value);
    if (!(parse(encode(value)) == value)) std::abort();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) std::abort();
    return false;
  }
}

inline bool exchange_request(std::string_view input) {
  return exchange_message(input, parse_request, encode_request);
}
inline bool exchange_response(std::string_view input) {
  return exchange_message(input, parse_response, encode_response);
}

// A frame's length claims no more than is allowed.
inline void exchange_frame(std::string_view input) {
  try {
    const size_t bytes = frame_bytes(input, kMostExchangeFrameBytes);
    if (bytes > kFrameHeaderBytes + kMostExchangeFrameBytes) std::abort();
    if (bytes == 0 && input.size() >= kFrameHeaderBytes) std::abort();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) std::abort();
  }
}

}  // namespace het::fuzz
