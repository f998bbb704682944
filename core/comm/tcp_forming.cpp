#include "core/comm/tcp_forming.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "core/base/error.h"
#include "core/comm/operations.h"
#include "core/comm/tcp_frames.h"
#include "core/net/proof.h"

namespace het {

using std::chrono::milliseconds;

// ---- arrivals

void TcpArrivals::deliver(Acceptor::Arrival arrival) {
  constexpr size_t kMostGroups = 64;  // that this rank has yet to ask for, of each peer
  std::lock_guard lock(mutex_);
  const Hello& hello = arrival.hello;
  if (refusing_) {
    acceptor_->answer(arrival, {Verdict::over, hello.generation});
  } else if (hello.to != rank_ || hello.from >= rank_) {
    acceptor_->answer(arrival, {Verdict::other_run, hello.generation});
  } else if (waiting_.size() < kMostGroups * static_cast<size_t>(size_)) {
    waiting_.insert_or_assign({hello.group, hello.from}, std::move(arrival));
    wake();
  }
}

Descriptor TcpArrivals::claim(const std::string& group, int from) {
  std::lock_guard lock(mutex_);
  const auto found = waiting_.find({group, from});
  if (found == waiting_.end()) return {};
  Acceptor::Arrival arrival = std::move(found->second);
  waiting_.erase(found);
  char peeked = 0;
  const bool open =
      ::recv(arrival.socket.number(), &peeked, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  if (!open || !acceptor_->answer(arrival, {Verdict::accepted, arrival.hello.generation})) return {};
  return std::move(arrival.socket);
}

void TcpArrivals::refuse_all() {
  std::lock_guard lock(mutex_);
  refusing_ = true;
  for (const auto& [key, arrival] : waiting_)
    acceptor_->answer(arrival, {Verdict::over, arrival.hello.generation});
  waiting_.clear();
  wake();
}

void TcpArrivals::watch(int eventfd) {
  std::lock_guard lock(mutex_);
  watchers_.push_back(eventfd);
}

void TcpArrivals::unwatch(int eventfd) {
  std::lock_guard lock(mutex_);
  std::erase(watchers_, eventfd);
}

void TcpArrivals::wake() const {
  for (const int watcher : watchers_) ::eventfd_write(watcher, 1);
}

// ---- forming

namespace {

constexpr milliseconds kLookForAbort{50};                   // while the store is asked
constexpr milliseconds kFirstPause{5}, kLongestPause{200};  // before connecting again
constexpr milliseconds kLookForLife{250};                   // of who is to come here

struct Member {
  enum class Stage : uint8_t { address, pause, connecting, greeting, reply, arrival, done };
  PendingPeer rank;
  Stage stage = Stage::address;
  Endpoint endpoint;
  Descriptor socket;
  Descriptor probe;  // of who is to come: a connection that says whether it listens at all
  std::string in, greeting, hello;
  Deadline again{};
  milliseconds pause = kFirstPause;
  bool due = true;      // something happened since the last step
  bool left = false;    // after it was done
  std::string problem;  // why it could not be reached the last time
};
using Stage = Member::Stage;

// Of what has come on a connection that the other end has closed, and stays to be read.
bool ends_with_goodbye(const Descriptor& socket) {
  constexpr size_t kMost = 64 * 1024;  // the little that a peer sends before its first message is answered
  std::vector<std::byte> bytes(kMost);
  const ssize_t got = ::recv(socket.number(), bytes.data(), kMost, MSG_PEEK | MSG_DONTWAIT);
  if (got < static_cast<ssize_t>(kFrameBytes)) return false;
  const auto frame = read_frame(bytes.data() + got - kFrameBytes);
  return frame && frame->kind == FrameKind::goodbye;
}

class Attempt {
 public:
  Attempt(const TcpForming& forming, const std::string& name, const std::vector<int>& ranks, int place)
      : f_(forming),
        name_(name),
        group_(digest_of_name(name)),
        place_(static_cast<size_t>(place)),
        until_(CommClock::now() + f_.options.timeouts.timeout),
        say_after_(post_waiting_after(f_.options.timeouts.warn_after, f_.options.timeouts.timeout)),
        say_at_(CommClock::now() + say_after_),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) fail_environment("cannot make an eventfd: {}", std::strerror(errno));
    for (const int rank : ranks) members_.push_back(Member{{rank, {}, -1}});
    members_[place_].stage = Stage::done;
    members_[place_].rank.host = f_.options.host;
    f_.arrivals.watch(wake_.number());
  }
  ~Attempt() { f_.arrivals.unwatch(wake_.number()); }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  std::vector<TcpPeer> run() {
    while (true) {
      f_.groups.require_alive();
      const bool looked = find_address();
      f_.groups.require_alive();
      for (Member& member : members_)
        if (member.due) step(member);
      const std::vector<PendingPeer> missing = who_is_missing();
      if (missing.empty()) break;
      if (CommClock::now() >= until_) give_up_waiting(missing);
      say(missing);
      wait(looked ? milliseconds(0) : milliseconds(1000));
    }
    if (!said_.empty()) f_.board.post_waiting({});
    std::vector<TcpPeer> peers;
    for (Member& member : members_) peers.push_back({member.rank, std::move(member.socket)});
    return peers;
  }

 private:
  int rank() const { return f_.options.rank; }

  std::vector<PendingPeer> who_is_missing() const {
    std::vector<PendingPeer> missing;
    for (const Member& member : members_)
      if (member.stage != Stage::done) missing.push_back(member.rank);
    return missing;
  }

  // Ask for the addresses that are not known, in order, up to the first that is not there; past the deadline
  // for all, so that all who are missing are named. False: all are known.
  bool find_address() {
    for (Member& member : members_) {
      if (member.stage != Stage::address) continue;
      const bool late = CommClock::now() >= until_;
      const auto found =
          in_store([&] { return f_.look_up(member.rank.rank, late ? milliseconds(0) : kLookForAbort); });
      if (!found && late) continue;
      if (!found) return true;
      if (found->endpoint.port == 0)
        fail(ErrorKind::peer, "the entry of rank {} in the store is not an address", member.rank.rank);
      member.rank.host = found->host;
      member.endpoint = found->endpoint;
      member.stage = member.rank.rank < rank() ? Stage::arrival : Stage::pause;
      // Not where a loss ends the run: who is not to be reached from here may come yet.
      if (member.stage == Stage::arrival)
        member.again = f_.options.ended ? CommClock::now() + kLookForLife : Deadline::max();
      member.due = true;
    }
    return false;
  }

  // Who serves the store may be the rank that is lost.
  template <typename Body>
  std::invoke_result_t<Body> in_store(const Body& body) {
    try {
      return body();
    } catch (const Error& error) {
      f_.groups.require_alive();
      if (f_.options.store_host.empty()) throw;
      give_up(fmt::format("lost {}, which serves the store (it does not answer: {}) while forming group '{}'",
                          f_.options.store_host, error.sentence(), name_));
    }
  }

  // As far as it goes without waiting.
  void step(Member& member) {
    Stage before = Stage::address;
    while (member.stage != before) {
      before = member.stage;
      switch (member.stage) {
        case Stage::address: break;
        case Stage::pause: begin(member); break;
        case Stage::connecting: finish_connect(member); break;
        case Stage::greeting: take_greeting(member); break;
        case Stage::reply: take_reply(member); break;
        case Stage::arrival:
          member.socket = f_.arrivals.claim(group_, member.rank.rank);
          if (member.socket) member.stage = Stage::done;
          if (!member.socket) look_for_life(member);
          break;
        case Stage::done: require_open(member); break;
      }
    }
  }

  void begin(Member& member) {
    if (CommClock::now() < member.again) return;
    int error = 0;
    member.in.clear();
    member.socket = begin_connect(member.endpoint, f_.acceptor.endpoint().host, error);
    if (error != 0) return try_again(member, error);
    member.stage = Stage::connecting;
  }

  void try_again(Member& member, int error) {
    if (error == ECONNREFUSED)  // it listened before it said where
      lost(member, fmt::format("nothing listens at {}", to_string(member.endpoint)));
    member.problem = fmt::format("{}: {}", to_string(member.endpoint), std::strerror(error));
    member.socket = Descriptor();
    member.stage = Stage::pause;
    member.again = CommClock::now() + member.pause;
    member.pause = std::min(member.pause * 2, kLongestPause);
  }

  void finish_connect(Member& member) {
    if (!wait_for(member.socket, Ready::write, CommClock::now())) return;
    if (const int error = connect_error(member.socket); error != 0) return try_again(member, error);
    member.stage = Stage::greeting;
  }

  // Who has died does not come; where it listened nothing does.
  void look_for_life(Member& member) {
    int error = 0;
    if (!member.probe) {
      if (CommClock::now() < member.again) return;
      member.probe = begin_connect(member.endpoint, f_.acceptor.endpoint().host, error);
    }
    if (error == 0) {
      if (!wait_for(member.probe, Ready::write, CommClock::now())) return;
      error = connect_error(member.probe);
    }
    if (error == ECONNREFUSED) lost(member, fmt::format("nothing listens at {}", to_string(member.endpoint)));
    member.probe = Descriptor();
    member.again = CommClock::now() + kLookForLife;
  }

  // Whether `bytes` of the hellos have come.
  bool receive(Member& member, size_t bytes) {
    char piece[kGreetingBytes + kReplyBytes];
    const long got = receive_some(member.socket, piece, bytes - member.in.size());
    if (got < 0) {  // parked for too long, or refused by a process that ends
      if (const auto why = f_.board.reason_of(name_, member.rank.rank)) gave_up(member, *why);
      try_again(member, ECONNRESET);
      return false;
    }
    member.in.append(piece, static_cast<size_t>(got));
    return member.in.size() == bytes;
  }

  void take_greeting(Member& member) {
    if (!receive(member, kGreetingBytes)) return;
    if (!is_greeting(member.in)) foreign(member, "is not of hetrun");
    member.greeting = std::exchange(member.in, {});
    const AcceptorOptions& own = f_.acceptor.options();
    Hello hello;
    hello.run = digest_of_name(own.run);
    hello.group = group_;
    hello.generation = f_.options.generation;
    hello.from = rank();
    hello.to = member.rank.rank;
    hello.nonce = random_bytes(kHelloNonceBytes);
    member.hello = write_hello(hello, member.greeting, own.secret);
    if (send_some(member.socket, member.hello) != static_cast<long>(kHelloBytes))
      return try_again(member, ECONNRESET);
    member.stage = Stage::reply;
  }

  void take_reply(Member& member) {
    if (!receive(member, kReplyBytes)) return;
    const auto reply = read_reply(member.in, member.greeting, member.hello, f_.acceptor.options().secret);
    if (!reply || reply->verdict == Verdict::other_secret) foreign(member, "does not know the run's secret");
    if (reply->verdict == Verdict::other_run)
      foreign(member, "is of another run, or another rank of this one");
    if (reply->verdict == Verdict::over) refused(member, reply->generation);
    member.stage = Stage::done;
  }

  // The port of a member that is gone was taken by another program.
  [[noreturn]] void foreign(const Member& member, std::string_view what) {
    lost(member, fmt::format("what listens at {} {}", to_string(member.endpoint), what));
  }

  [[noreturn]] void refused(const Member& member, int64_t generation) {
    for (const std::string_view group : {std::string_view(name_), kAnyGroup})
      if (const auto why = f_.board.reason_of(group, member.rank.rank)) gave_up(member, *why);
    const std::string who = to_string(member.rank);
    if (generation > f_.options.generation)
      give_up(fmt::format("could not form group '{}': {} is in generation {} already, this rank in {}", name_,
                          who, generation, f_.options.generation));
    const std::string how = fmt::format("has ended generation {}", f_.options.generation);
    if (f_.board.is_silent())  // perhaps over the rank that serves the store
      give_up(fmt::format("{} while forming group '{}'", f_.board.describe_loss(who, how), name_));
    give_up(fmt::format("could not form group '{}': {} {}", name_, who, how));
  }

  // A member that is connected waits for the others as this rank does, unless all others have come to it.
  // Then it may have left already, with a goodbye: whoever waits for its messages learns why.
  void require_open(Member& member) {
    if (!member.socket || member.left) return;
    pollfd polled{member.socket.number(), POLLRDHUP, 0};
    if (::poll(&polled, 1, 0) == 0) return;
    if (!ends_with_goodbye(member.socket)) lost(member, "connection closed");
    member.left = true;
  }

  [[noreturn]] void lost(const Member& member, const std::string& how) {
    f_.groups.require_alive();
    if (const auto why = f_.board.reason_of(name_, member.rank.rank)) gave_up(member, *why);
    if (f_.options.ended) f_.options.ended(member.rank.rank, false);
    const milliseconds timeout = f_.options.timeouts.timeout;
    if (!is_late(until_ - timeout, timeout))
      give_up(fmt::format("{} while forming group '{}'", f_.board.describe_loss(to_string(member.rank), how),
                          name_));
    give_up(did_not_join(name_, f_.board.suspects({member.rank}), timeout));
  }

  [[noreturn]] void gave_up(const Member& member, const std::string& why) {
    give_up(lost_text(to_string(member.rank), why), why);
  }

  [[noreturn]] void give_up_waiting(const std::vector<PendingPeer>& missing) {
    for (const Member& member : members_)
      if (member.stage != Stage::done)
        if (const auto why = f_.board.reason_of(name_, member.rank.rank)) gave_up(member, *why);
    const std::vector<PendingPeer> suspects = f_.board.suspects(missing);
    if (f_.options.ended)
      for (const PendingPeer& one : suspects) f_.options.ended(one.rank, false);
    std::string text = did_not_join(name_, suspects, f_.options.timeouts.timeout);
    for (const Member& member : members_)
      if (member.stage != Stage::done && !member.problem.empty()) text += fmt::format("; {}", member.problem);
    if (const std::vector<std::string> rejected = f_.acceptor.rejected(); !rejected.empty())
      text += fmt::format("; {} connected without knowing the run's secret", fmt::join(rejected, ", "));
    give_up(text);
  }

  // `cause`: what the others read on the board.
  [[noreturn]] void give_up(const std::string& reason, const std::string& cause) {
    f_.groups.require_alive();
    f_.board.post_reason(name_, cause);
    throw Error(ErrorKind::peer, reason);
  }
  [[noreturn]] void give_up(const std::string& reason) { give_up(reason, reason); }

  // When it takes long: the ranks that this one waits for, on the board; and whether one of them has given
  // up. A rank that gives up leaves its word, for those who still wait.
  void say(const std::vector<PendingPeer>& missing) {
    if (CommClock::now() < say_at_) return;
    say_at_ = CommClock::now() + say_after_;
    if (missing != said_) f_.board.post_waiting(missing);
    said_ = missing;
    for (const Member& member : members_)
      if (member.stage != Stage::done)
        if (const auto why = f_.board.reason_of(name_, member.rank.rank)) gave_up(member, *why);
  }

  void wait(milliseconds most) {
    Deadline next = std::min({CommClock::now() + most, until_, say_at_});
    std::vector<pollfd> polled{{wake_.number(), POLLIN, 0}};
    for (const Member& member : members_) {
      const bool probes = member.stage == Stage::arrival && member.probe;
      if (member.stage == Stage::pause || (member.stage == Stage::arrival && !probes))
        next = std::min(next, member.again);
      short events = POLLIN;
      if (member.stage == Stage::connecting || probes) events = POLLOUT;
      if (member.stage == Stage::done) events = POLLRDHUP;
      const int watched = probes ? member.probe.number() : member.socket.number();
      polled.push_back({member.left ? -1 : watched, events, 0});
    }
    const auto left = std::chrono::ceil<milliseconds>(next - CommClock::now());
    ::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)));
    eventfd_t ignored = 0;
    const bool woken = ::eventfd_read(wake_.number(), &ignored) == 0;
    for (size_t i = 0; i < members_.size(); ++i) {
      const Stage stage = members_[i].stage;
      members_[i].due = polled[i + 1].revents != 0 || stage == Stage::pause ||
                        (stage == Stage::arrival && (woken || CommClock::now() >= members_[i].again));
    }
  }

  const TcpForming& f_;
  const std::string& name_;
  const std::string group_;  // digest
  const size_t place_;
  const Deadline until_;
  const milliseconds say_after_;
  Deadline say_at_;
  Descriptor wake_;
  std::vector<Member> members_;
  std::vector<PendingPeer> said_;
};

}  // namespace

std::vector<TcpPeer> TcpForming::connect(const std::string& name, const std::vector<int>& ranks,
                                         int place) const {
  return Attempt(*this, name, ranks, place).run();
}

}  // namespace het
