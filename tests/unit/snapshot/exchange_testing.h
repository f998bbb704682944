// Helpers of the tests of the exchange of snapshots: files to serve, processes of a run as servers and
// clients on this machine, and a peer that is played by hand.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/net/frame.h"
#include "snapshot/exchange_client.h"
#include "snapshot/exchange_server.h"
#include "tests/unit/core/comm_tcp_testing.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/snapshot_testing.h"

namespace het::testing {

// The file of a small state after a step, of some units in one chunk each.
inline SampleState small_sample(uint32_t step, int rank = 1) {
  SampleState state(step, {{"m.a", {DType::f32, {30, 50}}},
                           {"mask", {DType::boolean, {77}}},
                           {"none", {DType::f32, {0}}},
                           {"scalar", {DType::f64, {}}},
                           {"w.a", {DType::bf16, {30, 50}}}});
  state.manifest.rank = rank;
  state.add_all();
  return state;
}

// A tensor of ten chunks after a step; `changed`: a chunk that differs from other steps' (-1: none).
inline SampleState ten_chunks(int64_t step, int64_t changed = -1) {
  static const SampleState first(3, {{"b", {DType::f32, {5}}}, {"w", {DType::f32, {10, 1024, 1024}}}});
  SampleState state = first;  // with the same buffers
  state.manifest.version.step = step;
  if (changed >= 0) {
    Tensor& tensor = state.whole.at("w");
    tensor = take(tensor, TensorSlice::whole(tensor.shape()));
    for (int64_t byte = 0; byte < 100; ++byte)
      tensor.bytes()[changed * kSnapshotChunk + 77 * byte] ^= std::byte{0x55};
  }
  state.add_all();
  return state;
}

// Writes the file of a state into a folder; its name.
inline std::string write_sample(const std::string& folder, const SampleState& state) {
  const Path path = snapshot_path(folder, state.manifest);
  write_snapshot(path, state.manifest, state.parts);
  return path.text.substr(folder.size() + 1);
}
inline std::string folder_in(const Scratch& scratch, const std::string& name) {
  std::filesystem::create_directories(scratch.path(name));
  return scratch.path(name);
}

inline ExchangeIdentity identity_of(const std::string& secret = kTestSecret, const std::string& run = "run") {
  ExchangeIdentity identity;
  identity.address = "127.0.0.1";
  identity.run = run;
  identity.secret = secret;
  return identity;
}

// Sentences from several threads.
class Sentences {
 public:
  void add(const std::string& sentence) {
    std::lock_guard lock(mutex_);
    sentences_.push_back(sentence);
    changed_.notify_all();
  }
  std::vector<std::string> all() const {
    std::lock_guard lock(mutex_);
    return sentences_;
  }
  // The first one that has `part`, which has to come.
  std::string wait_for_one(const std::string& part) const {
    std::unique_lock lock(mutex_);
    std::string found;
    const auto look = [&] {
      for (const std::string& sentence : sentences_)
        if (sentence.find(part) != std::string::npos) found = sentence;
      return !found.empty();
    };
    if (!changed_.wait_until(lock, soon(), look))
      fail(ErrorKind::bug, "no sentence with '{}' came; {} did", part, fmt::join(sentences_, " | "));
    return found;
  }
  size_t size() const { return all().size(); }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::string> sentences_;
};

inline SnapshotServerOptions server_options(std::vector<std::string> folders, Sentences* warnings = nullptr) {
  SnapshotServerOptions options;
  options.address = "127.0.0.1";
  options.run = "run";
  options.secret = kTestSecret;
  options.folders = std::move(folders);
  if (warnings != nullptr)
    options.warn = [warnings](const std::string& sentence) { warnings->add(sentence); };
  return options;
}

// A client that is let in and then says what a test wants.
struct HandClient {
  HandPeer peer;

  explicit HandClient(const Endpoint& endpoint) : peer(endpoint) {
    Hello hello = hello_of("run", 0, "snapshots", 0, 0);
    peer.say(hello, kTestSecret);
    const auto reply = peer.reply(kTestSecret);
    if (!reply || reply->verdict != Verdict::accepted) fail(ErrorKind::bug, "the client was not let in");
  }
  const Descriptor& socket() const { return peer.socket; }
  void say(std::string_view bytes) const { write_all(peer.socket, bytes); }
  void ask(const SnapshotRequest& request) const { say(write_frame(encode_request(request))); }
  SnapshotResponse response() const {
    const std::string head = read_bytes(peer.socket, kFrameHeaderBytes);
    if (head.size() < kFrameHeaderBytes) fail(ErrorKind::peer, "the server closed the connection");
    return parse_response(
        read_bytes(peer.socket, frame_bytes(head, kMostExchangeFrameBytes) - kFrameHeaderBytes));
  }
};

}  // namespace het::testing
