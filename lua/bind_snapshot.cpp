// Snapshots as Lua sees them: opened, read, verified, written.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/tensor/convert.h"
#include "lua/objects.h"
#include "lua/snapshot_content.h"
#include "snapshot/snapshot.h"
#include "snapshot/store/store.h"
#include "snapshot/upload.h"

namespace het::lua {
namespace {

Json::array_t shape_of(const TensorType& type) {
  Json::array_t shape;
  for (const int64_t size : type.shape) shape.emplace_back(size);
  return shape;
}

bool is_store(const Path& place) { return place.text.find("://") != std::string::npos; }

// path or URL of a store, step or nil -> snapshot, {a sentence for every newer one that is not whole}
int snapshot_open(lua_State* L) {
  std::vector<std::string> passed_over;
  const Path place = Convert<Path>::get(L, 1);
  const auto step = Convert<std::optional<int64_t>>::get(L, 2);
  auto snapshot = std::make_shared<const Snapshot>(
      is_store(place) ? open_snapshot(std::shared_ptr<ObjectStore>(open_store(place)), step, &passed_over)
                      : open_snapshot(place, step, &passed_over));
  Convert<SnapshotHandle>::push(L, std::move(snapshot));
  Convert<std::vector<std::string>>::push(L, passed_over);
  return 2;
}

// folder or URL of a store -> list of {step, generation, files = {paths}}, the newest first. Of a saved
// model's folder that of the model.
int snapshot_list(lua_State* L) {
  Json::array_t list;
  const Path place = Convert<Path>::get(L, 1);
  for (const ListedSnapshot& listed :
       is_store(place) ? list_snapshots(*open_store(place)) : list_place(place)) {
    Json::array_t files;
    for (const std::string& file : listed.files) files.emplace_back(file);
    list.push_back(Json::object_t{{"step", listed.version.step},
                                  {"generation", listed.version.generation},
                                  {"files", std::move(files)}});
  }
  push_json(L, list);
  return 1;
}

// Removes a snapshot file, or those of all snapshots in a folder.
void snapshot_remove(Path folder) {
  if (kind_of(folder) == FileKind::file) folder.opener().remove(folder.text);
  if (kind_of(folder) != FileKind::folder) return;
  for (const ListedSnapshot& listed : list_snapshots(folder))
    for (const std::string& file : listed.files) folder.opener().remove(file);
}

// {run, step, generation, plan, ranks, cursor, seed, about = JSON, history, files = {{path, rank, bytes,
// units}}}
int snapshot_summary(lua_State* L) {
  const SnapshotHandle& snapshot = check_object<SnapshotHandle>(L, 1);
  const SnapshotManifest& manifest = snapshot->manifest();
  Json::array_t files, history;
  std::string about;
  for (const auto& file : snapshot->files()) {
    files.push_back(Json::object_t{{"path", file->path()},
                                   {"rank", file->manifest().rank},
                                   {"bytes", file->bytes()},
                                   {"units", static_cast<int64_t>(file->manifest().units.size())}});
    if (about.empty()) about = file->manifest().about;
  }
  for (const Era& era : manifest.history)
    history.push_back(Json::object_t{{"generation", era.generation}, {"first_step", era.first_step}});
  push_json(L, Json::object_t{{"run", manifest.run},
                              {"step", manifest.version.step},
                              {"generation", manifest.version.generation},
                              {"plan", manifest.plan},
                              {"ranks", manifest.ranks},
                              {"cursor", manifest.cursor},
                              {"seed", manifest.seed},
                              {"about", std::move(about)},
                              {"history", std::move(history)},
                              {"files", std::move(files)}});
  return 1;
}

// list of {name, dtype, shape, trained, bytes, parts = {{slice, file, bytes}}}
int snapshot_tensors(lua_State* L) {
  const SnapshotHandle& snapshot = check_object<SnapshotHandle>(L, 1);
  Json::array_t tensors;
  for (const SnapshotTensor& tensor : snapshot->manifest().tensors) {
    Json::array_t parts;
    for (const Snapshot::Held& held : snapshot->held(tensor.name))
      parts.push_back(Json::object_t{{"slice", to_string(held.slice)},
                                     {"file", snapshot->files()[held.file]->path()},
                                     {"bytes", held.slice.elements() * bytes_of(tensor.type.dtype)}});
    tensors.push_back(Json::object_t{{"name", tensor.name},
                                     {"dtype", std::string(name_of(tensor.type.dtype))},
                                     {"shape", shape_of(tensor.type)},
                                     {"trained", tensor.trained},
                                     {"bytes", tensor.type.bytes()},
                                     {"parts", std::move(parts)}});
  }
  push_json(L, tensors);
  return 1;
}

// list of {name, slice}
int snapshot_missing(lua_State* L) {
  Json::array_t missing;
  for (const Inventory::Need& need : check_object<SnapshotHandle>(L, 1)->missing())
    missing.push_back(Json::object_t{{"name", need.name}, {"slice", to_string(need.slice)}});
  push_json(L, missing);
  return 1;
}

Tensor snapshot_read(SnapshotHandle& snapshot, std::string name, std::optional<std::string> slice) {
  snapshot->held(name);  // throws for a name that the state does not have
  const Shape& shape = snapshot->find(name)->type.shape;
  return snapshot->read(name, slice ? parse_slice(shape, *slice) : TensorSlice::whole(shape));
}

// A sentence for every damaged chunk.
std::vector<std::string> snapshot_verify(SnapshotHandle& snapshot) {
  std::vector<std::string> damages;
  for (const auto& file : snapshot->files())
    for (std::string& damage : file->verify()) damages.push_back(std::move(damage));
  return damages;
}

// The greatest difference between an element here and there, 0 where they are equal bit by bit; infinite
// where one is NaN. Of tensors of one type.
double snapshot_difference(SnapshotHandle& snapshot, std::string name, SnapshotHandle& other) {
  const Tensor a = snapshot_read(snapshot, name, {}), b = snapshot_read(other, name, {});
  if (a.type() != b.type())
    fail_usage("'{}' is {} here and {} there", name, to_string(a.type()), to_string(b.type()));
  if (std::equal(a.bytes(), a.bytes() + a.type().bytes(), b.bytes())) return 0;
  double most = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double apart =
        std::abs(load_element(a.bytes(), a.dtype(), i) - load_element(b.bytes(), b.dtype(), i));
    if (!(apart <= most)) most = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
  }
  return most;
}

// Reads a tensor when its first bytes are asked for, and lets go of it with the last ones.
template <typename Read>
std::function<void(std::byte*, int64_t, int64_t)> reader_of(Read read) {
  return [read = std::move(read), tensor = Tensor()](std::byte* to, int64_t begin, int64_t bytes) mutable {
    if (begin == 0) tensor = read().contiguous();
    std::copy_n(tensor.bytes() + begin, bytes, to);
    if (begin + bytes == tensor.type().bytes()) tensor = {};
  };
}

// A folder for files that are on the way to a store.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code problem;
    const auto parent = std::filesystem::temp_directory_path(problem);  // TMPDIR, else /tmp
    std::string made = (parent / "hetrun-XXXXXX").string();
    if (problem || mkdtemp(made.data()) == nullptr)
      fail_environment("cannot make a folder like '{}' for files on their way to a store (TMPDIR)", made);
    path_ = Path(made);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_.text, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const Path& path() const { return path_; }

 private:
  Path path_;
};

// Writes a file of a snapshot into a folder or a store. Returns its path or URL.
std::string write_into(const Path& place, const SnapshotManifest& manifest,
                       const std::vector<SnapshotPart>& parts) {
  if (!is_store(place)) {
    const Path path = snapshot_path(place, manifest);
    make_folder(place);
    write_snapshot(path, manifest, parts);
    return path.text;
  }
  const auto store = open_store(place);
  const TemporaryFolder folder;
  const Path path = snapshot_path(folder.path(), manifest);
  write_snapshot(path, manifest, parts);
  return store->url_of(upload(*store, {path}).front().key);
}

// The same and `folder`, which may be the URL of a store -> the path of the file in it
int snapshot_write(lua_State* L) {
  const auto folder = field<Path>(L, 1, "folder");
  if (!folder) fail_usage("snapshot_write needs a 'folder'");
  const SnapshotContent content = snapshot_content_at(L, 1);
  return Convert<std::string>::push(L, write_into(*folder, content.manifest, content.parts));
}

// Writes the files of the snapshot again, checked, into a folder or a store. Returns their paths.
std::vector<std::string> snapshot_copy(SnapshotHandle& snapshot, Path folder) {
  std::vector<std::string> paths;
  for (const auto& file : snapshot->files()) {
    const SnapshotManifest& manifest = file->manifest();
    std::vector<SnapshotPart> parts;
    for (size_t unit = 0; unit < manifest.units.size(); ++unit)
      parts.push_back({manifest.tensors[manifest.units[unit].tensor].name, manifest.units[unit].slice,
                       reader_of([file, unit] { return file->read(unit); })});
    paths.push_back(write_into(folder, manifest, parts));
  }
  return paths;
}

}  // namespace

SnapshotContent snapshot_content_at(lua_State* L, int table) {
  SnapshotContent content;
  auto& [manifest, parts] = content;
  manifest.run = field<std::string>(L, table, "run").value_or("");
  manifest.version = {field<int64_t>(L, table, "step").value_or(0),
                      field<int64_t>(L, table, "generation").value_or(0)};
  manifest.history = {{manifest.version.generation, 0}};
  manifest.plan = field<std::string>(L, table, "plan").value_or("");
  manifest.rank = field<int>(L, table, "rank").value_or(0);
  manifest.ranks = field<int>(L, table, "ranks").value_or(1);
  manifest.cursor = field<int64_t>(L, table, "cursor").value_or(0);
  manifest.seed = field<int64_t>(L, table, "seed").value_or(0);
  manifest.about = field<std::string>(L, table, "about").value_or("{}");
  if (manifest.version.step < 0 || manifest.cursor < 0 || manifest.rank < 0 ||
      manifest.rank >= manifest.ranks)
    fail_usage("a snapshot: step {}, cursor {} and rank {} of {} are none", manifest.version.step,
               manifest.cursor, manifest.rank, manifest.ranks);
  each_in(L, table, "tensors", [&](int, int index) {
    SnapshotTensor tensor{field<std::string>(L, index, "name").value_or(""),
                          {},
                          field<bool>(L, index, "trained").value_or(false)};
    if (tensor.name.empty()) fail_usage("a snapshot: a tensor has no name");
    std::function<void(std::byte*, int64_t, int64_t)> read;
    lua_getfield(L, index, "tensor");
    if (const auto* stored = to_object<StoredTensor>(L, lua_gettop(L))) {
      tensor.type = stored->type();
      read = reader_of([stored = *stored] { return stored.read(); });
    } else {
      const Tensor& given = check_object<Tensor>(L, lua_gettop(L));
      tensor.type = given.type();
      read = reader_of([given] { return given; });
    }
    lua_pop(L, 1);
    parts.push_back({tensor.name, TensorSlice::whole(tensor.type.shape), std::move(read)});
    manifest.tensors.push_back(std::move(tensor));
  });
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const SnapshotTensor& a, const SnapshotTensor& b) { return a.name < b.name; });
  for (size_t i = 1; i < manifest.tensors.size(); ++i)
    if (manifest.tensors[i - 1].name == manifest.tensors[i].name)
      fail_usage("a snapshot: there are two tensors '{}'", manifest.tensors[i].name);
  return content;
}

void add_snapshot(lua_State* L) {
  make_class<SnapshotHandle>(
      L, {bind<&snapshot_summary>("summary"), bind<&snapshot_tensors>("tensors"),
          bind<&snapshot_missing>("missing"), bind<&snapshot_read>("read"), bind<&snapshot_verify>("verify"),
          bind<&snapshot_difference>("difference"), bind<&snapshot_copy>("copy_to")});
  set_functions(L, "native.",
                {bind<&snapshot_open>("snapshot_open"), bind<&snapshot_list>("snapshot_list"),
                 bind<&snapshot_remove>("snapshot_remove"), bind<&snapshot_write>("snapshot_write")});
}

}  // namespace het::lua
