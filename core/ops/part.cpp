#include "core/ops/part.h"

#include "core/tensor/slice.h"

namespace het {

TensorSlice part_of(const Attributes& attributes, const Shape& shape) {
  if (!attributes.has("slice")) return TensorSlice::whole(shape);
  const auto whole = attributes.get<std::vector<int64_t>>("whole");
  elements_of(whole);  // refuses a shape that no tensor has
  return parse_slice(whole, attributes.get<std::string>("slice"));
}

void set_part(Attributes& attributes, const TensorSlice& slice) {
  if (slice.is_whole()) return;
  attributes.set("slice", to_string(slice));
  attributes.set("whole", slice.whole_shape());
}

SliceMap places_of(const Attributes& attributes, const Shape& shape) {
  return SliceMap(part_of(attributes, shape));
}

int64_t whole_sample_elements(const Attributes& attributes, const Shape& shape) {
  const Shape whole = part_of(attributes, shape).whole_shape();
  return elements_of(Shape(whole.begin() + 1, whole.end()));
}

}  // namespace het
