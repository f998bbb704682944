#include "core/comm/gloo.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <set>
#include <shared_mutex>
#include <thread>
#include <type_traits>

#include <arpa/inet.h>
#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/comm/group.h"

// In place of libc's, for the whole process. When a connection breaks just as it is made, Gloo asks, on a
// thread of its own, for the name of its peer to say so, and ends the process when there is none. Here it is
// empty.
extern "C" int getpeername(int socket, sockaddr* __restrict name, socklen_t* __restrict size) noexcept {
  if (::syscall(SYS_getpeername, socket, name, size) == 0) return 0;
  if (errno != ENOTCONN) return -1;
  std::memset(name, 0, *size);
  return 0;
}

namespace het {
namespace {

using std::chrono::milliseconds;
using UnboundBuffer = gloo::transport::UnboundBuffer;

// Gloo ends every connection of a context when one of its waits times out; waiting with patience is ours.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
constexpr uint64_t kHelloSlot = 0, kWatchSlot = 1, kFirstChannelSlot = 2;
constexpr milliseconds kGrace{20};  // for what a lost peer sent before
constexpr size_t kTokenBytes = 16;

// A buffer over the whole address space: messages are posted by address, and nothing is made in a step.
std::unique_ptr<UnboundBuffer> all_memory(gloo::Context& context) {
  return context.createUnboundBuffer(nullptr, std::numeric_limits<size_t>::max());
}

// What one rank tells the others to be found.
struct Card {
  std::string host;
  std::string token;                   // to be shown by those who connect to it
  std::vector<std::string> addresses;  // to connect to, by rank of the group; its own is empty
};

std::string write_card(const Card& card) {
  std::string text;
  const auto add = [&](const std::string& part) {
    const auto size = static_cast<uint32_t>(part.size());
    text.append(reinterpret_cast<const char*>(&size), sizeof size);
    text += part;
  };
  add(card.host);
  add(card.token);
  for (const std::string& address : card.addresses) add(address);
  return text;
}

std::optional<Card> read_card(const std::string& text, int size) {
  size_t at = 0;
  const auto next = [&]() -> std::optional<std::string> {
    uint32_t bytes = 0;
    if (text.size() - at < sizeof bytes) return std::nullopt;
    std::memcpy(&bytes, text.data() + at, sizeof bytes);
    at += sizeof bytes;
    if (text.size() - at < bytes) return std::nullopt;
    at += bytes;
    return text.substr(at - bytes, bytes);
  };
  const auto host = next(), token = next();
  if (!host || !token || token->size() != kTokenBytes) return std::nullopt;
  Card card{*host, *token, {}};
  for (int rank = 0; rank < size; ++rank) {
    const auto address = next();
    if (!address) return std::nullopt;
    card.addresses.push_back(*address);
  }
  return card;
}

std::string random_token() {
  std::random_device device;
  std::string token(kTokenBytes, '\0');
  for (char& c : token) c = static_cast<char>(device());
  return token;
}

// A Gloo context whose connections are made here rather than by connectFullMesh, so that the wait for the
// others can be given up, names who is missing, and ends with each side showing the other's token.
class Mesh final : public gloo::Context {
 public:
  Mesh(std::shared_ptr<gloo::transport::Device> device, int rank, int size, milliseconds timeout)
      : gloo::Context(rank, size) {
    constexpr int kTimeoutsOfConnect = 5;  // Gloo waits so many for a connection
    device_ = std::move(device);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(std::max(timeout / kTimeoutsOfConnect, milliseconds(1)));
    setTimeout(kForever);
    gone_ = std::vector<std::atomic<bool>>(size);
  }

  std::vector<std::string> listen() {
    std::vector<std::string> addresses(size);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::vector<char> bytes = transportContext_->createPair(peer)->address().bytes();
      addresses[peer].assign(bytes.begin(), bytes.end());
    }
    return addresses;
  }

  // Run `body`, which posts a message, unless the connections have been closed: Gloo ends the process when
  // one is posted on a connection that was closed on this side.
  template <typename Body>
  bool post(const Body& body) {
    std::shared_lock lock(closing_);
    if (!closed_) body();
    return !closed_;
  }
  void close() {
    std::unique_lock lock(closing_);
    if (closed_) return;
    closed_ = true;
    closeConnections();
  }

  // The connection to the peer is known to be closed.
  bool gone(int peer) const { return gone_[peer].load(); }
  void set_gone(int peer) { gone_[peer].store(true); }

  // A wait for what a peer sent before it was gone. Should it fail, Gloo closes all connections: waits for
  // others that end by that are the fault of this peer.
  void begin_grace(int peer) {
    int nobody = -1;
    grace_.compare_exchange_strong(nobody, peer);
  }
  void end_grace(int peer) { grace_.compare_exchange_strong(peer, -1); }
  int to_blame(int peer) const {
    const int other = grace_.load();
    return other >= 0 ? other : peer;
  }

  void connect(int peer, const std::string& address) {
    transportContext_->getPair(peer)->connect(std::vector<char>(address.begin(), address.end()));
  }

 private:
  std::vector<std::atomic<bool>> gone_;
  std::atomic<int> grace_ = -1;
  std::shared_mutex closing_;
  bool closed_ = false;
};

class GlooWire final : public Wire {
 public:
  GlooWire(std::shared_ptr<Mesh> mesh, uint64_t slot, milliseconds limit)
      : mesh_(std::move(mesh)), slot_(slot), limit_(limit) {
    for (int peer = 0; peer < mesh_->size; ++peer)
      ends_.push_back(peer == mesh_->rank ? Ends{} : Ends{all_memory(*mesh_), all_memory(*mesh_)});
  }

  void send(int peer, const std::byte* from, int64_t bytes) override {
    post(peer, [&] {
      ends_[peer].send->send(peer, slot_, reinterpret_cast<size_t>(from), static_cast<size_t>(bytes));
    });
  }
  void receive(int peer, std::byte* to, int64_t bytes) override {
    post(peer, [&] {
      ends_[peer].receive->recv(peer, slot_, reinterpret_cast<size_t>(to), static_cast<size_t>(bytes));
    });
  }
  bool sent(int peer) override {
    return wait(peer, *ends_[peer].send, true,
                [](UnboundBuffer& buffer, milliseconds limit) { return buffer.waitSend(limit); });
  }
  bool received(int peer) override {
    return wait(peer, *ends_[peer].receive, false,
                [](UnboundBuffer& buffer, milliseconds limit) { return buffer.waitRecv(limit); });
  }
  void interrupt() override {
    std::lock_guard lock(mutex_);
    if (waits_for_ == nullptr) return;
    if (waits_to_send_)
      waits_for_->abortWaitSend();
    else
      waits_for_->abortWaitRecv();
  }
  void cut() {
    {
      std::lock_guard lock(mutex_);
      cut_ = true;
    }
    interrupt();
  }

 private:
  struct Ends {
    std::unique_ptr<UnboundBuffer> send, receive;
  };

  template <typename Body>
  bool guarded(int peer, const Body& body) {
    try {
      return body();
    } catch (const std::exception&) {  // names an address and a line of Gloo: of no use to anybody
      throw LostPeer{mesh_->to_blame(peer), "its connection closed"};
    }
  }

  template <typename Body>
  void post(int peer, const Body& body) {
    if (!guarded(peer, [&] { return mesh_->post(body); }))
      throw LostPeer{peer, "its connection was closed here"};
  }

  // An interrupt that comes after the wait has ended leaves its mark on the buffer: the next wait returns
  // false once more, and is repeated.
  template <typename Wait>
  bool wait(int peer, UnboundBuffer& buffer, bool to_send, const Wait& body) {
    {
      std::lock_guard lock(mutex_);
      if (cut_) return false;
      waits_for_ = &buffer;
      waits_to_send_ = to_send;
    }
    struct Reset {
      GlooWire& wire;
      ~Reset() {
        std::lock_guard lock(wire.mutex_);
        wire.waits_for_ = nullptr;
      }
    } const reset{*this};
    if (!mesh_->gone(peer)) return guarded(peer, [&] { return body(buffer, limit_); });
    mesh_->begin_grace(peer);
    const bool done = guarded(peer, [&] { return body(buffer, kGrace); });
    mesh_->end_grace(peer);
    return done;
  }

  std::shared_ptr<Mesh> mesh_;
  uint64_t slot_;
  milliseconds limit_;      // of one wait: Gloo then closes all connections
  std::vector<Ends> ends_;  // by peer
  std::mutex mutex_;
  UnboundBuffer* waits_for_ = nullptr;
  bool waits_to_send_ = false;
  bool cut_ = false;
};

// Gloo may fail to tell a wait that its connection broke, if its message was about to travel. So a receive of
// nothing, for which nobody ever sends, stays posted with every peer; it is told, and a thread here listens
// for it.
class Watch {
 public:
  Watch(std::shared_ptr<Mesh> mesh, std::function<void(int)> gone)
      : mesh_(std::move(mesh)), gone_(std::move(gone)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Watch() { join(); }
  void join() {
    stop();
    if (thread_.joinable()) thread_.join();
  }
  // The thread ends soon; it may be the caller.
  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    if (any_ != nullptr) any_->abortWaitRecv();
  }

 private:
  void run() {
    std::vector<std::unique_ptr<UnboundBuffer>> each(mesh_->size);
    std::vector<bool> here(mesh_->size, true);
    here[mesh_->rank] = false;
    for (int peer = 0; peer < mesh_->size; ++peer) {
      if (!here[peer]) continue;
      each[peer] = all_memory(*mesh_);
      if (!post(*each[peer], peer)) lose(here, peer);
    }
    while (true) {
      // One buffer is told of any peer, but not which: then each is asked for its own.
      const std::unique_ptr<UnboundBuffer> any = all_memory(*mesh_);
      for (int peer = 0; peer < mesh_->size; ++peer)
        if (here[peer] && !post(*any, peer)) lose(here, peer);
      {
        std::lock_guard lock(mutex_);
        if (stopped_) return;
        any_ = any.get();
      }
      is_broken(*any);
      {
        std::lock_guard lock(mutex_);
        any_ = nullptr;
        if (stopped_) return;
      }
      for (int peer = 0; peer < mesh_->size; ++peer) {
        if (!here[peer]) continue;
        each[peer]->abortWaitRecv();  // ask without waiting
        if (is_broken(*each[peer])) lose(here, peer);
      }
    }
  }

  void lose(std::vector<bool>& here, int peer) {
    here[peer] = false;
    gone_(peer);
  }
  bool post(UnboundBuffer& buffer, int peer) {
    try {
      return mesh_->post([&] { buffer.recv(peer, kWatchSlot, 0, 0); });
    } catch (const std::exception&) {
      return false;
    }
  }
  static bool is_broken(UnboundBuffer& buffer) {
    try {
      buffer.waitRecv(kForever);
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

  std::shared_ptr<Mesh> mesh_;
  std::function<void(int)> gone_;
  std::mutex mutex_;
  UnboundBuffer* any_ = nullptr;
  bool stopped_ = false;
  std::thread thread_;
};

// What remains of a wire when the group has let go of it: cut() reaches those that live.
class WireHandle final : public Wire {
 public:
  explicit WireHandle(std::shared_ptr<GlooWire> wire) : wire_(std::move(wire)) {}
  void send(int peer, const std::byte* from, int64_t bytes) override { wire_->send(peer, from, bytes); }
  void receive(int peer, std::byte* to, int64_t bytes) override { wire_->receive(peer, to, bytes); }
  bool sent(int peer) override { return wire_->sent(peer); }
  bool received(int peer) override { return wire_->received(peer); }
  void interrupt() override { wire_->interrupt(); }

 private:
  std::shared_ptr<GlooWire> wire_;
};

class GlooLinks final : public Links {
 public:
  GlooLinks(std::shared_ptr<Mesh> mesh, std::vector<std::string> hosts)
      : mesh_(std::move(mesh)), hosts_(std::move(hosts)) {}
  ~GlooLinks() override {
    unwatch();
    cut();
  }

  void watch(std::function<void(int)> gone) override {
    if (mesh_->size == 1) return;
    std::lock_guard lock(mutex_);  // the first call may come before watch_ is there
    watch_.emplace(mesh_, [this, gone = std::move(gone)](int peer) {
      mesh_->set_gone(peer);
      {
        std::lock_guard lock(mutex_);
        for (const auto& wire : wires_)
          if (const auto alive = wire.lock()) alive->interrupt();
      }
      gone(peer);
    });
  }

  std::unique_ptr<Wire> wire(uint64_t channel) override {
    return wire_on(kFirstChannelSlot + channel, kForever);
  }
  std::unique_ptr<Wire> wire_on(uint64_t slot, milliseconds limit) {
    auto wire = std::make_shared<GlooWire>(mesh_, slot, limit);
    std::lock_guard lock(mutex_);
    if (is_cut_) wire->cut();
    wires_.push_back(wire);
    return std::make_unique<WireHandle>(std::move(wire));
  }

  void cut() override {
    std::lock_guard lock(mutex_);
    if (is_cut_) return;
    is_cut_ = true;
    if (watch_) watch_->stop();
    mesh_->close();
    for (const auto& wire : wires_)
      if (const auto alive = wire.lock()) alive->cut();
  }

  void unwatch() override {
    if (watch_) watch_->join();
  }

  std::string host(int peer) const override { return hosts_[peer]; }
  bool gone(int peer) const override { return mesh_->gone(peer); }

 private:
  std::shared_ptr<Mesh> mesh_;
  std::vector<std::string> hosts_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<GlooWire>> wires_;
  bool is_cut_ = false;
  std::optional<Watch> watch_;
};

// While a group is formed: for whom this rank waits, said on the board when it takes long. Taken back when
// all have come; a rank that gives up leaves it, for those who still wait.
class Waiting {
 public:
  Waiting(Board& board, milliseconds long_enough)
      : board_(board), thread_([this, long_enough] { watch(CommClock::now() + long_enough); }) {}
  ~Waiting() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  void wait_for(Awaited rank) {
    std::lock_guard lock(mutex_);
    rank_ = std::move(rank);
    changed_.notify_all();
  }
  void all_came() { wait_for({}); }

 private:
  void watch(CommClock::time_point from) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, from, [&] { return over_; });
    Awaited said;
    while (!over_) {
      if (rank_ != said) {
        said = rank_;
        lock.unlock();
        say(said);
        lock.lock();
      }
      changed_.wait(lock, [&] { return over_ || rank_ != said; });
    }
    if (said != rank_ && rank_ == Awaited{}) say(rank_);
  }
  void say(const Awaited& rank) {
    board_.say_waiting(rank == Awaited{} ? std::vector<Awaited>{} : std::vector{rank});
  }

  Board& board_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Awaited rank_;
  bool over_ = false;
  std::thread thread_;
};

std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  else
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text.data(), text.size());
  return text.data();
}

// Interfaces or addresses that this machine has.
std::set<std::string> network_names(bool addresses) {
  std::set<std::string> names;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return names;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
      continue;
    names.insert(addresses ? text_of(i->ifa_addr) : i->ifa_name);
  }
  return names;
}

bool is_loopback(const std::string& address) { return address.starts_with("127."); }

// Gloo writes to connections that peers have closed; by default that ends the process.
void ignore_sigpipe() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

std::shared_ptr<gloo::transport::Device> make_device(const GlooOptions& options) {
  if (options.interface.empty() == options.address.empty())
    fail_usage(
        "communication needs an interface or an address of this machine to use, one of the two; interfaces: "
        "{}",
        fmt::join(network_names(false), ", "));
  const bool by_address = !options.address.empty();
  const std::string& name = by_address ? options.address : options.interface;
  const std::set<std::string> known = network_names(by_address);
  if (!known.contains(name) && !(by_address && is_loopback(name)))
    fail_usage("this machine has no {} '{}' for communication; it has {}",
               by_address ? "address" : "interface", name, fmt::join(known, ", "));
  ignore_sigpipe();
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options.address;
  attributes.iface = options.interface;
  attributes.ai_family = AF_UNSPEC;
  try {
    return gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    fail_environment("cannot use {} for communication: {}", name, error.what());
  }
}

std::string own_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

class GlooFabric final : public Fabric {
 public:
  explicit GlooFabric(GlooOptions options) : options_(std::move(options)), device_(make_device(options_)) {
    HET_REQUIRE(options_.store != nullptr);
    if (options_.host.empty()) options_.host = own_name();
    board_ = std::make_shared<Board>(options_.board != nullptr ? options_.board : options_.store,
                                     options_.prefix, options_.rank, options_.keeper);
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::shared_ptr<Communicator> group(const std::string& name, std::vector<int> ranks,
                                      std::shared_ptr<Pacer> pacer) override {
    groups_.require_alive();
    const int place = place_in_group(ranks, rank(), size());
    const CommClock::time_point until = CommClock::now() + options_.patience.timeout;
    const std::string prefix = fmt::format("{}/group/{}", options_.prefix, name);
    auto mesh =
        std::make_shared<Mesh>(device_, place, static_cast<int>(ranks.size()), options_.patience.timeout);
    const Card own{options_.host, random_token(), mesh->listen()};
    in_store(name, [&] { options_.store->set(fmt::format("{}/{}", prefix, place), write_card(own)); });
    Waiting waiting(*board_, say_waiting_after(options_.patience.warn_after, options_.patience.timeout));
    std::vector<Card> cards = find_all(name, prefix, ranks, place, until, waiting);
    cards[place] = own;
    std::vector<std::string> hosts;
    for (const Card& card : cards) hosts.push_back(card.host);
    auto links = std::make_unique<GlooLinks>(mesh, std::move(hosts));
    {
      const Connecting connecting(*this, *links);
      connect_all(*mesh, *links, name, ranks, cards, waiting);
    }
    waiting.all_came();
    auto group = make_group(
        {name, std::move(ranks), place, options_.patience, board_, pacer != nullptr ? pacer : options_.pacer},
        std::move(links));
    groups_.add(group);
    return group;
  }

  void abort(std::string_view why) override {
    board_->note_cause(why);
    groups_.abort(why);
    std::lock_guard lock(mutex_);
    for (GlooLinks* links : connecting_) links->cut();
  }
  std::string cause() const override { return board_->cause(); }

 private:
  // While connections are made, abort() cuts them.
  class Connecting {
   public:
    Connecting(GlooFabric& fabric, GlooLinks& links) : fabric_(fabric), links_(links) {
      std::lock_guard lock(fabric_.mutex_);
      fabric_.connecting_.insert(&links_);
    }
    ~Connecting() {
      std::lock_guard lock(fabric_.mutex_);
      fabric_.connecting_.erase(&links_);
    }

   private:
    GlooFabric& fabric_;
    GlooLinks& links_;
  };

  std::string self() const { return fmt::format("rank {} ({})", rank(), options_.host); }

  std::vector<Card> find_all(const std::string& name, const std::string& prefix,
                             const std::vector<int>& ranks, int place, CommClock::time_point until,
                             Waiting& waiting) {
    constexpr milliseconds kLookForAbort{50};
    std::vector<Card> cards(ranks.size());
    std::vector<Awaited> missing;
    for (size_t peer = 0; peer < ranks.size(); ++peer) {
      if (static_cast<int>(peer) == place) continue;
      waiting.wait_for({ranks[peer]});
      const std::string key = fmt::format("{}/{}", prefix, peer);
      std::optional<std::string> text;
      // Past the deadline the rest is only looked up, so that all who are missing are named.
      const auto look = [&] {
        const bool late = CommClock::now() >= until;
        const milliseconds patience = late ? milliseconds(0) : kLookForAbort;
        text = in_store(name, [&] { return options_.store->wait(key, patience); });
        return text.has_value() || late;
      };
      while (!look()) groups_.require_alive();
      if (!text) {
        missing.push_back({ranks[peer]});
        continue;
      }
      const std::optional<Card> card = read_card(*text, static_cast<int>(ranks.size()));
      if (!card)
        throw Error(ErrorKind::peer, fmt::format("{}: what the store has under {} is no address of rank {}",
                                                 self(), key, ranks[peer]));
      cards[peer] = *card;
    }
    groups_.require_alive();
    if (!missing.empty())
      give_up(name, did_not_join(self(), name, board_->to_blame(missing), options_.patience.timeout));
    return cards;
  }

  void connect_all(Mesh& mesh, GlooLinks& links, const std::string& name, const std::vector<int>& ranks,
                   const std::vector<Card>& cards, Waiting& waiting) {
    groups_.require_alive();  // an abort from here on cuts the links
    const CommClock::time_point since = CommClock::now();
    const auto awaited = [&](int peer) { return Awaited{ranks[peer], cards[peer].host}; };
    const auto lost = [&](int peer) {
      groups_.require_alive();
      if (const std::optional<std::string> why = board_->why(name, ranks[peer]))
        give_up(name,
                fmt::format("{} could not form group '{}': {} gave up, because {}", self(), name,
                            call(awaited(peer)), *why),
                *why);
      // Gloo tells one that is gone from one that is silent by the time alone.
      const milliseconds patience = options_.patience.timeout;
      if (!is_late(since, patience))
        give_up(name, fmt::format("{} could not form group '{}': {}", self(), name,
                                  board_->gone(call(awaited(peer)), "its connection closed")));
      give_up(name, fmt::format("{} waited {:.1f} s to form group '{}': {}", self(), seconds(patience), name,
                                tell(board_->to_blame({awaited(peer)}), "has not arrived")));
    };
    int connecting_to = 0;
    try {
      for (; connecting_to < mesh.size; ++connecting_to) {
        if (connecting_to == mesh.rank) continue;
        waiting.wait_for(awaited(connecting_to));
        mesh.connect(connecting_to, cards[connecting_to].addresses[mesh.rank]);
      }
    } catch (const std::exception&) {
      lost(connecting_to);
    }
    try {
      show_tokens(
          mesh, links, cards, [&](int peer) { waiting.wait_for(awaited(peer)); },
          [&](int stranger) {
            give_up(name, fmt::format("who connected to {} as {} in group '{}' did not know its token",
                                      self(), call(awaited(stranger)), name));
          });
    } catch (const LostPeer& gone) {
      lost(gone.peer);
    }
  }

  // `cause`: what the others are told.
  [[noreturn]] void give_up(const std::string& group, const std::string& reason, const std::string& cause) {
    board_->say_why(group, cause);
    throw Error(ErrorKind::peer, reason);
  }
  [[noreturn]] void give_up(const std::string& group, const std::string& reason) {
    give_up(group, reason, reason);
  }

  // Who serves the store may be the rank that is lost.
  template <typename Body>
  std::invoke_result_t<Body> in_store(const std::string& group, const Body& body) {
    try {
      return body();
    } catch (const Error& error) {
      groups_.require_alive();
      if (options_.keeper.empty()) throw;
      give_up(group,
              fmt::format("{} could not form group '{}': {}, who serves the store, does not answer ({})",
                          self(), group, options_.keeper, error.sentence()));
    }
  }

  static double seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

  template <typename Await, typename Refuse>
  void show_tokens(Mesh& mesh, GlooLinks& links, const std::vector<Card>& cards, const Await& awaiting,
                   const Refuse& refuse) {
    const std::string& token = cards[mesh.rank].token;
    std::vector<std::string> shown(mesh.size, std::string(kTokenBytes, '\0'));
    const std::unique_ptr<Wire> wire = links.wire_on(kHelloSlot, options_.patience.timeout);
    for (int peer = 0; peer < mesh.size; ++peer) {
      if (peer == mesh.rank) continue;
      wire->receive(peer, reinterpret_cast<std::byte*>(shown[peer].data()), kTokenBytes);
      wire->send(peer, reinterpret_cast<const std::byte*>(cards[peer].token.data()), kTokenBytes);
    }
    for (int peer = 0; peer < mesh.size; ++peer) {
      if (peer == mesh.rank) continue;
      awaiting(peer);
      while (!wire->received(peer)) groups_.require_alive();
      while (!wire->sent(peer)) groups_.require_alive();
      if (shown[peer] != token) refuse(peer);
    }
  }

  GlooOptions options_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<Board> board_;
  GroupList groups_;
  std::mutex mutex_;
  std::set<GlooLinks*> connecting_;
};

}  // namespace

std::shared_ptr<Fabric> make_gloo(GlooOptions options) {
  return std::make_shared<GlooFabric>(std::move(options));
}

}  // namespace het
