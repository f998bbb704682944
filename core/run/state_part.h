// Parts of a run's state as members tell each other of them: what one has, or will need.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"
#include "core/plan/history.h"
#include "core/program/program.h"
#include "core/program/state.h"

namespace het {

struct StatePart {
  std::string name;
  Inventory::Tensor tensor;
  TensorSlice slice;
  bool operator==(const StatePart& other) const {
    return name == other.name && tensor.type == other.tensor.type && tensor.trained == other.tensor.trained &&
           slice == other.slice;
  }
};

// All that a state has at its version.
std::vector<StatePart> parts_of(const StateStore& state);
// What a rank needs to run a program.
std::vector<StatePart> needs_of(const Program& program);

// As text. `who` ("rank 3") names the member whose text it is, in the Error(peer) about one that cannot be
// read.
std::string to_text(const std::vector<StatePart>& parts);
std::vector<StatePart> parse_parts(std::string_view text, const std::string& who);

Json to_json(const TensorType& type);
Json to_json(const std::vector<StatePart>& parts);

// Reads what another member says; it is checked as what a file holds is. Refers to the JSON.
class MemberReader {
 public:
  MemberReader(const Json& json, const std::string& who) : json_(json), who_(who) {}

  bool has(const char* name) const { return find_member(json_, name) != nullptr; }
  MemberReader at(const char* name) const { return {required(find_member(json_, name)), who_}; }
  int64_t number(const char* name) const { return required(as_integer(required(find_member(json_, name)))); }
  const std::string& text(const char* name) const {
    return required(as_string(required(find_member(json_, name))));
  }
  bool flag(const char* name) const { return required(as_bool(required(find_member(json_, name)))); }
  TensorType type() const;               // what to_json(TensorType) wrote
  std::vector<StatePart> parts() const;  // what to_json(parts) wrote
  History history() const;               // a list of [generation, first step]
  double real(const char* name) const;   // a number >= 0
  template <typename Visit>
  void each(const char* name, const Visit& visit) const {  // of a list
    for (const Json& one : required(as_array(required(find_member(json_, name)))))
      visit(MemberReader(one, who_));
  }
  const std::string& who() const { return who_; }

 private:
  template <typename T>
  const T& required(const T* value) const {
    if (value == nullptr) refuse("");
    return *value;
  }
  [[noreturn]] void refuse(const std::string& why) const;

  const Json& json_;
  const std::string& who_;
};

}  // namespace het
