#include "lua/kernel_choice.h"

#include <cstdlib>

#include "core/base/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace het::lua {
namespace {

// {processor: {set: [FLOP/s of each class]}}
std::string cache_file() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/products.json";
}

// A file that cannot be read counts as none: it is written again.
Json read_cache() {
  const std::string path = cache_file();
  if (path.empty() || kind_of(path) != FileKind::file) return Json::object();
  try {
    Json known = read_json(path);
    return known.is_object() ? known : Json::object();
  } catch (const Error&) {
    return Json::object();
  }
}

// Of all product_sets(), or empty.
std::vector<ProductSpeed> known_speeds() {
  const Json known = read_cache();
  const Json* own = find_member(known, processor_name());
  std::vector<ProductSpeed> speeds;
  for (const std::string& set : product_sets()) {
    ProductSpeed speed{set, {}};
    const auto* numbers = own == nullptr ? nullptr : as_array(find_member(*own, set));
    if (numbers == nullptr || numbers->size() != product_classes().size()) return {};
    for (const Json& number : *numbers) {
      const double flops = number.is_number() ? number.get<double>() : 0;
      if (!(flops > 0)) return {};
      speed.flops.push_back(flops);
    }
    speeds.push_back(std::move(speed));
  }
  return speeds;
}

}  // namespace

std::vector<ProductSpeed> remeasure_products() {
  std::vector<ProductSpeed> speeds = measure_product_speeds();
  if (speeds.empty() || cache_file().empty()) return speeds;
  Json own = Json::object();
  for (const ProductSpeed& speed : speeds) own[speed.set] = speed.flops;
  Json known = read_cache();
  known[processor_name()] = std::move(own);
  try {
    make_folder(cache_folder());
    write_json(cache_file(), known);
  } catch (const Error&) {  // the next run measures again
  }
  return speeds;
}

std::string chosen_instruction_set() {
  const char* wanted = std::getenv("HETRUN_INSTRUCTION_SET");
  if ((wanted != nullptr && *wanted != '\0') || product_sets().empty()) return "";
  const std::vector<ProductSpeed> known = known_speeds();
  return fastest_set(known.empty() ? remeasure_products() : known);
}

}  // namespace het::lua
