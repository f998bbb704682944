#include "core/run/generation.h"

#include <numeric>

#include "core/base/error.h"

namespace het {

Generation::Generation(Member& member, Member::Formation formation, const FabricOf& fabric_of)
    : member_(member), formation_(std::move(formation)), fabric_(fabric_of(formation_)) {
  member_.on_abort(number(), [fabric = fabric_](const std::string& why) { fabric->abort(why); });
  groups_ = std::make_shared<Groups>(fabric_);
  std::vector<int> all(formation_.members.size());
  std::iota(all.begin(), all.end(), 0);
  try {
    world_ = fabric_->group("all members", all);
  } catch (const Error&) {
    member_.on_abort(0, {});
    throw;
  }
  heard_.resize(formation_.members.size());
  heard_[static_cast<size_t>(rank())] = true;
  member_.opened(number());
  detector_ = std::thread([this] { detect(); });
}

void Generation::detect() {
  constexpr std::chrono::milliseconds kLook{2};
  while (!closing_) {
    look();
    std::this_thread::sleep_for(kLook);
  }
}

// A connection that closes is a member lost, unless it says that it gave up because of another one.
void Generation::look() {
  for (size_t r = 0; r < heard_.size(); ++r) {
    const int peer = static_cast<int>(r);
    const std::string why = heard_[r] ? "" : world_->witness()->lost(peer);
    if (why.empty()) continue;
    heard_[r] = true;
    if (world_->witness()->gave_up(peer))
      member_.broken(number(), why);
    else
      member_.peer_lost(number(), peer);
  }
}

void Generation::close(const std::string& why) {
  if (closing_.exchange(true)) return;
  if (detector_.joinable()) detector_.join();
  look();
  member_.broken(number(), why);
  member_.on_abort(0, {});
  fabric_->abort(why);
  groups_.reset();
  world_.reset();
  fabric_.reset();
}

std::unique_ptr<Generation> next_generation(Member& member, const FabricOf& fabric_of,
                                            const std::function<void()>& waited) {
  while (auto formation = member.next_generation(waited)) {
    const int64_t number = formation->roster.number;
    try {
      return std::make_unique<Generation>(member, *std::move(formation), fabric_of);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer) throw;
      member.broken(number, error.sentence());
    }
  }
  return nullptr;
}

}  // namespace het
