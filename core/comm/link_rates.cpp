#include "core/comm/link_rates.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "core/base/elapsed.h"
#include "core/base/error.h"

namespace het {
namespace {

constexpr int kRateTag = 2001;  // apart from what programs, savers and time_messages send
constexpr int kMostRounds = 4;
constexpr std::array<int64_t, 4> kSizes{1 << 18, 1 << 20, 1 << 22, 1 << 24};
constexpr double kLeastSeconds = 0.008, kLeastLatencies = 10;  // of a message that shows the rate of its link

CollectiveRequest request_to(CollectiveKind kind, int peer, int64_t bytes) {
  CollectiveRequest request;
  request.kind = kind;
  request.dtype = DType::u8;
  request.counts = {bytes};
  request.peer = peer;
  request.tag = kRateTag;
  request.label = "a message that is timed";
  return request;
}

// Messages of one size to and from one rank at once.
class Exchange {
 public:
  Exchange(Communicator& group, int peer, int64_t bytes)
      : send_(group.prepare(request_to(CollectiveKind::send, peer, bytes))),
        receive_(group.prepare(request_to(CollectiveKind::receive, peer, bytes))) {}

  double seconds(const std::byte* out, std::byte* in) {
    const auto began = CommClock::now();
    receive_->start(nullptr, in);
    send_->start(out, nullptr);
    send_->wait();
    receive_->wait();
    return seconds_since(began);
  }

 private:
  std::unique_ptr<Collective> send_, receive_;
};

// One end of the link to a rank; the other end finds the same.
class LinkEnd {
 public:
  LinkEnd(Communicator& group, int peer) : number_(group, peer, sizeof(double)) {
    for (const int64_t size : kSizes) exchanges_.emplace_back(group, peer, size);
  }

  void measure() {
    longer_of(0);  // connects
    latency_ = kMostLatency;
    for (int i = 0; i < 3; ++i) {
      double out = 0, in = 0;
      latency_ = std::min(latency_, number_.seconds(bytes_of(out), bytes_of(in)));
    }
    latency_ = longer_of(latency_);
    std::vector<std::byte> out, in;
    for (size_t s = 0; s < kSizes.size(); ++s) {
      out.resize(static_cast<size_t>(kSizes[s]));
      in.resize(out.size());
      if (s == 0) exchanges_[s].seconds(out.data(), in.data());  // a connection begins slowly
      const double seconds = longer_of(exchanges_[s].seconds(out.data(), in.data()));
      rate_ = static_cast<double>(kSizes[s]) / std::max(seconds - latency_, kShortest);
      if (seconds >= std::max(kLeastSeconds, kLeastLatencies * latency_)) break;
    }
  }
  double rate() const { return rate_; }
  double latency() const { return latency_; }

 private:
  static constexpr double kMostLatency = 1e3, kShortest = 1e-6;

  static std::byte* bytes_of(double& number) { return reinterpret_cast<std::byte*>(&number); }
  double longer_of(double own) {
    double theirs = 0;
    number_.seconds(bytes_of(own), bytes_of(theirs));
    return std::max(own, theirs);
  }

  Exchange number_;
  std::vector<Exchange> exchanges_;
  double rate_ = 0, latency_ = 0;
};

// Who is with `place` in a round of a tournament of so many; itself: it stands by. (The circle method: the
// last of an even number stays, and two others meet where their places add up to twice the round.)
int partner_of(int place, int round, int places) {
  const int last = places + places % 2 - 1;
  const int other = place == last ? round % last : (2 * round + last - place) % last;
  const int partner = other == place ? last : other;
  return partner < places ? partner : place;
}

}  // namespace

LinkRates measure_link_rates(Communicator& group, const std::vector<std::string>& hosts) {
  HET_REQUIRE(static_cast<int>(hosts.size()) == group.size(), hosts.size(), group.size());
  std::vector<int> first;  // ranks of hosts
  std::vector<size_t> host_of;
  for (size_t r = 0; r < hosts.size(); ++r) {
    const auto known = std::find_if(first.begin(), first.end(),
                                    [&](int rank) { return hosts[static_cast<size_t>(rank)] == hosts[r]; });
    host_of.push_back(static_cast<size_t>(known - first.begin()));
    if (known == first.end()) first.push_back(static_cast<int>(r));
  }
  LinkRates rates;
  rates.bytes_per_second.assign(hosts.size(), 0);
  if (first.size() < 2) return rates;

  const auto place = std::find(first.begin(), first.end(), group.rank());
  const int own = place == first.end() ? -1 : static_cast<int>(place - first.begin());
  const int count = static_cast<int>(first.size());
  const int rounds = std::min(kMostRounds, count + count % 2 - 1);
  CollectiveRequest all_here;
  all_here.label = "before links are measured";
  const auto barrier = group.prepare(all_here);
  std::vector<std::unique_ptr<LinkEnd>> links(static_cast<size_t>(rounds));
  for (int round = 0; own >= 0 && round < rounds; ++round)
    if (const int partner = partner_of(own, round, count); partner != own)
      links[static_cast<size_t>(round)] =
          std::make_unique<LinkEnd>(group, first[static_cast<size_t>(partner)]);
  group.connect();
  std::array<double, 2> found{};  // rate, latency
  for (const auto& link : links) {
    barrier->start(nullptr, nullptr);
    barrier->wait();
    if (link == nullptr) continue;
    link->measure();
    found = {std::max(found[0], link->rate()), std::max(found[1], link->latency())};
  }
  CollectiveRequest tell;
  tell.kind = CollectiveKind::all_gather;
  tell.dtype = DType::f64;
  tell.counts.assign(hosts.size(), static_cast<int64_t>(found.size()));
  tell.label = "how fast links are";
  std::vector<std::array<double, 2>> all(hosts.size());
  run_once(group, tell, found.data(), all.data());
  for (size_t r = 0; r < hosts.size(); ++r) {
    rates.bytes_per_second[r] = all[static_cast<size_t>(first[host_of[r]])][0];
    rates.latency_seconds = std::max(rates.latency_seconds, all[r][1]);
  }
  return rates;
}

}  // namespace het
