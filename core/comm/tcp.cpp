#include "core/comm/tcp.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/comm/group.h"
#include "core/comm/tcp_forming.h"
#include "core/comm/tcp_group_connections.h"
#include "core/comm/tcp_io.h"
#include "core/net/network.h"

namespace het {
namespace {

using std::chrono::milliseconds;

// What a rank leaves in the store: its endpoint, a space, its host.
std::string write_address(const TcpAddress& address) {
  return fmt::format("{} {}", to_string(address.endpoint), address.host);
}

std::optional<TcpAddress> read_address(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == text.npos) return std::nullopt;
  try {
    return TcpAddress{text.substr(space + 1), parse_endpoint(text.substr(0, space))};
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The numeric address for the interface or address that the options name.
std::string own_address(const TcpOptions& options) {
  const std::vector<NetworkAddress> all = list_addresses();
  const auto names = [&](bool addresses) {
    std::set<std::string> found;
    for (const NetworkAddress& one : all) found.insert(addresses ? one.address : one.interface);
    return found;
  };
  if (options.interface.empty() == options.address.empty())
    fail_usage(
        "communication needs an interface or an address of this machine to use, one of the two; interfaces: "
        "{}",
        fmt::join(names(false), ", "));
  const bool by_address = !options.address.empty();
  const std::string& name = by_address ? options.address : options.interface;
  if (!names(by_address).contains(name) && !(by_address && name.starts_with("127.")))
    fail_usage("this machine has no {} '{}' for communication; it has {}",
               by_address ? "address" : "interface", name, fmt::join(names(by_address), ", "));
  return address_to_bind(name, all);
}

std::shared_ptr<Acceptor> make_acceptor(const TcpOptions& options) {
  if (options.acceptor != nullptr) return options.acceptor;
  AcceptorOptions own;
  own.address = own_address(options);
  own.run = options.run;
  own.secret = options.secret;
  return std::make_shared<Acceptor>(std::move(own));
}

class Mesh final : public Fabric {
 public:
  explicit Mesh(TcpOptions options)
      : options_(std::move(options)),
        acceptor_(make_acceptor(options_)),
        arrivals_(std::make_shared<TcpArrivals>(acceptor_, options_.rank, options_.size)),
        io_(std::make_shared<TcpIo>()) {
    const bool by_store = options_.addresses.empty();
    HET_REQUIRE(by_store || static_cast<int>(options_.addresses.size()) == options_.size, options_.size);
    HET_REQUIRE(options_.store != nullptr || (!by_store && options_.board != nullptr), options_.rank);
    if (options_.one_host)
      options_.host.clear();
    else if (options_.host.empty())
      options_.host = host_name();
    board_ = std::make_shared<StatusBoard>(options_.board != nullptr ? options_.board : options_.store,
                                           options_.prefix, options_.rank, options_.store_host);
    for (const TcpAddress& address : options_.addresses)
      addresses_.push_back(TcpAddress{options_.one_host ? "" : address.host, address.endpoint});
    addresses_.resize(static_cast<size_t>(options_.size));
    acceptor_->open(options_.generation, [arrivals = arrivals_](Acceptor::Arrival arrival) {
      arrivals->deliver(std::move(arrival));
    });
  }
  ~Mesh() override {
    acceptor_->close(options_.generation);
    arrivals_->refuse_all();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::shared_ptr<Communicator> group(const std::string& name, std::vector<int> ranks,
                                      std::shared_ptr<Pacer> pacer) override {
    groups_.require_alive();
    const int place = place_in_group(ranks, rank(), size());
    const TcpForming forming{options_,   *acceptor_,
                             *arrivals_, *board_,
                             groups_,    [this](int of, milliseconds limit) { return look_up(of, limit); }};
    begin_forming(name);
    std::vector<TcpPeer> peers;
    try {
      peers = forming.connect(name, ranks, place);
    } catch (...) {
      end_forming(name);
      throw;
    }
    end_forming(name);
    auto links = std::make_unique<TcpGroupConnections>(io_, std::move(peers), place, options_.ended);
    GroupOptions made{
        name, std::move(ranks), place, options_.timeouts, board_, pacer != nullptr ? pacer : options_.pacer,
        {}};
    if (options_.ended) made.silent = [ended = options_.ended](int of) { ended(of, false); };
    auto group = make_group(std::move(made), std::move(links));
    groups_.add(group);
    return group;
  }

  void abort(std::string_view why) override {
    board_->note_cause(why);
    for (const std::string& name : names_forming())  // before their connections close
      board_->post_reason(name, why);
    groups_.abort(why);
    // For others who would begin a group with this rank. Where a run outlives a loss, no message names it.
    if (!options_.ended) board_->post_reason(kAnyGroup, why);
    acceptor_->close(options_.generation);  // the next one may be opened while handles of this one live
    arrivals_->refuse_all();
  }
  std::string cause() const override { return board_->cause(); }

 private:
  // Leaves the own address first. What is no address has no host and no port.
  std::optional<TcpAddress> look_up(int rank, milliseconds limit) {
    std::lock_guard lock(looking_up_);
    auto& known = addresses_[static_cast<size_t>(rank)];
    if (known) return known;
    const auto key = [&](int of) { return fmt::format("{}/address/{}", options_.prefix, of); };
    if (!std::exchange(has_left_address_, true))
      options_.store->set(key(options_.rank), write_address({options_.host, acceptor_->endpoint()}));
    const std::optional<std::string> text = options_.store->wait(key(rank), limit);
    if (!text) return std::nullopt;
    const std::optional<TcpAddress> address = read_address(*text);
    if (!address) return TcpAddress{};
    known = address;
    if (options_.one_host) known->host.clear();
    return known;
  }

  void begin_forming(const std::string& name) {
    std::lock_guard lock(mutex_);
    forming_.insert(name);
  }
  void end_forming(const std::string& name) {
    std::lock_guard lock(mutex_);
    forming_.erase(forming_.find(name));
  }
  std::multiset<std::string> names_forming() {
    std::lock_guard lock(mutex_);
    return forming_;
  }

  TcpOptions options_;
  const std::shared_ptr<Acceptor> acceptor_;
  const std::shared_ptr<TcpArrivals> arrivals_;
  const std::shared_ptr<TcpIo> io_;
  std::shared_ptr<StatusBoard> board_;
  GroupList groups_;
  std::mutex looking_up_;  // of the two below
  std::vector<std::optional<TcpAddress>> addresses_;
  bool has_left_address_ = false;
  std::mutex mutex_;                    // of what follows
  std::multiset<std::string> forming_;  // groups
};

}  // namespace

std::shared_ptr<Fabric> make_tcp(TcpOptions options) { return std::make_shared<Mesh>(std::move(options)); }

}  // namespace het
