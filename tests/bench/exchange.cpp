// How fast a snapshot file comes from a peer, against plain sockets that move the same bytes with sendfile()
// and recv() and check and keep nothing, turn by turn in one run. Files are in /dev/shm. usage: exchange
// [MiB] [rounds]                        over the loopback interface
//        exchange serve ADDRESS [MiB]                   until its input ends; prints what `measure` needs
//        exchange measure OWN_ADDRESS PEER FILE [rounds]
// Prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/median.h"
#include "core/io/file.h"
#include "core/net/socket.h"
#include "snapshot/exchange_client.h"
#include "snapshot/exchange_server.h"
#include "snapshot/writer.h"

using namespace het;

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kSecret = "the secret of the bench";

struct Folder {
  Folder() {
    std::string pattern = "/dev/shm/hetrun-bench-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) fail_environment("no folder can be made in /dev/shm");
    path = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

// A file of one tensor whose numbers are all different; its name.
std::string write_file(const std::string& folder, int64_t bytes) {
  SnapshotManifest manifest;
  manifest.version = {1, 1};
  manifest.tensors = {{"w", {DType::f32, {bytes / 4}}, true}};
  const auto read = [](std::byte* to, int64_t begin, int64_t count) {
    for (int64_t at = 0; at < count; at += 8) {
      const int64_t value = (begin + at) * 0x9E3779B97F4A7C1;
      std::memcpy(to + at, &value, 8);
    }
  };
  const Path path = snapshot_path(folder, manifest);
  write_snapshot(path, manifest, {{"w", TensorSlice::whole({bytes / 4}), read}});
  return path.text.substr(folder.size() + 1);
}

void make_blocking(const Descriptor& socket) {
  ::fcntl(socket.number(), F_SETFL, ::fcntl(socket.number(), F_GETFL) & ~O_NONBLOCK);
}

// Sends the file to whoever connects.
class PlainServer {
 public:
  PlainServer(const std::string& address, const std::string& path) : endpoint_{address, 0}, file_(path) {
    listener_ = listen_at(endpoint_);
    thread_ = std::thread([this] { serve(); });
  }
  ~PlainServer() {
    stop_.set();
    thread_.join();
  }
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  void serve() {
    const Deadline never = Clock::now() + std::chrono::hours(1);
    while (!stop_.is_set()) {
      wait_for(listener_, Ready::read, never, stop_.number());
      std::string who;
      const Descriptor client = accept_from(listener_, who);
      if (!client) continue;
      make_blocking(client);
      off_t position = 0;
      while (position < file_.bytes)
        if (::sendfile(client.number(), file_.descriptor.number(), &position,
                       static_cast<size_t>(file_.bytes - position)) <= 0)
          break;
    }
  }

  Endpoint endpoint_;
  OpenFile file_;
  Descriptor listener_;
  StopSignal stop_;
  std::thread thread_;
};

// Takes all bytes; writes them to `into` where it is given.
void receive_plain(const Endpoint& endpoint, const std::string& own, const std::string& into) {
  const Descriptor socket = connect_to(endpoint, own, Clock::now() + std::chrono::seconds(10));
  make_blocking(socket);
  const Descriptor file(into.empty() ? -1
                                     : ::open(into.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  std::vector<char> buffer(4 << 20);
  for (;;) {
    const ssize_t got = ::recv(socket.number(), buffer.data(), buffer.size(), MSG_WAITALL);
    if (got <= 0) return;
    if (file && ::write(file.number(), buffer.data(), static_cast<size_t>(got)) != got)
      fail_environment("/dev/shm is full");
  }
}

ExchangeIdentity identity_at(const std::string& address) {
  ExchangeIdentity identity;
  identity.address = address;
  identity.run = "bench";
  identity.secret = kSecret;
  return identity;
}

std::unique_ptr<SnapshotServer> serve(const std::string& address, const std::string& folder) {
  SnapshotServerOptions options;
  options.address = address;
  options.run = "bench";
  options.secret = kSecret;
  options.folders = {folder};
  return SnapshotServer::start(options);
}

void measure(const std::string& own, const Endpoint& snapshots, const Endpoint& plain,
             const std::string& file, int64_t bytes, int rounds) {
  const Folder folder;
  PeerSnapshots peers(identity_at(own));
  const std::string into = folder.path + "/" + file, previous = folder.path + "/previous";
  std::vector<std::byte> memory(static_cast<size_t>(bytes));
  peers.fetch(snapshots, file, previous);
  FetchOptions unchanged;
  unchanged.previous = previous;
  const std::vector<std::pair<const char*, std::function<void()>>> ways = {
      {"plain", [&] { receive_plain(plain, own, ""); }},
      {"plain, written", [&] { receive_plain(plain, own, into); }},
      {"range", [&] { peers.read_range(snapshots, file, 0, bytes, memory.data()); }},
      {"fetch", [&] { peers.fetch(snapshots, file, into); }},
      {"fetch, unchanged", [&] { peers.fetch(snapshots, file, into, unchanged); }}};
  std::map<std::string, std::vector<double>> seconds;
  for (int round = 0; round < rounds; ++round)
    for (const auto& [name, act] : ways) {
      std::filesystem::remove(into);
      const auto begin = Clock::now();
      act();
      seconds[name].push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
  const double plainly = median(seconds["plain"]);
  std::printf("{\"bytes\": %lld, \"rounds\": %d", static_cast<long long>(bytes), rounds);
  for (const auto& [name, act] : ways) {
    const double time = median(seconds[name]);
    std::printf(",\n \"%s\": {\"seconds\": %.4f, \"GB/s\": %.3f, \"of plain\": %.3f}", name, time,
                static_cast<double>(bytes) / time / 1e9, plainly / time);
  }
  std::printf("}\n");
}

int run(int argc, char** argv) {
  const auto argument = [&](int at, const char* otherwise) { return at < argc ? argv[at] : otherwise; };
  const std::string mode = argument(1, "");
  if (mode == "measure") {
    const std::string peer = argument(3, ""), file = argument(4, "");
    Endpoint plain = parse_endpoint(peer.substr(peer.find('/') + 1));
    const Endpoint snapshots = parse_endpoint(peer.substr(0, peer.find('/')));
    PeerSnapshots peers(identity_at(argv[2]));
    measure(argv[2], snapshots, plain, file, peers.list(snapshots).at(0).bytes, std::atoi(argument(5, "3")));
    return 0;
  }
  const bool serves = mode == "serve";
  const std::string address = serves ? argument(2, "127.0.0.1") : "127.0.0.1";
  const int64_t bytes = int64_t{std::atoi(argument(serves ? 3 : 1, "1024"))} << 20;
  const Folder folder;
  const std::string file = write_file(folder.path, bytes), path = folder.path + "/" + file;
  const auto server = serve(address, folder.path);
  const PlainServer plain(address, path);
  if (serves) {
    std::printf("%s/%s %s\n", to_string(server->endpoint()).c_str(), to_string(plain.endpoint()).c_str(),
                file.c_str());
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    return 0;
  }
  measure(address, server->endpoint(), plain.endpoint(), file, OpenFile(path).bytes,
          std::atoi(argument(2, "5")));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
