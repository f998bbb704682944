// Files as Lua sees them: whole files for the library, handles like those of Lua's io for recipe code, and
// the walls around recipes. Every path goes through the Files of the host, which limit what a recipe reaches.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cluster/environment.h"
#include "core/cluster/secret.h"
#include "core/io/file.h"
#include "core/io/files.h"
#include "core/run/memory_folder.h"
#include "lua/broker.h"
#include "lua/confine.h"
#include "lua/launch.h"
#include "lua/objects.h"

namespace het::lua {
namespace {

// --- whole files

std::string read_text(Path path) { return read_file(path); }
// Text that a run or a command writes; like recipe code, it leaves the files of a saved model alone.
Path own(Path path) {
  path.purpose = Purpose::own;
  return path;
}
void write_text(Path path, std::string text) { write_file(own(std::move(path)), text); }
std::string staged(Path path) { return staged_path(path).text; }
void commit(Path path) { commit_staged(path); }
void drop(Path path) { drop_staged(path); }
void remove_it(Path path) { path.opener().remove(path.text); }
void append(Path path, std::string text) { append_file(own(std::move(path)), text); }
void make(Path path) { make_folder(path); }

// The source of a module that a recipe requires.
std::string read_module(Path path) {
  path.purpose = Purpose::module;
  return read_file(path);
}

bool is_module(Path path) {
  path.purpose = Purpose::module;
  return kind_of(path) == FileKind::file;
}

// Whether files can be written into the folder `path`, which need not be there yet. With the rights of the
// process nothing is left behind; a recipe's run folder is made.
void try_folder(Path path) {
  namespace fs = std::filesystem;
  std::string folder = path.text;
  if (folder.empty()) fail_usage("an empty path names no folder");
  if (path.files != nullptr) {
    make_folder(path);
  } else {
    fs::path parent = fs::absolute(folder).lexically_normal();
    std::error_code problem;
    while (!fs::exists(parent, problem) && parent.has_relative_path()) parent = parent.parent_path();
    if (!fs::is_directory(parent, problem))
      fail_usage("cannot make the folder {}: {} is no folder", folder, parent.string());
    folder = parent.string();
  }
  const Path trial = path.with(unfinished_name(folder + "/try"));
  const Descriptor file(trial.opener().open(trial.text, OpenMode::replace, Purpose::data));
  if (file.number() < 0)
    fail_usage("cannot write into the folder {}: {}", folder, std::strerror(-file.number()));
  trial.opener().remove(trial.text);
}

std::string path_kind(Path path) {  // "file", "folder" or "none"
  switch (kind_of(path)) {
    case FileKind::folder: return "folder";
    case FileKind::none: return "none";
    default: return "file";
  }
}

// What is in a folder, folders with a slash behind their names; nothing where it cannot be read.
std::vector<std::string> folder_names(Path folder) {
  std::vector<std::string> names;
  try {
    for (const FolderEntry& entry : list_folder(folder)) {
      const bool is_folder = entry.kind == FileKind::link
                                 ? kind_of(folder.child(entry.name)) == FileKind::folder
                                 : entry.kind == FileKind::folder;
      names.push_back(entry.name + (is_folder ? "/" : ""));
    }
  } catch (const Error&) {
  }
  return names;
}

// The real path of a file, or of one that would be made: whether two paths name one thing. Opens nothing.
std::string real_path(std::string path) {
  std::error_code problem;
  const auto whole = std::filesystem::absolute(path, problem);
  const auto result = problem ? whole : std::filesystem::weakly_canonical(whole, problem);
  return problem ? std::string() : result.string();
}

// Why a recipe may not read (or write) a path, as a sentence; nil when it may.
std::optional<std::string> path_problem(Path path, bool writes) {
  std::string problem = path.opener().problem(path.text, writes, path.purpose);
  return problem.empty() ? std::nullopt : std::optional(std::move(problem));
}

// --- files that recipe code opens

// A stream that closes itself; empty once it is closed. Functions of Lua's io that fail return nil and a
// sentence.
struct Stream {
  std::unique_ptr<FILE, int (*)(FILE*)> file{nullptr, &std::fclose};
  std::string path;
};
using StreamHandle = std::shared_ptr<Stream>;

}  // namespace
}  // namespace het::lua

HET_LUA_CLASS(het::lua::StreamHandle, "file");

namespace het::lua {
namespace {

FILE* open_stream(lua_State* L) {
  auto& handle = check_object<StreamHandle>(L, 1);
  if (handle->file == nullptr) fail_usage("the file '{}' is closed", handle->path);
  return handle->file.get();
}

int push_failure(lua_State* L, const std::string& path, int error) {
  lua_pushnil(L);
  Convert<std::string>::push(L, fmt::format("{}: {}", path, std::strerror(error)));
  lua_pushinteger(L, error);
  return 3;
}

// native.open_file(path [, mode]) -> file, or nil, why. Modes are "r", "w" and "a", with "b" or without.
int open_file(lua_State* L) {
  Path path = Convert<Path>::get(L, 1);
  path.purpose = Purpose::own;
  if (host_of(L).prompt_files != nullptr) path.files = host_of(L).prompt_files;
  const std::string mode = Convert<std::optional<std::string>>::get(L, 2).value_or("r");
  const std::string plain = mode.ends_with('b') ? mode.substr(0, mode.size() - 1) : mode;
  if (plain != "r" && plain != "w" && plain != "a")
    fail_usage("io.open: '{}' is not a mode; recipes open files with \"r\", \"w\" or \"a\"", mode);
  const OpenMode how = plain == "r" ? OpenMode::read : plain == "w" ? OpenMode::replace : OpenMode::append;
  Descriptor opened(path.opener().open(path.text, how, path.purpose));
  if (opened.number() < 0) return push_failure(L, path.text, -opened.number());
  auto stream = std::make_shared<Stream>();
  stream->path = path.text;
  stream->file.reset(fdopen(opened.number(), plain.c_str()));
  if (stream->file == nullptr) return push_failure(L, path.text, errno);
  opened.release();
  return Convert<StreamHandle>::push(L, std::move(stream));
}

// A line into `line`; false at the end of the file.
bool read_line(FILE* file, std::string& line, bool keep_end) {
  char* text = nullptr;
  size_t room = 0;
  const ssize_t count = getline(&text, &room, file);
  if (count > 0) line.assign(text, static_cast<size_t>(count));
  const int error = errno;
  std::free(text);
  if (count <= 0 && std::feof(file) == 0) fail_environment("a line cannot be read: {}", std::strerror(error));
  if (count <= 0) return false;
  if (!keep_end && line.ends_with('\n')) line.pop_back();
  return true;
}

// `count` bytes, or all that are left. False at the end of the file.
bool read_bytes(FILE* file, std::string& text, size_t count) {
  constexpr size_t kAtOnce = size_t{1} << 16;
  while (text.size() < count) {
    const size_t have = text.size(), wanted = std::min(kAtOnce, count - have);
    text.resize(have + wanted);
    const size_t got = std::fread(text.data() + have, 1, wanted, file);
    text.resize(have + got);
    if (got < wanted) break;
  }
  return !text.empty() || count == 0;
}

// Pushes what one format of file:read() asks for; false, with nil pushed, at the end of the file.
bool read_format(lua_State* L, FILE* file, int index) {
  std::string text;
  bool found = false;
  if (lua_type(L, index) == LUA_TNUMBER) {
    const auto count = Convert<int64_t>::get(L, index);
    if (count < 0) fail_usage("file:read: {} bytes cannot be read", count);
    found = read_bytes(file, text, static_cast<size_t>(count));
    if (count == 0) {  // whether there is more
      const int next = std::fgetc(file);
      if (next != EOF) std::ungetc(next, file);
      found = next != EOF;
    }
  } else {
    std::string format = Convert<std::string>::get(L, index);
    if (format.starts_with('*')) format.erase(0, 1);
    switch (format.empty() ? '\0' : format[0]) {
      case 'l': found = read_line(file, text, false); break;
      case 'L': found = read_line(file, text, true); break;
      case 'a': read_bytes(file, text, SIZE_MAX), found = true; break;
      case 'n': {
        double number = 0;
        if (std::fscanf(file, "%lf", &number) == 1) return lua_pushnumber(L, number), true;
        break;
      }
      default:
        fail_usage("file:read: '{}' is not a format; there are *l, *L, *a, *n and a number of bytes", format);
    }
  }
  found ? static_cast<void>(Convert<std::string>::push(L, text)) : lua_pushnil(L);
  return found;
}

int stream_read(lua_State* L) {
  FILE* file = open_stream(L);
  const int count = lua_gettop(L);
  if (count == 1) {
    lua_pushliteral(L, "*l");
    return read_format(L, file, 2), 1;
  }
  luaL_checkstack(L, count, "formats of file:read");
  int pushed = 0;
  for (int i = 2; i <= count; ++i) {
    ++pushed;
    if (!read_format(L, file, i)) break;
  }
  if (std::ferror(file) != 0) {
    std::clearerr(file);
    return push_failure(L, check_object<StreamHandle>(L, 1)->path, errno);
  }
  return pushed;
}

int next_line(lua_State* L) {
  auto& handle = *to_object<StreamHandle>(L, lua_upvalueindex(2));
  std::string line;
  if (handle->file == nullptr) fail_usage("the file '{}' is closed", handle->path);
  if (read_line(handle->file.get(), line, false)) return Convert<std::string>::push(L, line);
  if (lua_toboolean(L, lua_upvalueindex(3))) handle->file.reset();  // opened by io.lines
  return 0;
}
// file:lines() -> a function that returns the next line, nil at the end.
int stream_lines(lua_State* L) {
  open_stream(L);
  const bool closes = lua_toboolean(L, 2) != 0;
  lua_pushliteral(L, "file:lines");
  lua_pushvalue(L, 1);
  lua_pushboolean(L, closes);
  lua_pushcclosure(L, bind<&next_line>("lines").call, 3);
  return 1;
}

int stream_write(lua_State* L) {
  FILE* file = open_stream(L);
  for (int i = 2; i <= lua_gettop(L); ++i) {
    if (lua_type(L, i) != LUA_TNUMBER && lua_type(L, i) != LUA_TSTRING)
      wrong_argument(L, i, "a text or a number");
    size_t bytes = 0;
    const char* text = lua_tolstring(L, i, &bytes);
    if (std::fwrite(text, 1, bytes, file) != bytes)
      return push_failure(L, check_object<StreamHandle>(L, 1)->path, errno);
  }
  lua_settop(L, 1);
  return 1;
}

int stream_seek(lua_State* L) {  // file:seek([whence [, offset]]) -> where it stands now
  FILE* file = open_stream(L);
  const std::string whence = Convert<std::optional<std::string>>::get(L, 2).value_or("cur");
  const int64_t offset = Convert<std::optional<int64_t>>::get(L, 3).value_or(0);
  if (whence != "set" && whence != "cur" && whence != "end")
    fail_usage("file:seek: '{}' is not a place; there are \"set\", \"cur\" and \"end\"", whence);
  const int from = whence == "set" ? SEEK_SET : whence == "cur" ? SEEK_CUR : SEEK_END;
  if (fseeko(file, offset, from) != 0) return push_failure(L, check_object<StreamHandle>(L, 1)->path, errno);
  return Convert<int64_t>::push(L, ftello(file));
}

int stream_flush(lua_State* L) {
  if (std::fflush(open_stream(L)) != 0) return push_failure(L, check_object<StreamHandle>(L, 1)->path, errno);
  lua_settop(L, 1);
  return 1;
}

int stream_close(lua_State* L) {
  FILE* file = open_stream(L);
  auto& handle = check_object<StreamHandle>(L, 1);
  static_cast<void>(handle->file.release());
  if (std::fclose(file) != 0) return push_failure(L, handle->path, errno);
  lua_pushboolean(L, 1);
  return 1;
}

std::string stream_to_string(StreamHandle& handle) {
  return fmt::format("file ({}{})", handle->path, handle->file == nullptr ? ", closed" : "");
}

// --- walls around recipes

std::vector<std::string> list_at(lua_State* L, int index, const char* name) {
  return field<std::vector<std::string>>(L, index, name).value_or(std::vector<std::string>{});
}

// native.cache_read(name) -> a value, nil when there is none; native.cache_write(name, value). JSON that the
// library keeps between runs, with the rights of the process: no path of a recipe's leads there.
int cache_read(lua_State* L) {
  const std::string folder = cache_folder(), path = folder + "/" + Convert<std::string>::get(L, 1);
  if (folder.empty() || kind_of(path) != FileKind::file) return 0;
  push_json(L, read_json(path));
  return 1;
}
int cache_write(lua_State* L) {
  if (const std::string folder = cache_folder(); !folder.empty()) {
    make_folder(folder);
    write_json(folder + "/" + Convert<std::string>::get(L, 1), json_at(L, 2));
  }
  return 0;
}

// The walls hold for threads that are started later. One that has been joined may stand in the list a moment
// longer.
void require_one_thread() {
  constexpr int kTries = 200;
  constexpr std::chrono::milliseconds kPause{5};
  long count = 0;
  for (int i = 0; i < kTries; ++i) {
    count = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
    if (count == 1) return;
    std::this_thread::sleep_for(kPause);
  }
  HET_REQUIRE(count == 1, count);
}

// HETRUN_WALLS, for tests that hold each wall against attacks alone: "sandbox" without the kernel's, "kernel"
// without the sandbox. Else both.
std::string walls() {
  const char* value = std::getenv("HETRUN_WALLS");
  return value == nullptr ? "" : value;
}

Confinement confinement_of(bool gpu, bool network) {
  Confinement wanted;
  wanted.network = network;
  wanted.gpu = gpu;
  if (const std::string cache = cache_folder(); !cache.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(cache, ignored);  // a rule needs a folder that is there
    wanted.writes.push_back(cache);
  }
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  wanted.reads.push_back((program.parent_path().parent_path() / "lib").string());  // of the archive
  const auto add_folders = [&](const char* name, const std::string& within = "") {
    const char* value = std::getenv(name);
    for (std::string_view rest = value == nullptr ? "" : value; !rest.empty();) {
      const size_t colon = std::min(rest.find(':'), rest.size());
      if (colon > 0) wanted.reads.push_back(std::string(rest.substr(0, colon)) + within);
      rest.remove_prefix(std::min(colon + 1, rest.size()));
    }
  };
  add_folders("HETRUN_LUA_PATH");
  add_folders("LD_LIBRARY_PATH");
  if (gpu) {  // where kernels/cuda/library.cpp looks for libraries, opened when they are first used
    for (const char* name :
         {"HETRUN_CUDA_LIBRARIES", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"})
      add_folders(name);
    add_folders("PATH", "/../lib");
    add_folders("HOME", "/.local/lib");
  }
  return wanted;
}

// native.confine(file, {words, reads, writes, replaces, gpu, secret_file}): a Lua file of a stranger
// is about to run. The first call puts up the walls, with what the person named by options of hetrun; a later
// one adds the folder of another file that the command line names.
int confine_recipe(lua_State* L) {
  Host& host = host_of(L);
  const std::string file = Convert<std::string>::get(L, 1);
  if (host.access != nullptr) {
    host.access->add_named(file);
    return 0;
  }
  if (!lua_istable(L, 2)) wrong_argument(L, 2, "a table");
  auto files = std::make_unique<RecipeFiles>(list_at(L, 2, "words"));
  files->add_recipe(file);
  for (const std::string& path : list_at(L, 2, "reads")) files->grant(path, false);
  for (const std::string& path : list_at(L, 2, "writes")) files->grant(path, true);
  const EnvironmentLookup lookup = process_environment();
  const bool network = is_one_of_several(lookup);
  if (network && !lookup("HETRUN_STORE")) {
    try {
      const auto named = field<std::string>(L, 2, "secret_file");
      host.secret = load_secret(lookup, named ? *named : lookup("HETRUN_SECRET_FILE").value_or(""));
    } catch (const Error&) {
      host.secret_problem = std::current_exception();  // raised when the ranks meet
    }
  }
  if (field<bool>(L, 2, "replaces").value_or(false)) files->let_replace();
  if (const auto shared = lookup("HETRUN_RUN_FOLDER")) {  // a descriptor of `hetrun --workers`
    const auto number = static_cast<int>(std::strtol(shared->c_str(), nullptr, 10));
    Descriptor file(fcntl(number, F_DUPFD_CLOEXEC, 0));
    if (!file) fail_environment("HETRUN_RUN_FOLDER={} is no open file: {}", *shared, std::strerror(errno));
    files->share_run_folder(std::move(file));
  }
  const bool kernel = walls() != "sandbox";
  std::shared_ptr<RecipeAccess> access;
  if (kernel && kernel_walls().landlock > 0) {
    require_one_thread();
    access = start_broker(std::move(files), pipe_to_launcher());
  } else {
    access = std::move(files);
  }
  if (kernel) {
    Confinement wanted = confinement_of(field<bool>(L, 2, "gpu").value_or(false), network);
    if ((field<bool>(L, 2, "elastic").value_or(false) || lookup("HETRUN_MEMORY")) &&
        host.secret_problem == nullptr) {
      const std::string memory = memory_folder(lookup, host.secret.value_or(""));
      if (!memory.empty() && (mkdir(memory.c_str(), 0700) == 0 || errno == EEXIST))
        wanted.writes.push_back(memory);
    }
    confine(wanted);
  }
  host.files = host.access = std::move(access);
  return 0;
}

// native.limit_prompt({reads, writes}): io.open at the prompt opens files of the current folder, and these.
int limit_prompt(lua_State* L) {
  if (!lua_istable(L, 1)) wrong_argument(L, 1, "a table");
  auto files = std::make_shared<RecipeFiles>(std::vector<std::string>{});
  files->grant_current_folder();
  for (const std::string& path : list_at(L, 1, "reads")) files->grant(path, false);
  for (const std::string& path : list_at(L, 1, "writes")) files->grant(path, true);
  host_of(L).prompt_files = std::move(files);
  return 0;
}

int is_confined(lua_State* L) { return Convert<bool>::push(L, host_of(L).access != nullptr); }
// native.limit_memory(bytes): of this process.
void limit(double bytes) { limit_memory(static_cast<int64_t>(std::min(bytes, 0x1p62))); }

// native.grant_option(name, writes): the value of this option of the command line is a path.
int grant_option(lua_State* L) {
  Host& host = host_of(L);
  if (host.access != nullptr)
    host.access->grant_option(Convert<std::string>::get(L, 1), lua_toboolean(L, 2) != 0);
  return 0;
}

int push_walls(lua_State* L) {  // {landlock = version or 0, seccomp, openat2}
  const KernelWalls offered = kernel_walls();
  lua_newtable(L);
  set_field(L, "landlock", static_cast<double>(offered.landlock));
  set_field(L, "seccomp", offered.seccomp);
  set_field(L, "openat2", offered.openat2);
  return 1;
}

}  // namespace

void add_files(lua_State* L) {
  make_class<StreamHandle>(
      L, {bind<&stream_read>("read"), bind<&stream_lines>("lines"), bind<&stream_write>("write"),
          bind<&stream_seek>("seek"), bind<&stream_flush>("flush"), bind<&stream_close>("close"),
          bind<&stream_to_string>("__tostring")});
  set_functions(L, "native.",
                {bind<&read_text>("read_text"),
                 bind<&write_text>("write_text"),
                 bind<&staged>("staged_path"),
                 bind<&commit>("commit_staged"),
                 bind<&drop>("drop_staged"),
                 bind<&remove_it>("remove_file"),
                 bind<&append>("append"),
                 bind<&make>("make_folder"),
                 bind<&read_module>("read_module"),
                 bind<&is_module>("is_module"),
                 bind<&try_folder>("try_folder"),
                 bind<&path_kind>("path_kind"),
                 bind<&folder_names>("folder_names"),
                 bind<&path_problem>("path_problem"),
                 bind<&real_path>("resolve"),
                 bind<&open_file>("open_file"),
                 bind<&confine_recipe>("confine"),
                 bind<&is_confined>("confined"),
                 bind<&limit>("limit_memory"),
                 bind<&cache_read>("cache_read"),
                 bind<&cache_write>("cache_write"),
                 bind<&limit_prompt>("limit_prompt"),
                 bind<&grant_option>("grant_option"),
                 bind<&push_walls>("kernel_walls"),
                 bind<&walls>("walls")});
}

}  // namespace het::lua
