#include "core/run/run_member.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace het {

using Clock = std::chrono::steady_clock;

namespace {

MemberRecord record_of(const Joining& joining, const Acceptor& acceptor) {
  const JoinSettings& settings = joining.settings;
  MemberRecord record;
  record.host = joining.host;
  record.address = to_string(acceptor.endpoint());
  record.version = HET_VERSION;
  record.recipe_digest = settings.recipe_digest;
  record.data_digest = settings.data_digest;
  record.about = settings.about;
  record.order = settings.environment("HETRUN_JOINS") ? -1 : joining.launched.rank;
  return record;
}

// Before it waits for the others, who find the same.
JoinSettings with_lasting_store(JoinSettings settings) {
  if (!settings.etcd && !settings.environment("HETRUN_STORE"))
    fail_usage(
        "--elastic needs a store that outlives every rank: the launcher's (--workers, and --listen for other "
        "machines) or etcd (--rendezvous); here rank 0 would serve it");
  return settings;
}

}  // namespace

RunMember::RunMember(JoinSettings settings)
    : joining_(begin_joining(with_lasting_store(std::move(settings)))) {
  const JoinSettings& s = joining_.settings;
  const Rendezvous& rendezvous = joining_.rendezvous;
  AcceptorOptions listening;
  listening.address = rendezvous.address;
  listening.run = s.run;
  listening.secret = s.secret;
  acceptor_ = std::make_shared<Acceptor>(std::move(listening));
  MemberOptions options;
  options.store = rendezvous.store;
  options.lease_store = rendezvous.brief;
  options.run = s.run;
  options.secret = s.secret;
  options.launched = joining_.launched_ranks();
  options.least = s.least;
  options.most = s.most.value_or(options.launched);
  if (s.timeout) options.timeout = *s.timeout;
  options.record = record_of(joining_, *acceptor_);
  // The launcher's store has this run alone; in etcd another of its name may have ended before.
  options.by_launcher = joining_.by_launcher() && !s.etcd;
  options.begins = s.etcd && !s.environment("HETRUN_STARTED_AGAIN");
  member_ = std::make_shared<Member>(std::move(options));
}

std::unique_ptr<Generation> RunMember::next() {
  const auto earlier = std::exchange(words_, {});
  const auto fabric_of = [&](const Member::Formation& formation, Generation::Ended ended) {
    // Apart from the keys of members, which each of them watches.
    const std::string prefix = fmt::format("{}.traffic/{}/", joining_.settings.run, formation.roster.number);
    const auto words_in = [&](const std::shared_ptr<Store>& store) {
      return words_.emplace_back(
          make_store_key_value(store, prefix, [member = member_] { return member->lease(); }));
    };
    const auto store = words_in(joining_.rendezvous.store), board = words_in(joining_.rendezvous.brief);
    TcpOptions tcp = tcp_options(joining_, store, board);
    tcp.rank = formation.rank;
    tcp.size = static_cast<int>(formation.members.size());
    tcp.generation = formation.roster.number;
    tcp.acceptor = acceptor_;
    for (const MemberRecord& record : formation.members) {
      if (record.address.empty())
        fail(ErrorKind::peer, "a member of generation {} has gone", formation.roster.number);
      tcp.addresses.push_back({record.host, parse_endpoint(record.address)});
    }
    tcp.one_host =
        std::all_of(formation.members.begin(), formation.members.end(),
                    [&](const MemberRecord& each) { return each.host == formation.members[0].host; });
    tcp.ended = std::move(ended);
    return make_tcp(std::move(tcp));
  };
  // What a rank has learnt can be saved once the others that are left are there, which takes no longer than a
  // lease.
  const auto grace = 2 * (opened_ ? MemberOptions{}.lease_ttl : std::chrono::milliseconds(0));
  const auto began = Clock::now();
  bool said = false;
  std::optional<Clock::time_point> interrupted;
  const auto waited = [&] {
    const JoinSettings& settings = joining_.settings;
    if (settings.is_interrupted && settings.is_interrupted() && !interrupted) {
      interrupted = Clock::now();
      member_->hurry();
    }
    if (interrupted && Clock::now() - *interrupted >= grace)
      throw Error(ErrorKind::peer, "interrupted while members of the run are missing");
    if (said || Clock::now() - began < joining_.warn_after || !settings.warn) return;
    said = true;
    const auto roster = member_->roster();
    const std::string run = fmt::format("run '{}'", settings.run);
    settings.warn(!roster   ? fmt::format("{} waits for its members to come", run)
                  : opened_ ? fmt::format("this process waits for other members of {}; it goes on with {}, "
                                          "and with fewer it saves what there is and ends",
                                          run, roster->least)
                            : fmt::format("this process waits to join {}, which has {} of at most {} members",
                                          run, roster->members.size(), roster->most));
  };
  auto generation = next_generation(member_, fabric_of, waited);
  for (const auto& words : earlier) words->remove_own();
  return generation;
}

std::shared_ptr<Cluster> RunMember::open() {
  std::shared_ptr<Generation> generation = next();
  if (generation == nullptr) return nullptr;
  opened_ = true;
  return std::make_shared<Cluster>(joining_.rendezvous.store, std::move(generation), joining_.settings);
}

}  // namespace het
