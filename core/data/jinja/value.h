// Values of chat templates, as Jinja has them: Python's, as far as templates can see. Lists and objects are
// shared, and nothing changes them but `set` on a namespace.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/io/json.h"

namespace het::jinja {

class Value;

// What a name stands for that is not defined: empty when it is written, an error when it is used otherwise.
struct Undefined {
  std::string name;
};
struct None {};

using List = std::vector<Value>;

struct Object {
  std::vector<std::pair<std::string, Value>> members;  // in order
  bool is_namespace = false;

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// Arguments of a call: by position, and by name.
struct Arguments {
  List list;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a position (from 0) or of a name; nullptr when it was not given.
  const Value* find(size_t position, std::string_view name) const;
};

struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<const List>,
                            std::shared_ptr<Object>, std::shared_ptr<const Function>>;

  Value() = default;
  Value(Data data) : data_(std::move(data)) {}
  static Value none() { return {Data(None{})}; }
  static Value of(bool value) { return {Data(value)}; }
  static Value of(int64_t value) { return {Data(value)}; }
  static Value of(double value) { return {Data(value)}; }
  static Value of(std::string value) { return {Data(std::move(value))}; }
  static Value of(List list) { return {Data(std::make_shared<const List>(std::move(list)))}; }
  static Value of(Object object) { return {Data(std::make_shared<Object>(std::move(object)))}; }
  static Value of(Function function) { return {Data(std::make_shared<const Function>(std::move(function)))}; }
  static Value undefined(std::string name) { return {Data(Undefined{std::move(name)})}; }
  static Value from(const Json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* text() const { return std::get_if<std::string>(&data_); }
  const List* list() const { return pointed<const List>(); }
  Object* object() const { return pointed<Object>(); }
  const Function* function() const { return pointed<const Function>(); }

  bool truth() const;
  bool is_number() const { return boolean() != nullptr || integer() != nullptr || real() != nullptr; }
  double number() const;  // of a number
  // "a string", "a list": for errors.
  std::string kind() const;

 private:
  template <typename T>
  T* pointed() const {
    const auto* found = std::get_if<std::shared_ptr<T>>(&data_);
    return found == nullptr ? nullptr : found->get();
  }

  Data data_;
};

// As Python's str(): what {{ }} writes.
std::string text_of(const Value& value);
// As Python's repr(): how a value inside a list or object is written.
std::string shown(const Value& value);
// As json.dumps(value, ensure_ascii=False): ", " and ": " between, or lines with `indent` spaces (below 0:
// none).
std::string json_of(const Value& value, int64_t indent, bool sorted);

bool equal(const Value& a, const Value& b);
// Below 0, 0 or above 0; throws Error(usage) for values that have no order.
int compare(const Value& a, const Value& b);
// The items of a list, the keys of an object, the characters of a string; throws Error(usage) for others.
List items_of(const Value& value);
// Is `part` in `whole`: an item of a list, a key of an object, a part of a string?
bool contains(const Value& whole, const Value& part);
int64_t length_of(const Value& value);

}  // namespace het::jinja
