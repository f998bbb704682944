// Tensors at the prompt: made, looked at, sliced and computed with.
#include <algorithm>
#include <cmath>

#include "core/base/random.h"
#include "core/base/units.h"
#include "core/ops/elementwise.h"
#include "core/ops/op.h"
#include "core/tensor/convert.h"
#include "lua/distributed.h"
#include "lua/objects.h"
#include "lua/state.h"

namespace het::lua {
namespace {

DType dtype_or(lua_State* L, int index, DType fallback) {
  return Convert<std::optional<DType>>::get(L, index).value_or(fallback);
}

// Lists of Lua may hold themselves, or each other many times over: what they make is bounded before it is
// made.
void require_memory(lua_State* L, const Shape& shape, int64_t bytes_each) {
  const int64_t bytes = elements_of(shape) * bytes_each, available = host_of(L).cpu->available_bytes();
  constexpr int64_t kSmall = int64_t{1} << 20;
  if (bytes > kSmall && bytes > available)
    fail_environment("a list of the shape {} takes {}; {} are available", to_string(shape), show_bytes(bytes),
                     show_bytes(available));
}

// Numbers of nested tables in row-major order, and their shape.
struct NestedNumbers {
  Shape shape;
  std::vector<double> values;
  std::vector<int64_t> at;  // the entry that is looked at: its place in each of the lists around it
};

std::string place_of(const NestedNumbers& numbers) {
  std::string place = "entry ";
  for (const int64_t i : numbers.at) place += "[" + std::to_string(i) + "]";
  return place;
}

// The entries of a list. A gap, as nil makes one, would shift or hide those behind it.
int64_t entries_of(lua_State* L, int index, NestedNumbers& numbers) {
  const auto count = static_cast<int64_t>(lua_objlen(L, index));
  int64_t found = 0;
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) ++found;
  for (int64_t i = 1; i <= count + 1 && found != count; ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    const bool is_there = !lua_isnil(L, -1);
    lua_pop(L, 1);
    if (is_there) continue;
    numbers.at.push_back(i);
    fail_usage("tensor: {} is missing, and others of its list are there; each has to be a number",
               place_of(numbers));
  }
  return count;
}

void flatten(lua_State* L, int index, NestedNumbers& numbers) {
  auto& [shape, values, at] = numbers;
  const size_t depth = at.size();
  if (lua_type(L, index) == LUA_TNUMBER) {
    if (depth != shape.size()) fail_usage("tensor: rows of different depth");
    if (values.empty()) require_memory(L, shape, 2 * sizeof(double));
    values.push_back(lua_tonumber(L, index));
    return;
  }
  if (!lua_istable(L, index) && depth == 0)
    wrong_argument(L, index, "a number or a (nested) list of numbers");
  if (!lua_istable(L, index))
    fail_usage("tensor: {} is a {}; each has to be a number", place_of(numbers), luaL_typename(L, index));
  luaL_checkstack(L, 4, "nested lists");
  const int64_t count = entries_of(L, index, numbers);
  if (depth == kMostDimensions)
    fail_usage("tensor: lists nested deeper than {} (or one that holds itself)", kMostDimensions);
  if (values.empty() && depth == shape.size()) shape.push_back(count);
  if (depth >= shape.size() || shape[depth] != count)
    fail_usage("tensor: a row has {} entries where the first has {}", count,
               depth < shape.size() ? shape[depth] : 0);
  at.push_back(0);
  for (int64_t i = 1; i <= count; ++i) {
    at.back() = i;
    lua_rawgeti(L, index, static_cast<int>(i));
    flatten(L, lua_gettop(L), numbers);
    lua_pop(L, 1);
  }
  at.pop_back();
}

// Elements of a packed tensor, by their index.
template <typename Value>
void fill(const Tensor& tensor, const Value& value) {
  const int64_t count = tensor.elements();
  std::byte* const bytes = tensor.bytes();
  for (int64_t i = 0; i < count; ++i) store_element(bytes, tensor.dtype(), value(i), i);
}

int new_tensor(lua_State* L) {  // native.tensor(values [, dtype [, shape]])
  NestedNumbers numbers;
  flatten(L, 1, numbers);
  auto& [shape, values, at] = numbers;
  const DType dtype = dtype_or(L, 2, DType::f32);
  if (lua_istable(L, 3)) {
    const Shape wanted = Convert<Shape>::get(L, 3);
    if (elements_of(wanted) != static_cast<int64_t>(values.size()))
      fail_usage("tensor: {} values do not fill the shape {}", values.size(), to_string(wanted));
    shape = wanted;
  }
  Tensor tensor(TensorType{dtype, shape});
  fill(tensor, [&](int64_t i) { return values[static_cast<size_t>(i)]; });
  return push_tensor(L, std::move(tensor));
}

int full(lua_State* L) {  // native.full(shape, value [, dtype])
  const Shape shape = Convert<Shape>::get(L, 1);
  const auto value = Convert<double>::get(L, 2);
  Tensor tensor(TensorType{dtype_or(L, 3, DType::f32), shape});
  fill(tensor, [&](int64_t) { return value; });
  return push_tensor(L, std::move(tensor));
}

int arange(lua_State* L) {  // native.arange(count [, dtype [, start [, step]]])
  const auto count = Convert<int64_t>::get(L, 1);
  if (count < 0) fail_usage("arange: {} is negative", count);
  const double start = Convert<std::optional<double>>::get(L, 3).value_or(0);
  const double step = Convert<std::optional<double>>::get(L, 4).value_or(1);
  Tensor tensor(TensorType{dtype_or(L, 2, DType::f32), {count}});
  fill(tensor, [&](int64_t i) { return start + step * static_cast<double>(i); });
  return push_tensor(L, std::move(tensor));
}

int drawn(lua_State* L, Initial::Kind kind) {  // shape [, dtype [, seed]]
  const Shape shape = Convert<Shape>::get(L, 1);
  const DType dtype = dtype_or(L, 2, DType::f32);
  const uint64_t seed = lua_isnoneornil(L, 3) ? ++host_of(L).draws : seed_at(L, 3);
  return push_tensor(L, initial_tensor("prompt", {dtype, shape}, {kind, 1.0}, seed));
}
int randn(lua_State* L) { return drawn(L, Initial::Kind::normal); }
int uniform(lua_State* L) { return drawn(L, Initial::Kind::uniform); }

// The place of an index along a dimension: from 1; negative counts from the end.
int64_t checked_index(const Tensor& tensor, int64_t index, size_t dim) {
  const int64_t size = tensor.shape()[dim];
  const int64_t at = index < 0 ? index + size : index - 1;
  if (size == 0) fail_usage("index {}: {} has no elements", index, to_string(tensor.type()));
  if (at < 0 || at >= size)
    fail_usage("index {} is outside 1 to {} of {}", index, size, to_string(tensor.type()));
  return at;
}

double item(Tensor& tensor) {
  if (tensor.elements() != 1)
    fail_usage("item: the tensor is {}; only a single element is a number", to_string(tensor.type()));
  return tensor.at(0);
}

int at(lua_State* L) {  // tensor:at(i, j, ...) from 1
  auto& tensor = check_object<Tensor>(L, 1);
  const int rank = static_cast<int>(tensor.shape().size());
  if (lua_gettop(L) - 1 != rank)
    fail_usage("at: {} indices for a tensor of rank {}", lua_gettop(L) - 1, rank);
  int64_t flat = 0;
  for (int d = 0; d < rank; ++d)
    flat = flat * tensor.shape()[d] + checked_index(tensor, Convert<int64_t>::get(L, d + 2), d);
  return Convert<double>::push(L, tensor.at(flat));
}

void push_nested(lua_State* L, const Tensor& tensor, size_t dim, int64_t& flat) {
  if (dim == tensor.shape().size()) {
    lua_pushnumber(L, tensor.at(flat++));
    return;
  }
  luaL_checkstack(L, 4, "nested lists");
  lua_createtable(L, static_cast<int>(tensor.shape()[dim]), 0);
  for (int64_t i = 0; i < tensor.shape()[dim]; ++i) {
    push_nested(L, tensor, dim + 1, flat);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
}
int tolist(lua_State* L) {
  const auto& tensor = check_object<Tensor>(L, 1);
  constexpr int64_t kSlotBytes = 16;  // of a table, at the least
  Shape lists = tensor.shape();       // those of nothing take memory, too
  for (int64_t& size : lists) size = std::max<int64_t>(size, 1);
  require_memory(L, lists, kSlotBytes);
  int64_t flat = 0;
  push_nested(L, tensor, 0, flat);
  return 1;
}

Tensor to_dtype(Tensor& tensor, DType dtype) { return tensor.to(dtype); }
Tensor contiguous(Tensor& tensor) { return tensor.contiguous(); }
Tensor clone(Tensor& tensor) { return tensor.clone(); }
int64_t numel(Tensor& tensor) { return tensor.elements(); }
std::string show(Tensor& tensor) { return to_string(tensor); }

// native.address(tensor) → address of the first element, bytes; for the ffi. The tensor must outlive their
// use.
int address(lua_State* L) {
  auto& tensor = check_object<Tensor>(L, 1);
  if (!tensor.layout().is_contiguous())
    fail_usage("data: this is a strided view of {}; take :contiguous() first", to_string(tensor.type()));
  lua_pushlightuserdata(L, tensor.bytes());
  lua_pushnumber(L, static_cast<double>(tensor.type().bytes()));
  return 2;
}

int data(lua_State* L) {  // tensor:data(), see het.sandbox.pointer
  check_object<Tensor>(L, 1);
  lua_settop(L, 1);
  lua_getglobal(L, "require");
  lua_pushstring(L, "het.sandbox.pointer");
  call(L, 1, 1);
  lua_getfield(L, -1, "data");
  lua_pushvalue(L, 1);
  call(L, 1, 1);
  return 1;
}

int length(lua_State* L) {
  fail_usage("a tensor has no one length: x.shape[1] is the rows of {}, x:numel() its elements",
             to_string(check_object<Tensor>(L, 1).type()));
}

Tensor run_one(lua_State* L, std::string_view op, const std::vector<Tensor>& inputs,
               const Attributes& attributes) {
  return host_of(L).eager->call(op_named(op), inputs, attributes).front();
}

// Arithmetic, on tensors and on values of a graph, with numbers on either side.
ValueId run_one(const GraphHandle& graph, std::string_view op, std::vector<ValueId> inputs,
                Attributes attributes) {
  return graph->builder.call(op, std::move(inputs), std::move(attributes));
}

// A scalar: it broadcasts.
Attributes constant_attributes(DType dtype, double number) {
  return {{"value", number}, {"shape", std::vector<int64_t>{}}, {"dtype", std::string(name_of(dtype))}};
}

template <typename Operand, typename Run>
Operand with_number(Pointwise op, const Operand& x, double number, bool number_first, const Run& run) {
  const auto scaled = [&](const Operand& v, double factor) {
    return run("scale", v, Attributes{{"factor", factor}});
  };
  const auto shifted = [&](const Operand& v, double amount) {
    return run("shift", v, Attributes{{"amount", amount}});
  };
  if (op == Pointwise::add) return shifted(x, number);
  if (op == Pointwise::mul) return scaled(x, number);
  if (op == Pointwise::sub) return number_first ? shifted(run("neg", x, {}), number) : shifted(x, -number);
  if (op == Pointwise::div && !number_first) return scaled(x, 1 / number);
  if (op == Pointwise::power && !number_first) return run("pow", x, Attributes{{"exponent", number}});
  return run.binary(name_of(op), run.constant(x, number), x);
}

// `op` is add, sub, mul, div or power; the operator is called as the step is.
// An operand of a graph: a value of it, or a tensor that it captures.
ValueId value_at(lua_State* L, int index, const GraphHandle& graph, std::string_view op) {
  if (auto* x = to_object<DistributedHandle>(L, index)) return capture(graph, x->tensor, op);
  if (auto* tensor = to_object<Tensor>(L, index)) return capture(graph, {nullptr, {}, {}, {}, *tensor}, op);
  auto& value = check_object<ValueHandle>(L, index);
  if (value.owner != graph) fail_usage("{}: its operands belong to different graphs", op);
  return value.id;
}

int arithmetic(lua_State* L, Pointwise op) {
  const bool number_first = lua_type(L, 1) == LUA_TNUMBER, number_second = lua_type(L, 2) == LUA_TNUMBER;
  const int first = number_first ? 2 : 1;
  auto* value = to_object<ValueHandle>(L, 1);
  if (value == nullptr) value = to_object<ValueHandle>(L, 2);
  const bool distributed =
      to_object<DistributedHandle>(L, 1) != nullptr || to_object<DistributedHandle>(L, 2) != nullptr;
  if (value == nullptr && distributed) return distributed_arithmetic(L, op);
  if (value != nullptr) {
    const GraphHandle graph = value->owner;
    struct Run {
      GraphHandle graph;
      ValueId operator()(std::string_view name, ValueId x, Attributes a) const {
        return run_one(graph, name, {x}, std::move(a));
      }
      ValueId binary(std::string_view name, ValueId x, ValueId y) const {
        return run_one(graph, name, {x, y}, {});
      }
      ValueId constant(ValueId like, double number) const {
        return run_one(graph, "fill", {}, constant_attributes(graph->builder.type(like).dtype, number));
      }
    } run{graph};
    ValueId result;
    if (number_first || number_second) {
      result = with_number(op, value->id, lua_tonumber(L, number_first ? 1 : 2), number_first, run);
    } else {
      const ValueId x = value_at(L, 1, graph, name_of(op)), y = value_at(L, 2, graph, name_of(op));
      result = run.binary(name_of(op), x, y);
    }
    push_object(L, ValueHandle{graph, result});
    return 1;
  }
  struct Run {
    lua_State* L;
    Tensor operator()(std::string_view name, const Tensor& x, const Attributes& a) const {
      return run_one(L, name, {x}, a);
    }
    Tensor binary(std::string_view name, const Tensor& x, const Tensor& y) const {
      return run_one(L, name, {x, y}, {});
    }
    Tensor constant(const Tensor& like, double number) const {
      return run_one(L, "fill", {}, constant_attributes(like.dtype(), number));
    }
  } run{L};
  Tensor& x = check_object<Tensor>(L, first);
  if (number_first || number_second)
    return push_tensor(L, with_number(op, x, lua_tonumber(L, number_first ? 1 : 2), number_first, run));
  return push_tensor(L, run.binary(name_of(op), x, check_object<Tensor>(L, 2)));
}

int add(lua_State* L) { return arithmetic(L, Pointwise::add); }
int sub(lua_State* L) { return arithmetic(L, Pointwise::sub); }
int mul(lua_State* L) { return arithmetic(L, Pointwise::mul); }
int div(lua_State* L) { return arithmetic(L, Pointwise::div); }
int unm(lua_State* L) {
  if (auto* value = to_object<ValueHandle>(L, 1)) {
    const ValueId result = run_one(value->owner, "neg", {value->id}, {});
    push_object(L, ValueHandle{value->owner, result});
    return 1;
  }
  return push_tensor(L, run_one(L, "neg", {check_object<Tensor>(L, 1)}, {}));
}

int power(lua_State* L) { return arithmetic(L, Pointwise::power); }

int tensor_index(lua_State* L) {
  auto& tensor = check_object<Tensor>(L, 1);
  if (lua_type(L, 2) == LUA_TNUMBER) {  // tensor[i]: a row, or a number of a vector
    if (tensor.shape().empty()) fail_usage("a scalar has no rows; use :item()");
    const double index = lua_tonumber(L, 2);
    if (index != std::floor(index))
      fail_usage("index {} of {} is not whole", index, to_string(tensor.type()));
    const int64_t row = checked_index(tensor, Convert<int64_t>::get(L, 2), 0);
    Layout layout = sliced(tensor.layout(), 0, row, 1);
    layout.type.shape.erase(layout.type.shape.begin());
    layout.strides.erase(layout.strides.begin());
    if (layout.type.shape.empty()) return Convert<double>::push(L, tensor.view(layout).at(0));
    return push_tensor(L, tensor.view(std::move(layout)));
  }
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const std::string_view name = lua_tostring(L, 2);
  if (name == "dtype") return Convert<DType>::push(L, tensor.dtype());
  if (name == "shape") return Convert<Shape>::push(L, tensor.shape());
  return method_of(L, "a tensor", name, {"dtype", "shape"});
}

int tensor_newindex(lua_State* L) {  // vector[i] = number
  auto& tensor = check_object<Tensor>(L, 1);
  if (lua_type(L, 2) != LUA_TNUMBER || tensor.shape().size() != 1)
    fail_usage("only elements of a vector can be assigned; use tensor[i][j] = number for a matrix");
  tensor.set(checked_index(tensor, Convert<int64_t>::get(L, 2), 0), Convert<double>::get(L, 3));
  return 0;
}

}  // namespace

int distributed_arithmetic(lua_State* L, Pointwise op) {
  const bool number_first = lua_type(L, 1) == LUA_TNUMBER, number_second = lua_type(L, 2) == LUA_TNUMBER;
  auto* first = to_object<DistributedHandle>(L, 1);
  const MeshHandle mesh = (first != nullptr ? *first : check_object<DistributedHandle>(L, 2)).tensor.mesh;
  struct Run {
    lua_State* L;
    MeshHandle mesh;
    DistributedHandle operator()(std::string_view name, const DistributedHandle& x,
                                 const Attributes& a) const {
      return call_distributed(L, op_named(name), {x.tensor}, a).front();
    }
    DistributedHandle binary(std::string_view name, const DistributedHandle& x,
                             const DistributedHandle& y) const {
      return call_distributed(L, op_named(name), {x.tensor, y.tensor}, {}).front();
    }
    DistributedHandle constant(const DistributedHandle& like, double number) const {
      const Attributes attributes = constant_attributes(like.tensor.type.dtype, number);
      return {replicated(mesh, run_one(L, "fill", {}, attributes)), nullptr};
    }
  } run{L, mesh};
  if (number_first || number_second) {
    const DistributedHandle& x = check_object<DistributedHandle>(L, number_first ? 2 : 1);
    push_object(L, with_number(op, x, lua_tonumber(L, number_first ? 1 : 2), number_first, run));
  } else {
    push_object(L, run.binary(name_of(op), distributed_at(L, 1, mesh), distributed_at(L, 2, mesh)));
  }
  return 1;
}

int push_tensor(lua_State* L, Tensor tensor) {
  Host& host = host_of(L);
  // Lua sees a few bytes of userdata where megabytes hang on it.
  if (live_buffer_bytes() > host.collect_at) {
    lua_gc(L, LUA_GCCOLLECT, 0);
    lua_gc(L, LUA_GCCOLLECT, 0);  // finalised in the first round, freed in the second
    host.collect_at = std::max<int64_t>(int64_t{256} << 20, 2 * live_buffer_bytes());
  }
  push_object(L, std::move(tensor));
  return 1;
}

void add_tensor(lua_State* L) {
  make_class<Tensor>(L,
                     {bind<&item>("item"), bind<&at>("at"), bind<&tolist>("tolist"), bind<&to_dtype>("to"),
                      bind<&contiguous>("contiguous"), bind<&clone>("clone"), bind<&numel>("numel"),
                      bind<&data>("data"), bind<&length>("__len"), bind<&show>("__tostring"),
                      bind<&add>("__add"), bind<&sub>("__sub"), bind<&mul>("__mul"), bind<&div>("__div"),
                      bind<&unm>("__unm"), bind<&power>("__pow"), bind<&tensor_newindex>("__newindex")},
                     &tensor_index);
  // Values of a graph compute the same way.
  luaL_getmetatable(L, ClassName<ValueHandle>::value);
  set_functions(L, "value:",
                {bind<&add>("__add"), bind<&sub>("__sub"), bind<&mul>("__mul"), bind<&div>("__div"),
                 bind<&unm>("__unm"), bind<&power>("__pow")});
  lua_pop(L, 1);
  set_functions(L, "native.", {bind<&address>("address")});
  set_functions(L, "het.",
                {bind<&new_tensor>("tensor"), bind<&full>("full"), bind<&arange>("arange"),
                 bind<&randn>("randn"), bind<&uniform>("uniform")});
}

}  // namespace het::lua
