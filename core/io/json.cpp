#include "core/io/json.h"

#include <unordered_set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/visible.h"
#include "core/io/file.h"
#include "core/io/utf8.h"

namespace het {
namespace {

// Receives the parser's events and builds the value. (The parser's own way to build an object searches all
// keys for each.) Returning false stops the parser; the error is kept.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int depth) : depth_(depth) {}

  Json result;
  std::string error;

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override {
    return value <= INT64_MAX ? add(static_cast<int64_t>(value)) : add(static_cast<double>(value));
  }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // JSON has none
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (!open_.back().names.insert(name).second) {
      error = fmt::format("the key '{}' stands twice in one object", name);
      return false;
    }
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& exception) override {
    error = exception.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    if (const size_t end = error.find("] "); end != std::string::npos) error.erase(0, end + 2);
    return false;
  }

 private:
  // A container not yet closed. Values are moved into their parent when they are whole, so nothing is copied.
  struct Open {
    Json value;
    std::string key;
    std::unordered_set<std::string> names;
  };

  bool open(Json container) {
    if (static_cast<int>(open_.size()) == depth_) {
      error = fmt::format("it is nested more than {} deep", depth_);
      return false;
    }
    open_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }
  bool add(Json value) {
    if (open_.empty()) {
      result = std::move(value);
    } else if (auto* array = open_.back().value.get_ptr<Json::array_t*>()) {
      array->push_back(std::move(value));
    } else {
      // Without a search for the key: `names` knows that it is new.
      open_.back().value.get_ref<Json::object_t&>().emplace_back(std::move(open_.back().key),
                                                                 std::move(value));
    }
    return true;
  }

  int depth_;
  std::vector<Open> open_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what, int depth) {
  Builder builder(depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    const std::string_view only_line = "line 1, ";
    const size_t at = text.find('\n') == text.npos ? builder.error.find(only_line) : text.npos;
    if (at != text.npos) builder.error.erase(at, only_line.size());
    fail_usage("{} is not valid JSON: {}", what, builder.error);
  }
  return std::move(builder.result);
}

std::string dump(const Json& json, bool lines) {
  // nlohmann reads out of bounds where a level indents by more than 512 spaces, so callers give no width.
  const std::string text = json.dump(lines ? 2 : -1, ' ', false, Json::error_handler_t::replace);
  // nlohmann writes DEL and the control characters of Latin-1 as they are; JSON is printed on terminals too.
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    if (is_control(decoded.code_point) && text[i] != '\n')
      shown += fmt::format("\\u{:04x}", static_cast<uint32_t>(decoded.code_point));
    else
      shown.append(text, i, static_cast<size_t>(decoded.bytes));
    i += static_cast<size_t>(decoded.bytes);
  }
  return shown;
}

Json read_json(const Path& path) { return parse_json(read_file(path), fmt::format("'{}'", path.text)); }

void write_json(const Path& path, const Json& json) { write_file(path, dump(json, true) + "\n"); }

}  // namespace het
