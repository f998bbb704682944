// What travels on the connections between ranks: messages in any order and size, ends in the midst of one,
// and peers that send what no rank sends.
#include <array>
#include <catch2/catch.hpp>
#include <fstream>
#include <random>
#include <thread>

#include "core/comm/tcp.h"
#include "core/comm/tcp_group_connections.h"
#include "tests/unit/core/comm_tcp_testing.h"

using namespace het;
using namespace het::testing;
using std::chrono::milliseconds;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The connections of a group of two over one connection; this one is rank `self` of it.
std::unique_ptr<TcpGroupConnections> connections_of(Descriptor socket, int self,
                                                    std::function<void(int, bool)> ended = nullptr) {
  std::vector<TcpPeer> peers(2);
  for (int peer = 0; peer < 2; ++peer)
    peers[static_cast<size_t>(peer)].rank = {peer, fmt::format("host{}", peer), -1};
  peers[static_cast<size_t>(1 - self)].socket = std::move(socket);
  auto connections = std::make_unique<TcpGroupConnections>(std::make_shared<TcpIo>(), std::move(peers), self,
                                                           std::move(ended));
  connections->watch([](int) {});
  return connections;
}

// Ranks 0 and 1.
struct Pair {
  std::array<std::unique_ptr<TcpGroupConnections>, 2> connections;
  Pair() {
    auto [first, second] = tcp_pair();
    connections[0] = connections_of(std::move(first), 0);
    connections[1] = connections_of(std::move(second), 1);
  }
};

// Rank 0, and the other end played by hand.
struct Played {
  std::unique_ptr<TcpGroupConnections> connections;
  Descriptor socket;
  explicit Played(std::function<void(int, bool)> ended = nullptr) {
    auto [first, second] = tcp_pair();
    connections = connections_of(std::move(first), 0, std::move(ended));
    socket = std::move(second);
  }
};

struct Outcome {
  std::string error, lost;  // of an Error, of a LostPeer
};
Outcome outcome_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.what(), {}};
  } catch (const LostPeer& peer) {
    return {{}, fmt::format("{}: {}", peer.peer, peer.what)};
  }
  return {};
}

void await_received(Channel& channel) {
  while (!channel.received(1)) {
  }
}

int64_t size_in(std::mt19937& random) {
  switch (random() % 6) {
    case 0: return 0;
    case 1: return static_cast<int64_t>(random() % 64);
    case 2: return kEagerBytes - 1 + static_cast<int64_t>(random() % 3);
    case 3: return static_cast<int64_t>(random() % 100'000);
    case 4: return int64_t{kChunkBytes} - 1 + static_cast<int64_t>(random() % 3);
    default: return static_cast<int64_t>(random() % 3'000'000);
  }
}

std::byte byte_of(uint32_t seed, int64_t at) { return static_cast<std::byte>((seed * 31U + at * 7U) >> 2); }

// Messages of one channel in both directions, some posted ahead. Both ends draw the same sizes.
std::string talk(TcpGroupConnections& connections, int self, uint64_t number, int messages) {
  constexpr size_t kAhead = 3;
  const int peer = 1 - self;
  const std::unique_ptr<Channel> channel = connections.open_channel(number);
  std::mt19937 sizes[2] = {std::mt19937(static_cast<uint32_t>(number * 2)),
                           std::mt19937(static_cast<uint32_t>(number * 2 + 1))};
  std::mt19937 pace(static_cast<uint32_t>(number * 5 + static_cast<uint64_t>(self)));
  std::vector<Bytes> out(kAhead), in(kAhead);
  const auto check = [&](int m) -> std::string {
    const Bytes& bytes = in[static_cast<size_t>(m) % kAhead];
    for (size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] != byte_of(static_cast<uint32_t>(m + peer), static_cast<int64_t>(i)))
        return fmt::format("channel {}, message {} of {} bytes differs at {}", number, m, bytes.size(), i);
    return {};
  };
  for (int m = 0, done = 0; done < messages;) {
    const bool post = m < messages && static_cast<size_t>(m - done) < kAhead && pace() % 3 != 0;
    if (!post && m == done) continue;
    if (pace() % 8 == 0) std::this_thread::yield();
    if (!post) {
      while (!channel->received(peer)) {
      }
      if (std::string problem = check(done); !problem.empty()) return problem;
      while (!channel->sent(peer)) {
      }
      ++done;
      continue;
    }
    const size_t slot = static_cast<size_t>(m) % kAhead;
    out[slot].resize(static_cast<size_t>(size_in(sizes[self])));
    in[slot].assign(static_cast<size_t>(size_in(sizes[peer])), std::byte{0xee});
    for (size_t i = 0; i < out[slot].size(); ++i)
      out[slot][i] = byte_of(static_cast<uint32_t>(m + self), static_cast<int64_t>(i));
    const auto send = [&] { channel->send(peer, out[slot].data(), static_cast<int64_t>(out[slot].size())); };
    const auto receive = [&] {
      channel->receive(peer, in[slot].data(), static_cast<int64_t>(in[slot].size()));
    };
    if (pace() % 2 == 0) {
      send();
      receive();
    } else {
      receive();
      send();
    }
    ++m;
  }
  return {};
}

}  // namespace

TEST_CASE("frames are read as they were written, and what no rank sends is refused", "[comm]") {
  for (const Frame& frame :
       {Frame{FrameKind::ready, 0, 7, 0}, Frame{FrameKind::ready, 0, kMostChannels - 1, 1LL << 40},
        Frame{FrameKind::data, 0, 0, 0}, Frame{FrameKind::data, kChunkBytes, 1, 1LL << 40},
        Frame{FrameKind::goodbye, 0, 0, 0}}) {
    const std::string text = text_of(frame);
    const auto read = read_frame(reinterpret_cast<const std::byte*>(text.data()));
    REQUIRE(read);
    CHECK(*read == frame);
  }
  for (const Frame& frame :
       {Frame{static_cast<FrameKind>(0), 0, 0, 0}, Frame{static_cast<FrameKind>(4), 0, 0, 0},
        Frame{FrameKind::ready, 0, kMostChannels, 1}, Frame{FrameKind::ready, 0, 1, -1},
        Frame{FrameKind::ready, 1, 1, 1}, Frame{FrameKind::data, kChunkBytes + 1, 1, 1LL << 40},
        Frame{FrameKind::data, 8, 1, 7}, Frame{FrameKind::data, 0, 1, 7},
        Frame{FrameKind::goodbye, 0, 0, 1}}) {
    const std::string text = text_of(frame);
    CHECK(!read_frame(reinterpret_cast<const std::byte*>(text.data())));
  }
}

TEST_CASE("messages of any size on many channels arrive whole and in order, whichever end comes first",
          "[comm]") {
  constexpr uint64_t kChannels = 8;
  constexpr int kMessages = 40;
  Pair pair;
  std::array<std::string, 2 * kChannels> problems;
  std::vector<std::thread> threads;
  for (int self = 0; self < 2; ++self)
    for (uint64_t channel = 0; channel < kChannels; ++channel)
      threads.emplace_back([&, self, channel] {
        std::string& problem = problems[static_cast<size_t>(self) * kChannels + channel];
        const Outcome outcome = outcome_of(
            [&] { problem = talk(*pair.connections[static_cast<size_t>(self)], self, channel, kMessages); });
        problem += outcome.error + outcome.lost;
      });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) CHECK(problem == "");
}

TEST_CASE("a message counts as sent once its receiver has posted for it, small or large", "[comm]") {
  for (const int64_t size : {int64_t{0}, int64_t{8}, kEagerBytes + 1}) {
    Pair pair;
    const auto from = pair.connections[0]->open_channel(3), to = pair.connections[1]->open_channel(3);
    Bytes out(static_cast<size_t>(size), std::byte{7}), in(out.size());
    from->send(1, out.data(), size);
    std::atomic<bool> posted = false, early = false;
    std::thread sender([&] {
      while (!from->sent(1)) {
      }
      early = !posted;
    });
    std::this_thread::sleep_for(milliseconds(30));
    posted = true;
    to->receive(0, in.data(), size);
    while (!to->received(0)) {
    }
    sender.join();
    CHECK(!early);
    CHECK(in == out);
  }
}

TEST_CASE("a small message waits for nothing behind a large one that its receiver has not posted for",
          "[comm]") {
  Pair pair;
  const auto large = pair.connections[0]->open_channel(1), small = pair.connections[0]->open_channel(2),
             to = pair.connections[1]->open_channel(2);
  Bytes much(50'000'000), little(100, std::byte{3}), in(100);
  large->send(1, much.data(), static_cast<int64_t>(much.size()));
  small->send(1, little.data(), 100);
  to->receive(0, in.data(), 100);
  std::thread other([&] { large->sent(1); });  // until the cut
  while (!to->received(0)) {
  }
  while (!small->sent(1)) {
  }
  CHECK(in == little);
  pair.connections[0]->cut();
  other.join();
}

TEST_CASE("after a cut in the midst of a message nothing is written to the receiver's memory", "[comm]") {
  Played played;
  const auto channel = played.connections->open_channel(0);
  constexpr int64_t kSize = 900'000;
  Bytes memory(kSize, std::byte{1});
  channel->receive(1, memory.data(), kSize);
  std::thread waiting([&] { channel->received(1); });  // until the cut
  REQUIRE(next_frame(played.socket) == Frame{FrameKind::ready, 0, 0, kSize});
  write_all(played.socket, text_of({FrameKind::data, kSize, 0, kSize}) + std::string(kSize / 2, '\2'));
  std::this_thread::sleep_for(milliseconds(30));  // the half is there, if the machine is not too busy
  played.connections->cut();
  waiting.join();
  std::fill(memory.begin(), memory.end(), std::byte{5});
  write_all(played.socket, std::string(kSize / 2, '\3'));
  read_bytes(played.socket, 1'000'000);  // until the connection is closed
  CHECK((memory == Bytes(kSize, std::byte{5})));
}

TEST_CASE(
    "after a cut in the midst of a message nothing is read from the sender's memory, and it says goodbye",
    "[comm]") {
  Played played;
  const auto channel = played.connections->open_channel(4);
  constexpr int64_t kSize = 64'000'000;
  Bytes memory(kSize, std::byte{1});
  channel->send(1, memory.data(), kSize);
  std::thread waiting([&] { channel->sent(1); });
  write_all(played.socket, text_of({FrameKind::ready, 0, 4, kSize}));
  std::string came = read_bytes(played.socket, 3'000'000);
  played.connections->cut();
  waiting.join();
  std::fill(memory.begin(), memory.end(), std::byte{9});
  came += read_bytes(played.socket, kSize * 2);
  bool goodbye = false;
  int64_t payload = 0;
  for (size_t at = 0; at + kFrameBytes <= came.size();) {
    const auto frame = read_frame(reinterpret_cast<const std::byte*>(came.data() + at));
    REQUIRE(frame);
    at += kFrameBytes;
    goodbye = frame->kind == FrameKind::goodbye;
    const std::string part = came.substr(at, frame->chunk);
    CHECK((part == std::string(frame->chunk, '\1')));  // not printed: it is long
    payload += frame->chunk;
    at += frame->chunk;
  }
  CHECK(goodbye);
  CHECK(payload < kSize);
  CHECK(outcome_of([&] { channel->send(1, memory.data(), 1); }).lost == "1: connection closed by this rank");
}

TEST_CASE("what a peer sent before it was gone is received, and then it is lost", "[comm]") {
  for (const bool goodbye : {true, false}) {
    std::mutex mutex;
    std::vector<std::pair<int, bool>> ended;
    Played played([&](int rank, bool left) {
      std::lock_guard lock(mutex);
      ended.emplace_back(rank, left);
    });
    const auto channel = played.connections->open_channel(0);
    std::string sent = text_of({FrameKind::data, 3, 0, 3}) + "abc";
    if (goodbye) sent += text_of({FrameKind::goodbye, 0, 0, 0});
    write_all(played.socket, sent);
    played.socket = Descriptor();
    while (!played.connections->gone(1)) std::this_thread::yield();
    std::string in(3, ' '), more(3, ' ');
    channel->receive(1, reinterpret_cast<std::byte*>(in.data()), 3);
    await_received(*channel);
    CHECK(in == "abc");
    channel->receive(1, reinterpret_cast<std::byte*>(more.data()), 3);
    CHECK(outcome_of([&] { channel->received(1); }).lost ==
          (goodbye ? "1: it left" : "1: connection closed"));
    played.connections = nullptr;
    CHECK(ended == std::vector{std::pair(1, goodbye)});
  }
}

TEST_CASE("two ends that disagree about the size of a message say so, and which end says what", "[comm]") {
  for (const int64_t size : {int64_t{10}, kEagerBytes * 2}) {
    Pair pair;
    const auto from = pair.connections[0]->open_channel(5), to = pair.connections[1]->open_channel(5);
    Bytes out(static_cast<size_t>(size)), in(static_cast<size_t>(size + 8));
    from->send(1, out.data(), size);
    to->receive(0, in.data(), size + 8);
    std::string receiver;
    std::thread other([&] {
      // A large message is not sent at all: the sender sees the mistake first.
      if (size <= kEagerBytes)
        receiver = outcome_of([&] {
                     while (!to->received(0)) {
                     }
                   }).error;
      else
        to->received(0);  // until the cut
    });
    const std::string sender = outcome_of([&] {
                                 while (!from->sent(1)) {
                                 }
                               }).error;
    if (size <= kEagerBytes) other.join();
    pair.connections[1]->cut();
    if (other.joinable()) other.join();
    CHECK(sender == fmt::format("rank 1 on host1 expects {} bytes where this rank sends {}", size + 8, size));
    if (size <= kEagerBytes)
      CHECK(receiver ==
            fmt::format("rank 0 on host0 sends {} bytes where this rank expects {}", size, size + 8));
  }
}

TEST_CASE("a peer that sends a wrong length, or what was not asked for, is cut off without harm", "[comm]") {
  const auto lost_by = [](const std::string& bytes) {
    Played played;
    const auto channel = played.connections->open_channel(0);
    Bytes memory(100, std::byte{1}), guard(4096, std::byte{1});
    channel->receive(1, memory.data(), 80);
    std::thread hand([&] {
      write_all(played.socket, bytes);
      played.socket = Descriptor();
    });
    const Outcome outcome = outcome_of([&] { await_received(*channel); });
    hand.join();
    for (size_t i = 80; i < memory.size(); ++i) HET_REQUIRE(memory[i] == std::byte{1}, i);
    return outcome.error + outcome.lost;
  };
  const std::string broken = "1: it sent what no rank sends";
  CHECK(lost_by(text_of({FrameKind::data, 100, 0, 100}) + std::string(100, 'x')) ==
        "rank 1 on host1 sends 100 bytes where this rank expects 80");
  CHECK(lost_by(text_of({FrameKind::data, 40, 0, 80}) + std::string(40, 'x') +
                text_of({FrameKind::data, 41, 0, 80}) + std::string(41, 'x')) == broken);
  CHECK(lost_by(text_of({FrameKind::data, 5000, 9, 5000}) + std::string(5000, 'x')) == broken);
  CHECK(lost_by(text_of({FrameKind::data, 5, 9, 9}) + std::string(5, 'x')) == broken);
  CHECK(lost_by(text_of({FrameKind::data, 5, 9, 5}) + "12345" + text_of({FrameKind::data, 5, 9, 5})) ==
        broken);
  CHECK(lost_by(text_of({static_cast<FrameKind>(77), 0, 0, 0})) == broken);
  CHECK(lost_by(std::string(1000, '\xff')) == broken);
}

TEST_CASE("random bytes from a peer never do more than end its connection", "[comm]") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    Played played;
    const auto channel = played.connections->open_channel(0);
    Bytes memory(64 + 16, std::byte{1});
    channel->receive(1, memory.data(), 64);
    std::string bytes;
    for (int i = 0; i < 30; ++i) {
      const auto kind = static_cast<FrameKind>(1 + random() % 5);
      const uint32_t chunk = kind == FrameKind::data ? random() % 70 : 0;
      bytes +=
          text_of({kind, chunk, random() % 2, random() % 3 == 0 ? 64 : static_cast<int64_t>(random() % 70)});
      bytes += std::string(chunk, 'x');
    }
    write_all(played.socket, bytes);
    played.socket = Descriptor();
    outcome_of([&] { await_received(*channel); });
    while (!played.connections->gone(1)) {
      if (!outcome_of([&] { await_received(*channel); }).error.empty()) break;  // sizes disagree
    }
    for (size_t i = 64; i < memory.size(); ++i) REQUIRE(memory[i] == std::byte{1});
  }
}

TEST_CASE("ranks that ask for different sizes both say so", "[comm]") {
  const auto errors = on_ranks(tcp_maker(), 2, {}, [](Fabric& fabric) {
    const auto group = fabric.group("dp0", all_ranks(2));
    std::vector<float> data(20);
    run_once(*group,
             {CollectiveKind::all_reduce, DType::f32, {10 + fabric.rank()}, -1, 0, Reduction::sum, "x"},
             data.data(), data.data());
  });
  for (const std::string& text : errors) {
    INFO(text);
    CHECK(has(text, "bytes where this rank "));
    CHECK(has(text, "40"));
    CHECK(has(text, "44"));
  }
}
