#include "core/run/settle.h"

#include <algorithm>
#include <cstring>

#include "core/base/base64.h"
#include "core/base/error.h"

namespace het {
namespace {

Json to_json(const StepDecision& decision) {
  const std::string_view bytes(reinterpret_cast<const char*>(decision.numbers.bytes()),
                               static_cast<size_t>(decision.numbers.type().bytes()));
  return Json::object_t{
      {"step", decision.step}, {"type", to_json(decision.numbers.type())}, {"numbers", to_base64(bytes)}};
}

StepDecision parse_decision(const MemberReader& json) {
  StepDecision decision{json.number("step"), Tensor(json.at("type").type())};
  const auto bytes = from_base64(json.text("numbers"));
  const auto size = static_cast<size_t>(decision.numbers.type().bytes());
  if (!bytes || bytes->size() != size)
    fail(ErrorKind::peer, "{} says numbers of a decided step that are not {}", json.who(),
         to_string(decision.numbers.type()));
  std::memcpy(decision.numbers.bytes(), bytes->data(), size);
  return decision;
}

Json to_json(const History& history) {
  Json::array_t eras;
  for (const Era& era : history) eras.push_back(Json::array_t{era.generation, era.first_step, era.nonce});
  return eras;
}

Json to_json(const TierState& state) {
  return Json::object_t{{"tier", static_cast<int64_t>(state.tier)},
                        {"step", state.version.step},
                        {"generation", state.version.generation},
                        {"history", to_json(state.history)},
                        {"parts", to_json(state.parts)},
                        {"about", state.about},
                        {"bytes_per_second", state.bytes_per_second},
                        {"modified", state.modified}};
}

TierState parse_tier_state(const MemberReader& json) {
  TierState state;
  const int64_t tier = json.number("tier");
  if (tier <= 0 || tier >= kTiers) fail(ErrorKind::peer, "{} says that it has a tier {}", json.who(), tier);
  state.tier = static_cast<Tier>(tier);
  state.version = {json.number("step"), json.number("generation")};
  state.history = json.at("history").history();
  state.parts = json.at("parts").parts();
  state.about = json.text("about");
  state.bytes_per_second = json.real("bytes_per_second");
  state.modified = json.number("modified");
  return state;
}

}  // namespace

MemberState member_state_of(const StateStore& state, const Executor* executor) {
  MemberState member;
  member.parts = parts_of(state);
  if (!member.parts.empty()) {
    member.version = state.version();
    member.history = state.history();
  }
  if (executor == nullptr) return member;
  if (executor->decision() != nullptr) member.decision = *executor->decision();
  if (!executor->awaits_decision()) return member;
  member.after_step = needs_of(executor->program());
  auto part = member.after_step->begin();
  for (const BufferSpec& buffer : executor->program().buffers) {
    if (buffer.home != Home::state) continue;
    if (buffer.updates) part->slice = *buffer.updates;
    ++part;
  }
  return member;
}

std::string to_text(const MemberState& member) {
  Json::array_t tiers;
  for (const TierState& tier : member.tiers) tiers.push_back(to_json(tier));
  Json::object_t json{{"parts", to_json(member.parts)},
                      {"history", to_json(member.history)},
                      {"tiers", std::move(tiers)},
                      {"host", member.host},
                      {"link_bytes_per_second", member.link_bytes_per_second},
                      {"step_seconds", member.step_seconds}};
  if (member.version) {
    json.emplace_back("step", member.version->step);
    json.emplace_back("generation", member.version->generation);
  }
  if (member.decision) json.emplace_back("decision", to_json(*member.decision));
  if (member.after_step) json.emplace_back("after_step", to_json(*member.after_step));
  return dump(Json(std::move(json)));
}

MemberState parse_member_state(std::string_view text, const std::string& who) {
  const Json parsed = parse_json(text, fmt::format("what {} says of its state", who));
  const MemberReader json(parsed, who);
  MemberState member;
  member.parts = json.at("parts").parts();
  member.history = json.at("history").history();
  member.host = json.text("host");
  member.link_bytes_per_second = json.real("link_bytes_per_second");
  member.step_seconds = json.real("step_seconds");
  json.each("tiers", [&](const MemberReader& tier) { member.tiers.push_back(parse_tier_state(tier)); });
  if (json.has("step")) member.version = Version{json.number("step"), json.number("generation")};
  if (json.has("decision")) member.decision = parse_decision(json.at("decision"));
  if (json.has("after_step")) member.after_step = json.at("after_step").parts();
  return member;
}

Settlement settle(std::span<const MemberState> members, std::span<const Inventory::Need> needs) {
  Version newest;
  for (const MemberState& member : members) newest = std::max(newest, member.version.value_or(newest));
  const StepDecision* decision = nullptr;  // of the newest step
  for (const MemberState& member : members)
    if (member.version == newest && member.decision && member.decision->step == newest.step)
      decision = &*member.decision;
  const auto finishes = [&](const MemberState& member) {
    return decision != nullptr && member.after_step && member.version->step == newest.step - 1;
  };

  Settlement settlement;
  const auto add = [&](int holder, const std::vector<StatePart>& parts, Version version) {
    for (const StatePart& part : parts)
      settlement.inventory.add(part.name, part.tensor, holder, part.slice, version);
  };
  for (size_t m = 0; m < members.size(); ++m) {
    const MemberState& member = members[m];
    if (!member.version) continue;
    if (member.version->step < newest.step - 1)
      fail(ErrorKind::peer, "rank {} has the state after step {}, another rank that after step {}", m,
           member.version->step, newest.step);
    add(static_cast<int>(m), member.parts, *member.version);
    if (finishes(member)) add(static_cast<int>(m), *member.after_step, newest);
  }

  const auto covered = settlement.inventory.newest_with(needs);
  settlement.version = covered.value_or(newest);
  if (!covered)
    for (const Inventory::Need& need : needs)
      for (Inventory::Piece& piece : settlement.inventory.find(need.name, need.slice, newest))
        if (piece.holders.empty()) settlement.missing.push_back({need.name, std::move(piece.slice)});
  if (settlement.version != newest) return settlement;
  for (size_t m = 0; m < members.size(); ++m)
    if (finishes(members[m])) settlement.finish.push_back(static_cast<int>(m));
  if (!settlement.finish.empty()) settlement.decision = *decision;
  return settlement;
}

std::string show(std::span<const Inventory::Need> slices) {
  constexpr size_t kNamed = 4;
  std::string text;
  for (size_t i = 0; i < std::min(slices.size(), kNamed); ++i) {
    if (i > 0) text += i + 1 == slices.size() ? " and " : ", ";
    text += slices[i].name;
    if (!slices[i].slice.is_whole()) text += fmt::format(" {}", to_string(slices[i].slice));
  }
  if (slices.size() > kNamed) text += fmt::format(" and {} others", slices.size() - kNamed);
  return text;
}

}  // namespace het
