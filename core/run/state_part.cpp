#include "core/run/state_part.h"

#include "core/base/error.h"

namespace het {

std::vector<StatePart> parts_of(const StateStore& state) {
  std::vector<StatePart> parts;
  for (const auto& [name, entry] : state.entries())
    parts.push_back(
        {name, {{entry.type.dtype, slice_of(entry).whole_shape()}, entry.trained}, current_slice_of(entry)});
  for (const StateStore::Spare& spare : state.spares())
    parts.push_back(
        {spare.name, {{spare.part.dtype(), spare.slice.whole_shape()}, spare.trained}, spare.slice});
  return parts;
}

std::vector<StatePart> needs_of(const Program& program) {
  std::vector<StatePart> needs;
  for (const BufferSpec& buffer : program.buffers) {
    if (buffer.home != Home::state) continue;
    const TensorSlice slice = slice_of(buffer);
    needs.push_back({buffer.name, {{buffer.type.dtype, slice.whole_shape()}, buffer.trained}, slice});
  }
  return needs;
}

Json to_json(const TensorType& type) {
  return Json::object_t{{"dtype", std::string(name_of(type.dtype))},
                        {"shape", Json::array_t(type.shape.begin(), type.shape.end())}};
}

Json to_json(const std::vector<StatePart>& parts) {
  Json::array_t all;
  for (const StatePart& part : parts)
    all.emplace_back(Json::object_t{{"name", part.name},
                                    {"type", to_json(part.tensor.type)},
                                    {"trained", part.tensor.trained},
                                    {"slice", to_string(part.slice)}});
  return all;
}

std::string to_text(const std::vector<StatePart>& parts) { return dump(to_json(parts)); }

std::vector<StatePart> parse_parts(std::string_view text, const std::string& who) {
  const Json json = [&] {
    try {
      return parse_json(text, fmt::format("what {} says of its state", who));
    } catch (const Error& error) {
      fail(ErrorKind::peer, "{}", error.sentence());
    }
  }();
  return MemberReader(json, who).parts();
}

TensorType MemberReader::type() const {
  const auto dtype = dtype_named(text("dtype"));
  TensorType type{required(dtype ? &*dtype : nullptr), {}};
  for (const Json& size : required(as_array(required(find_member(json_, "shape")))))
    type.shape.push_back(required(as_integer(size)));
  try {
    elements_of(type.shape);
  } catch (const Error& error) {
    refuse(error.sentence());
  }
  return type;
}

std::vector<StatePart> MemberReader::parts() const {
  std::vector<StatePart> parts;
  for (const Json& each : required(as_array(json_))) {
    const MemberReader part(each, who_);
    StatePart& read = parts.emplace_back();
    read.name = part.text("name");
    read.tensor = {part.at("type").type(), part.flag("trained")};
    try {
      read.slice = parse_slice(read.tensor.type.shape, part.text("slice"));
    } catch (const Error& error) {
      refuse(error.sentence());
    }
  }
  return parts;
}

History MemberReader::history() const {
  History history;
  for (const Json& era : required(as_array(json_))) {
    const auto& numbers = required(as_array(era));
    if (numbers.size() != 3) refuse("");
    history.push_back({required(as_integer(numbers[0])), required(as_integer(numbers[1])),
                       required(as_integer(numbers[2]))});
  }
  return history;
}

double MemberReader::real(const char* name) const {
  const Json& number = required(find_member(json_, name));
  const double value = number.is_number() ? number.get<double>() : -1;
  if (!(value >= 0)) refuse("");
  return value;
}

void MemberReader::refuse(const std::string& why) const {
  fail(ErrorKind::peer, "{} says of its state what cannot be read{}{}", who_, why.empty() ? "" : ": ", why);
}

}  // namespace het
