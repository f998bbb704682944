#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "core/base/error.h"
#include "core/program/program.h"

namespace het {
namespace {

bool is_message(const Start& start) {
  return start.request.kind == CollectiveKind::send || start.request.kind == CollectiveKind::receive;
}

// What the members of a group have to agree on.
std::string essence_of(const CollectiveRequest& request) {
  return fmt::format("{} of {} {} from {} by {}", name_of(request.kind), to_string(request.counts),
                     request.dtype, request.peer, static_cast<int>(request.reduction));
}

// Runs the programs without their work: a rank stops where it awaits what others have not started.
class Rehearsal {
 public:
  explicit Rehearsal(std::span<const Program> programs)
      : programs_(programs), at_(programs.size(), 0), places_(programs.size()) {}

  std::vector<std::string> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < programs_.size(); ++rank)
        while (problems_.empty() && at_[rank] < programs_[rank].instructions.size() && step(rank))
          moved = true;
    }
    if (problems_.empty()) compare_decisions();
    if (!problems_.empty()) return problems_;
    for (size_t rank = 0; rank < programs_.size(); ++rank)
      if (at_[rank] < programs_[rank].instructions.size()) {
        const auto& await = std::get<Await>(programs_[rank].instructions[at_[rank]]);
        const auto& start = std::get<Start>(programs_[rank].instructions[static_cast<size_t>(await.start)]);
        problems_.push_back(
            fmt::format("rank {} waits at instruction {} for {} '{}', which others never start", rank,
                        at_[rank], name_of(start.request.kind), start.request.label));
      }
    for (const auto& [channel, waiting] : sent_)
      if (!waiting.empty())
        problems_.push_back(fmt::format("rank {} sends to rank {} {} messages that it does not receive",
                                        std::get<0>(channel), std::get<1>(channel), waiting.size()));
    return problems_;
  }

 private:
  using Channel = std::tuple<int, int, int>;  // sender, receiver, tag
  // Of a group: what its members start, in order, and how many of them have.
  struct Sequence {
    std::vector<std::string> kinds;
    std::vector<size_t> started;    // by each operation: ranks that did
    std::map<size_t, size_t> next;  // of each rank
  };

  // All ranks decide the step by the same collective, or none does.
  void compare_decisions() {
    std::optional<size_t> first;
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      const auto& instructions = programs_[rank].instructions;
      const size_t decided = static_cast<size_t>(programs_[rank].decided);
      const auto* await = decided == 0 || decided == instructions.size()
                              ? nullptr
                              : std::get_if<Await>(&instructions[decided - 1]);
      if (await == nullptr || places_[rank].count(await->start) == 0) continue;
      const size_t place = places_[rank].at(await->start);
      if (!first) first = place;
      if (*first != place)
        problems_.push_back(fmt::format(
            "rank {} decides the step by operation {} of all ranks, another one by {}", rank, place, *first));
    }
  }

  bool step(size_t rank) {
    const Instruction& instruction = programs_[rank].instructions[at_[rank]];
    if (const auto* start = std::get_if<Start>(&instruction))
      is_message(*start) ? post_message(rank, *start) : post(rank, *start);
    else if (const auto* await = std::get_if<Await>(&instruction);
             await != nullptr && !is_done(rank, await->start))
      return false;
    ++at_[rank];
    return true;
  }

  void post(size_t rank, const Start& start) {
    const std::vector<int>& ranks = programs_[rank].groups[static_cast<size_t>(start.group)].ranks;
    Sequence& sequence = groups_[ranks];
    const size_t place = sequence.next[rank]++;
    const std::string essence = essence_of(start.request);
    if (place == sequence.kinds.size()) {
      sequence.kinds.push_back(essence);
      sequence.started.push_back(0);
    }
    if (sequence.kinds[place] != essence)
      problems_.push_back(fmt::format("operation {} of ranks {}: rank {} starts {} ('{}'), another one {}",
                                      place, fmt::join(ranks, ","), rank, essence, start.request.label,
                                      sequence.kinds[place]));
    ++sequence.started[place];
    places_[rank][static_cast<int>(at_[rank])] = place;
  }

  void post_message(size_t rank, const Start& start) {
    const std::vector<int>& ranks = programs_[rank].groups[static_cast<size_t>(start.group)].ranks;
    const int own = static_cast<int>(rank), peer = ranks[static_cast<size_t>(start.request.peer)];
    const bool sends = start.request.kind == CollectiveKind::send;
    const Channel channel =
        sends ? Channel{own, peer, start.request.tag} : Channel{peer, own, start.request.tag};
    const std::string essence = fmt::format("{} {}", to_string(start.request.counts), start.request.dtype);
    auto& here = (sends ? sent_ : received_)[channel];
    auto& there = (sends ? received_ : sent_)[channel];
    ++counted_[{channel, sends}];
    places_[rank][static_cast<int>(at_[rank])] = counted_[{channel, sends}];
    if (there.empty()) {
      here.push_back(essence);
      return;
    }
    if (there.front() != essence)
      problems_.push_back(fmt::format("rank {} sends rank {} {}, which expects {}", std::get<0>(channel),
                                      std::get<1>(channel), sends ? essence : there.front(),
                                      sends ? there.front() : essence));
    there.pop_front();
  }

  bool is_done(size_t rank, int instruction) {
    const auto& start = std::get<Start>(programs_[rank].instructions[static_cast<size_t>(instruction)]);
    const size_t place = places_[rank].at(instruction);
    const std::vector<int>& ranks = programs_[rank].groups[static_cast<size_t>(start.group)].ranks;
    if (!is_message(start)) return groups_[ranks].started[place] == ranks.size();
    const int own = static_cast<int>(rank), peer = ranks[static_cast<size_t>(start.request.peer)];
    const bool sends = start.request.kind == CollectiveKind::send;
    const Channel channel =
        sends ? Channel{own, peer, start.request.tag} : Channel{peer, own, start.request.tag};
    return counted_[{channel, !sends}] >= place;
  }

  std::span<const Program> programs_;
  std::vector<size_t> at_;                     // the next instruction of each rank
  std::vector<std::map<int, size_t>> places_;  // of each rank's Starts: in their group's or channel's order
  std::map<std::vector<int>, Sequence> groups_;
  std::map<Channel, std::deque<std::string>> sent_, received_;  // that wait for their other end
  std::map<std::pair<Channel, bool>, size_t> counted_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> verify_together(std::span<const Program> programs) {
  return Rehearsal(programs).run();
}

}  // namespace het
