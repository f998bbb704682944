#include "core/comm/clock.h"

#include <limits>

namespace het {
namespace {

constexpr int kRounds = 20, kClockTag = 1001;

std::unique_ptr<Collective> prepare_message(Communicator& group, CollectiveKind kind, int peer) {
  CollectiveRequest request;
  request.kind = kind;
  request.dtype = DType::f64;
  request.counts = {1};
  request.peer = peer;
  request.tag = kClockTag;
  request.label = "time";
  return group.prepare(request);
}

}  // namespace

double clock_offset(Communicator& group, const std::function<double()>& now) {
  double time = 0;
  auto* bytes = reinterpret_cast<std::byte*>(&time);
  const auto exchange = [&](Collective& message, bool sends) {
    message.start(sends ? bytes : nullptr, sends ? nullptr : bytes);
    message.wait();
  };
  if (group.rank() == 0) {
    for (int peer = 1; peer < group.size(); ++peer) {
      const auto question = prepare_message(group, CollectiveKind::receive, peer);
      const auto answer = prepare_message(group, CollectiveKind::send, peer);
      for (int round = 0; round < kRounds; ++round) {
        exchange(*question, false);
        time = now();
        exchange(*answer, true);
      }
    }
    return 0;
  }
  const auto question = prepare_message(group, CollectiveKind::send, 0);
  const auto answer = prepare_message(group, CollectiveKind::receive, 0);
  double offset = 0, shortest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const double asked = now();
    exchange(*question, true);
    exchange(*answer, false);
    const double answered = now();
    if (answered - asked >= shortest) continue;
    shortest = answered - asked;
    offset = time - (asked + answered) / 2;
  }
  return offset;
}

}  // namespace het
