// Collectives along an axis of a device mesh, on a plain tensor of each rank: mesh:all_reduce(t, "model").
#include <algorithm>

#include "core/tensor/packed.h"
#include "lua/distributed.h"
#include "lua/state.h"

namespace het::lua {
namespace {

struct Along {
  MeshHandle mesh;
  Tensor own;
  int axis;
  int parts, coordinate;
};

// The operands of mesh:collective(tensor, axis, ...).
Along along(lua_State* L, const char* what) {
  auto& mesh = check_object<MeshHandle>(L, 1);
  if (to_object<DistributedHandle>(L, 2) != nullptr)
    fail_usage(
        "mesh:{}: it works on what each rank has; of a distributed tensor x that is x:local_part(), and "
        "x:redistribute(...) moves it",
        what);
  auto& own = check_object<Tensor>(L, 2);
  if (lua_type(L, 3) != LUA_TSTRING)
    fail_usage("mesh:{}: the second argument names an axis, as in mesh:{}(t, \"{}\")", what, what,
               mesh->axes()[0].name);
  const int axis = mesh->axis_named(lua_tostring(L, 3));
  return {mesh, own.contiguous(), axis, mesh->axes()[static_cast<size_t>(axis)].size,
          mesh->coordinate(mesh->place(), axis)};
}

// All ranks are about to do the same: after all arguments were looked at, so that none fails alone.
void agree(const Along& at, const char* what, const std::string& detail, bool same_shape = true) {
  const TensorType& type = at.own.type();
  at.mesh->agree_on(
      fmt::format("mesh:{} of {} along {}", what,
                  same_shape ? to_string(type)
                             : fmt::format("{} of {} dimensions", name_of(type.dtype), type.shape.size()),
                  at.mesh->axes()[static_cast<size_t>(at.axis)].name),
      detail);
}

void require_number(const Along& at, const char* what) {
  if (at.own.dtype() == DType::boolean) fail_usage("mesh:{}: truth values have no sum", what);
}

int64_t dim_at(lua_State* L, int index, const Tensor& tensor, const char* what) {
  const auto given =
      lua_type(L, index) == LUA_TNUMBER ? integer_of<int64_t>(lua_tonumber(L, index)) : std::nullopt;
  if (!given)
    fail_usage("mesh:{}: argument {} is a dimension of the tensor: a whole number, from 0", what, index - 1);
  const int64_t dim = *given;
  const auto rank = static_cast<int64_t>(tensor.shape().size());
  if (dim < -rank || dim >= rank)
    fail_usage("mesh:{}: there is no dimension {} of {}", what, dim, to_string(tensor.type()));
  return dim < 0 ? dim + rank : dim;
}

int coordinate_at(lua_State* L, int index, const Along& at, const char* what) {
  const auto coordinate = Convert<int>::get(L, index);
  if (coordinate < 0 || coordinate >= at.parts)
    fail_usage("mesh:{}: {} is not one of the coordinates 0 to {} of this axis", what, coordinate,
               at.parts - 1);
  return coordinate;
}

int mesh_all_reduce(lua_State* L) {  // mesh:all_reduce(tensor, axis [, "sum" or "max"])
  const auto how = Convert<std::optional<std::string>>::get(L, 4).value_or("sum");
  if (how != "sum" && how != "max") fail_usage("mesh:all_reduce: '{}' is neither \"sum\" nor \"max\"", how);
  const Along at = along(L, "all_reduce");
  require_number(at, "all_reduce");
  agree(at, "all_reduce", how);
  return push_tensor(L, all_reduce(*at.mesh, at.axis, at.own, how == "max" ? Reduction::max : Reduction::sum,
                                   "mesh:all_reduce"));
}

// The sizes that each rank of an axis has in a dimension. All others have to be the same.
std::vector<int64_t> sizes_along(const Along& at, int64_t dim, const char* what) {
  const auto rank = static_cast<int64_t>(at.own.shape().size());
  Tensor own = Tensor::of<int64_t>(at.own.shape(), {rank});
  const Tensor all =
      all_gather(*at.mesh, at.axis, own, std::vector<int64_t>(static_cast<size_t>(at.parts), rank), "shapes");
  std::vector<int64_t> sizes;
  for (int part = 0; part < at.parts; ++part)
    for (int64_t d = 0; d < rank; ++d) {
      const auto size = static_cast<int64_t>(all.at(part * rank + d));
      if (d == dim)
        sizes.push_back(size);
      else if (size != static_cast<int64_t>(all.at(d)))
        fail_usage(
            "mesh:{}: the ranks' tensors differ in dimension {}, {} and {}; they may differ in dimension {}",
            what, d, static_cast<int64_t>(all.at(d)), size, dim);
    }
  return sizes;
}

// The parts of a tensor that is cut along `dim` at `points`.
std::vector<TensorSlice> parts_of(const Shape& shape, int64_t dim, const std::vector<int64_t>& points) {
  std::vector<TensorSlice> parts;
  for (size_t p = 0; p + 1 < points.size(); ++p)
    parts.push_back(TensorSlice::whole(shape).narrowed(dim, Range{points[p], points[p + 1]}));
  return parts;
}

// The parts of a packed tensor, one after the other.
Tensor packed(const Tensor& tensor, const std::vector<TensorSlice>& parts) {
  PackedSlices blocks(tensor.dtype(), tensor.elements());
  for (const TensorSlice& part : parts) blocks.write(part, tensor, TensorSlice::whole(tensor.shape()));
  return blocks.tensor();
}

// The tensor whose parts lie in `blocks` one after the other, of these sizes along `dim`.
Tensor joined(const Tensor& blocks, Shape shape, int64_t dim, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> points{0};
  for (const int64_t size : sizes) points.push_back(points.back() + size);
  shape[static_cast<size_t>(dim)] = points.back();
  Tensor whole(TensorType{blocks.dtype(), shape});
  PackedSlices parts(blocks);
  for (const TensorSlice& part : parts_of(shape, dim, points))
    parts.read(part, whole, TensorSlice::whole(shape));
  return whole;
}

Shape with_size(Shape shape, int64_t dim, int64_t size) {
  shape[static_cast<size_t>(dim)] = size;
  return shape;
}

int mesh_all_gather(lua_State* L) {  // mesh:all_gather(tensor, axis, dim)
  const Along at = along(L, "all_gather");
  const int64_t dim = dim_at(L, 4, at.own, "all_gather");
  agree(at, "all_gather", fmt::format("dim {}", dim), false);
  const auto sizes = sizes_along(at, dim, "all_gather");
  std::vector<int64_t> counts;
  for (const int64_t size : sizes) counts.push_back(elements_of(with_size(at.own.shape(), dim, size)));
  const Tensor all = all_gather(*at.mesh, at.axis, at.own, counts, "mesh:all_gather");
  return push_tensor(L, joined(all, at.own.shape(), dim, sizes));
}

int mesh_reduce_scatter(lua_State* L) {  // mesh:reduce_scatter(tensor, axis, dim [, shares])
  const Along at = along(L, "reduce_scatter");
  const int64_t dim = dim_at(L, 4, at.own, "reduce_scatter");
  const Shares shares = shares_at(L, 5, "mesh:reduce_scatter", at.mesh->axes()[static_cast<size_t>(at.axis)]);
  require_number(at, "reduce_scatter");
  agree(at, "reduce_scatter", fmt::format("dim {} by {}", dim, fmt::join(shares, ":")));
  const Shape& shape = at.own.shape();
  const auto parts = parts_of(shape, dim, cut_points(shape[static_cast<size_t>(dim)], shares));
  std::vector<int64_t> counts;
  for (const TensorSlice& part : parts) counts.push_back(part.elements());
  const Tensor own = reduce_scatter(*at.mesh, at.axis, packed(at.own, parts), counts, "mesh:reduce_scatter");
  const Shape own_shape = parts[static_cast<size_t>(at.coordinate)].shape();
  return push_tensor(L, own.view(Layout::contiguous({own.dtype(), own_shape})));
}

int mesh_all_to_all(lua_State* L) {  // mesh:all_to_all(tensor, axis, split, join)
  const Along at = along(L, "all_to_all");
  const int64_t split = dim_at(L, 4, at.own, "all_to_all"), join = dim_at(L, 5, at.own, "all_to_all");
  agree(at, "all_to_all", fmt::format("split {}, join {}", split, join), false);
  // The sizes that are joined may differ between ranks; those that are split are alike.
  const auto sizes = sizes_along(at, join, "all_to_all");
  if (split == join &&
      std::any_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size != sizes[0]; }))
    fail_usage("mesh:all_to_all: the ranks' tensors differ in dimension {}, which is split and joined",
               split);
  const auto points =
      cut_points(at.own.shape()[static_cast<size_t>(split)], Shares(static_cast<size_t>(at.parts), 1));
  const auto here = static_cast<size_t>(at.coordinate);
  std::vector<int64_t> counts, received;  // elements from each rank to each; sizes of those that come here
  for (const int64_t size : sizes) {
    const auto parts = parts_of(with_size(at.own.shape(), join, size), split, points);
    for (const TensorSlice& part : parts) counts.push_back(part.elements());
    received.push_back(parts[here].shape()[static_cast<size_t>(join)]);
  }
  const auto parts = parts_of(at.own.shape(), split, points);
  const Tensor all = all_to_all(*at.mesh, at.axis, packed(at.own, parts), counts, "mesh:all_to_all");
  return push_tensor(L, joined(all, parts[here].shape(), join, received));
}

int mesh_broadcast(lua_State* L) {  // mesh:broadcast(tensor, axis, from)
  const Along at = along(L, "broadcast");
  const int from = coordinate_at(L, 4, at, "broadcast");
  agree(at, "broadcast", fmt::format("from {}", from));
  return push_tensor(L, broadcast(*at.mesh, at.axis, at.own, from, "mesh:broadcast"));
}

int mesh_transfer(lua_State* L) {  // mesh:transfer(tensor, axis, from, to) -> tensor on `to`, nil elsewhere
  const Along at = along(L, "transfer");
  const int from = coordinate_at(L, 4, at, "transfer"), to = coordinate_at(L, 5, at, "transfer");
  agree(at, "transfer", fmt::format("from {} to {}", from, to));
  Tensor result = transfer(*at.mesh, at.axis, at.own, from, to, "mesh:transfer");
  if (!result.present()) return 0;
  return push_tensor(L, std::move(result));
}

void mesh_barrier(MeshHandle& mesh) { mesh->agree_on("mesh:barrier"); }

}  // namespace

Shares shares_at(lua_State* L, int index, std::string_view what, const MeshAxis& axis) {
  Shares shares(static_cast<size_t>(axis.size), 1);
  if (lua_isnoneornil(L, index)) return shares;
  if (!lua_istable(L, index))
    fail_usage("{}: shares of the axis {} are a list, such as {{ {} }}; this is a {}", what, axis.name,
               fmt::join(shares, ", "), luaL_typename(L, index));
  const size_t given = lua_objlen(L, index);
  if (static_cast<int>(given) != axis.size)
    fail_usage("{}: {} share{} for the axis {}, which has {} ranks", what, given, given == 1 ? "" : "s",
               axis.name, axis.size);
  for (size_t s = 0; s < given; ++s) {
    lua_rawgeti(L, index, static_cast<int>(s) + 1);
    const auto share =
        lua_type(L, -1) == LUA_TNUMBER ? integer_of<int64_t>(lua_tonumber(L, -1)) : std::nullopt;
    if (!share || *share < 0) {
      const char* text = lua_tostring(L, -1);
      fail_usage(
          "{}: shares of the axis {}: {} is no whole number from 0 on; {{ 3, 1 }} gives the first rank "
          "three quarters",
          what, axis.name, text != nullptr ? text : luaL_typename(L, -1));
    }
    shares[s] = *share;
    lua_pop(L, 1);
  }
  if (std::all_of(shares.begin(), shares.end(), [](int64_t share) { return share == 0; }))
    fail_usage("{}: shares of the axis {}: one at least is above 0", what, axis.name);
  return shares;
}

void add_mesh_collectives(lua_State* L) {
  luaL_getmetatable(L, ClassName<MeshHandle>::value);
  lua_getfield(L, -1, "methods");
  set_functions(
      L, "mesh:",
      {bind<&mesh_all_reduce>("all_reduce"), bind<&mesh_all_gather>("all_gather"),
       bind<&mesh_reduce_scatter>("reduce_scatter"), bind<&mesh_all_to_all>("all_to_all"),
       bind<&mesh_broadcast>("broadcast"), bind<&mesh_transfer>("transfer"), bind<&mesh_barrier>("barrier")});
  lua_pop(L, 2);
}

}  // namespace het::lua
