#include "core/run/member_watch.h"

#include <chrono>
#include <utility>

#include "core/base/error.h"

namespace het {

MemberWatch::MemberWatch(Membership& membership, std::shared_ptr<Store> store, Fabric& fabric,
                         std::string store_host)
    : membership_(membership),
      store_(std::move(store)),
      fabric_(fabric),
      store_host_(std::move(store_host)),
      thread_([this] { watch(); }) {}

MemberWatch::~MemberWatch() {
  ending_ = true;
  membership_.close_watch();
  thread_.join();
}

void MemberWatch::watch() {
  constexpr std::chrono::milliseconds kLook{200};
  while (!ending_) try {
      for (const MemberChange& change : membership_.watch_members(kLook)) hear(change);
      look();
    } catch (const Error&) {
      if (!store_host_.empty() && !left_.contains(0) && !store_answers())
        return abort(fmt::format("lost {}, which serves the store (it does not answer)", store_host_));
      // Another store that is gone decides nothing while all members live: connections still tell of deaths.
      look();
      if (!ending_) std::this_thread::sleep_for(kLook);
    }
}

void MemberWatch::hear(const MemberChange& change) {
  if (change.kind == MemberChange::Kind::left) left_.insert(change.rank);
  if (change.kind != MemberChange::Kind::lost) return;
  if (!change.lapsed || world_ == nullptr || !closed(change.rank).empty()) abort(change.sentence);
}

// A connection that closes before its rank was seen to leave is a death.
void MemberWatch::look() {
  constexpr std::chrono::milliseconds kHear{1000};  // for the word that it left
  if (world_ == nullptr) return;
  const auto now = CommClock::now();
  for (int rank = 0; rank < fabric_.size(); ++rank) {
    if (left_.contains(rank)) continue;
    const std::string why = closed(rank);
    if (why.empty()) continue;
    const auto since = closed_.emplace(rank, now).first->second;
    if (now - since >= kHear) abort(why);
  }
}

void MemberWatch::abort(const std::string& why) {
  fabric_.abort(why);
  ending_ = true;
}

// What became of a rank whose connection has closed; empty: it is open.
std::string MemberWatch::closed(int rank) const { return world_.load()->failure_detector()->lost(rank); }

bool MemberWatch::store_answers() {
  try {
    store_->get("hetrun");
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace het
