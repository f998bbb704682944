#include "core/run/generation.h"

#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace het {

struct Generation::Listener {
  std::mutex mutex;
  Member* member = nullptr;  // null: the member was closed
  int64_t generation = 0;
  bool heard = false;  // of a connection that ended without a goodbye

  // Who says goodbye lives: another member is at fault.
  void end(int rank, bool goodbye) {
    std::lock_guard lock(mutex);
    heard = heard || !goodbye;
    if (member == nullptr) return;
    if (goodbye)
      member->broken(generation, fmt::format("lost rank {} (it gave up)", rank));
    else
      member->peer_lost(generation, rank);
  }
  bool has_heard() {
    std::lock_guard lock(mutex);
    return heard;
  }
  void leave() {
    std::lock_guard lock(mutex);
    member = nullptr;
  }
};

Generation::Generation(std::shared_ptr<Member> member, Member::Formation formation, const FabricOf& fabric_of)
    : member_(std::move(member)), formation_(std::move(formation)), listener_(std::make_shared<Listener>()) {
  listener_->member = member_.get();
  listener_->generation = number();
  fabric_ =
      fabric_of(formation_, [listener = listener_](int rank, bool goodbye) { listener->end(rank, goodbye); });
  member_->on_abort(number(), [fabric = fabric_](const std::string& why) { fabric->abort(why); });
  groups_ = std::make_shared<Groups>(fabric_);
  std::vector<int> all(formation_.members.size());
  std::iota(all.begin(), all.end(), 0);
  try {
    world_ = fabric_->group("all members", all);
  } catch (...) {
    listener_->leave();
    member_->on_abort(0, {});
    throw;
  }
  member_->opened(number());
}

Generation::~Generation() { close("the generation has ended"); }

void Generation::close(const std::string& why, bool agreed) {
  // An operation that fails because a connection ended is known before who ended it; losses come in groups.
  constexpr auto kHear = std::chrono::milliseconds(20), kLook = std::chrono::milliseconds(1),
                 kMore = std::chrono::milliseconds(3);
  if (std::exchange(closed_, true)) return;
  for (auto waited = kLook; !agreed && !listener_->has_heard() && waited < kHear; waited += kLook)
    std::this_thread::sleep_for(kLook);
  if (listener_->has_heard()) std::this_thread::sleep_for(kMore);
  listener_->leave();
  member_->broken(number(), why);
  member_->on_abort(0, {});
  fabric_->abort(why);
  groups_.reset();
  world_.reset();
  fabric_.reset();
}

std::unique_ptr<Generation> next_generation(const std::shared_ptr<Member>& member,
                                            const Generation::FabricOf& fabric_of,
                                            const std::function<void()>& waited) {
  while (auto formation = member->next_generation(waited)) {
    const int64_t number = formation->roster.number;
    try {
      return std::make_unique<Generation>(member, *std::move(formation), fabric_of);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer) throw;
      member->broken(number, error.sentence());
    }
  }
  return nullptr;
}

}  // namespace het
