#include "lua/recipe_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "snapshot/snapshot.h"

namespace het::lua {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRuns = "runs";
// Marks a folder of runs/ as one that hetrun made. Hidden, so that recipe code does not reach it.
constexpr const char* kMark = ".hetrun";

// Is `path` the folder, or something in it? What of it lies below, else.
std::optional<std::string> below(const std::string& path, const std::string& folder) {
  if (path == folder) return "";
  const std::string start = folder == "/" ? folder : folder + "/";
  if (!path.starts_with(start)) return std::nullopt;
  return path.substr(start.size());
}

bool has_hidden_part(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    if (name[begin] == '.') return true;
    const size_t slash = name.find('/', begin);
    if (slash == std::string::npos) break;
    begin = slash + 1;
  }
  return false;
}

// What an atomic write puts beside a file: "x" of "x", of its staged and unfinished files, and of those of a
// staged one.
std::string_view without_stage(std::string_view name) {
  while (const auto bare = name_of_staged(name) ? name_of_staged(name) : name_of_unfinished(name))
    name = *bare;
  return name;
}

// The files of a saved run: recipe code reads them through the library alone.
bool is_of_a_run(const std::string& name) {
  const std::string file = fs::path(name).filename().string();
  const std::string_view bare = without_stage(file);
  static constexpr std::array<std::string_view, 4> kNames{"config.json", "vocabulary.json",
                                                          "model.safetensors.index.json", kSavedSnapshot};
  return bare.ends_with(".safetensors") || std::find(kNames.begin(), kNames.end(), bare) != kNames.end();
}

// Whether a word of the command line is an option that names this file with code of recipes. --plan may name
// several, with commas between them.
bool names_code(const std::string& word, const std::string& file) {
  for (const std::string option : {"--cluster=", "--old=", "--plan=", "--policy="}) {
    if (!word.starts_with(option)) continue;
    const std::string files = word.substr(option.size());
    if (files == file) return true;
    return option == "--plan=" && ("," + files + ",").find("," + file + ",") != std::string::npos &&
           file.find(',') == std::string::npos;
  }
  return false;
}

Descriptor open_folder(const std::string& path) {
  return Descriptor(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

FileKind kind_at(int folder, const std::string& name) {
  const Descriptor file(open_beneath(folder, name, O_PATH));
  struct stat status {};
  if (file.number() == -ELOOP || file.number() == -EXDEV) return FileKind::link;
  if (file.number() < 0 || fstat(file.number(), &status) != 0) return FileKind::none;
  if (S_ISREG(status.st_mode)) return FileKind::file;
  return S_ISDIR(status.st_mode) ? FileKind::folder : FileKind::other;
}

// The folder that a name beneath `root` stands in, and its last part: what renaming and removing take.
struct Parent {
  Parent(int root, const std::string& path) {
    const size_t slash = path.rfind('/');
    name = slash == std::string::npos ? path : path.substr(slash + 1);
    folder = Descriptor(
        open_beneath(root, slash == std::string::npos ? "" : path.substr(0, slash), O_PATH | O_DIRECTORY));
  }
  Descriptor folder;
  std::string name;
};

// Make the folder `name` beneath an open one, and those that it lies in: 0, or a negative errno.
int make_beneath(int root, const std::string& name) {
  for (size_t end = 0; end < name.size();) {
    end = std::min(name.find('/', end + 1), name.size());
    const Parent at(root, name.substr(0, end));
    if (!at.folder) return at.folder.number();
    if (mkdirat(at.folder.number(), at.name.c_str(), 0777) != 0 && errno != EEXIST) return -errno;
  }
  return kind_at(root, name) == FileKind::folder ? 0 : -ENOTDIR;
}

// What the link `name` beneath an open folder says; nothing when it is none.
std::optional<std::string> read_link(int folder, const std::string& name) {
  const Parent at(folder, name);
  std::string text(PATH_MAX, '\0');
  const ssize_t bytes = readlinkat(at.folder.number(), at.name.c_str(), text.data(), text.size());
  if (bytes <= 0) return std::nullopt;
  text.resize(static_cast<size_t>(bytes));
  return text;
}

std::string link_sentence(const std::string& path, bool writes) {
  if (writes) return fmt::format("'{}' is a link, or lies behind one; recipes write through none", path);
  return fmt::format(
      "'{}' is a link, or lies behind one; recipes follow links to files that they may read: name the file "
      "that it "
      "leads to, or its folder with --allow-read",
      path);
}
[[noreturn]] void fail_link(const std::string& path, bool writes) {
  throw Error(ErrorKind::usage, link_sentence(path, writes));
}

}  // namespace

RecipeFiles::RecipeFiles(std::vector<std::string> words)
    : words_(std::move(words)), start_(fs::current_path().string()) {
  add_root(Reach::system, "/usr/include", false);
  add_root(Reach::system, "/usr/share", false);
  add_root(Reach::runs, absolute(std::string(kRuns)), true);
}

// Only the text decides which folder a path is looked up in; what it leads to is the kernel's to say.
std::string RecipeFiles::absolute(const std::string& path) const {
  std::string normal = (fs::path(start_) / path).lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

void RecipeFiles::add_root(Reach reach, const std::string& path, bool writes) {
  Root root{reach, writes, path, path, {}, open_folder(path)};
  struct stat status {};
  std::error_code problem;
  // runs/ is not named by the user: where it is a link, a stranger may have put it there.
  root.is_link = reach == Reach::runs && fs::is_symlink(path, problem);
  if (!root.folder &&
      stat(path.c_str(), &status) == 0) {  // a file, by a link perhaps: a person's are followed
    const fs::path real = fs::canonical(path, problem);
    root.leaf = real.filename().string();
    root.base = real.parent_path().string();
    root.folder = open_folder(root.base);
  }
  while (!root.folder && root.base.size() > 1) {
    root.base = fs::path(root.base).parent_path().string();
    root.folder = open_folder(root.base);
  }
  if (reach != Reach::runs && root.folder && root.base == path)
    root.real = fs::canonical(path, problem).string();
  if (reach == Reach::granted && !root.real.empty()) {
    // .../models--NAME/snapshots/REVISION, whose files are links to .../models--NAME/blobs.
    const fs::path snapshots = fs::path(root.real).parent_path(), repository = snapshots.parent_path();
    const std::string name = repository.filename().string();
    if (snapshots.filename() == "snapshots" &&
        (name.starts_with("models--") || name.starts_with("datasets--"))) {
      const Descriptor above = open_folder(repository.string());
      root.blobs_path = (repository / "blobs").string();
      root.blobs = Descriptor(above ? open_beneath(above.number(), "blobs", O_PATH | O_DIRECTORY) : -1);
    }
  }
  // What the person named goes before what recipes reach anyway: there a link may be named.
  roots_.insert(reach == Reach::granted ? roots_.begin() : roots_.end(), std::move(root));
}

std::string RecipeFiles::excess(const std::string& folder) const {
  std::error_code ignored;
  const std::string real = fs::weakly_canonical(folder, ignored).string();
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0' && below(fs::weakly_canonical(home, ignored).string(), real))
    return "the home folder";
  return real == "/" ? "all files" : "";
}

void RecipeFiles::add_recipe(const std::string& file) {
  const std::lock_guard lock(mutex_);
  const std::string folder = fs::path(absolute(file)).parent_path().string();
  if (recipe_folder_.empty()) recipe_folder_ = folder;
  add_root(Reach::recipe, absolute(file), false);  // a link perhaps, which the person named
  add_root(excess(folder).empty() ? Reach::recipe : Reach::module, folder, false);
}

void RecipeFiles::grant(const std::string& path, bool writes) {
  if (path.empty()) return;
  const std::string named = absolute(path);
  grant_named(path, named, writes);
  if (writes) return;
  // Megatron's token files are two: name.bin and name.idx, called by either name or without an ending.
  const auto is_file = [](const std::string& file) {
    std::error_code ignored;
    return fs::is_regular_file(file, ignored);
  };
  const std::string prefix = named.ends_with(".bin") ? named.substr(0, named.size() - 4) : named;
  if (!is_file(prefix + ".bin") || !is_file(prefix + ".idx")) return;
  for (const char* ending : {".bin", ".idx"}) grant_named(path, prefix + ending, false);
}

void RecipeFiles::grant_named(const std::string& path, const std::string& named, bool writes) {
  std::error_code ignored;
  std::string too_much = excess(named);
  if (too_much.empty() && below(start_, fs::weakly_canonical(named, ignored).string()))
    too_much = "the current folder";
  if (!too_much.empty())
    fail_usage("'{}' is too much to give to a recipe: it holds {}; name a file, or another folder", path,
               too_much);
  const std::string real = fs::weakly_canonical(named, ignored).string();
  if (!real.empty() && has_hidden_part(real.substr(1)) && !has_hidden_part(named.substr(1)))
    fail_usage("'{}' is a link to {}, which is hidden; name that, if the recipe should have it", path, real);
  const std::lock_guard lock(mutex_);
  add_root(Reach::granted, named, writes);
}

void RecipeFiles::grant_current_folder() {
  const std::lock_guard lock(mutex_);
  add_root(Reach::granted, start_, true);
}

void RecipeFiles::grant_option(const std::string& name, bool writes) {
  // The first time decides: what is read is not written later.
  if (!granted_options_.insert(name).second) return;
  for (const std::string& word : words_) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || !word.starts_with("--")) continue;
    std::string option = word.substr(2, equals - 2);
    std::replace(option.begin(), option.end(), '-', '_');
    if (option == name) grant(word.substr(equals + 1), writes);
  }
}

void RecipeFiles::add_named(const std::string& file) {
  for (const std::string& word : words_)
    if (names_code(word, file)) {
      grant(file, false);
      return add_recipe(file);
    }
  fail_usage("'{}' is not named on the command line", file);
}

RecipeFiles::Place RecipeFiles::find(const std::string& path, bool writes, Purpose purpose) {
  if (path.empty()) return {nullptr, {}, "an empty path names no file"};
  if (path.find('\0') != std::string::npos) return {nullptr, {}, "a path with a NUL byte names no file"};
  const std::string wanted = absolute(path);
  const auto allowed = [&](const Root& root) {
    if (writes && !root.writes) return false;
    if (root.reach == Reach::granted) return true;
    if (purpose == Purpose::module) return root.reach == Reach::recipe || root.reach == Reach::module;
    return purpose == Purpose::data && root.reach != Reach::module;
  };
  Place last;
  for (const Root& root : roots_) {
    auto rest = below(wanted, root.path);
    if (!rest && !root.real.empty() && !writes) rest = below(wanted, root.real);  // as links name it
    // What is staged beside a file that is written. A folder that is there has none.
    const bool staged = !rest && writes && purpose != Purpose::own && without_stage(wanted) == root.path &&
                        (root.base != root.path);
    if (!rest && !staged) continue;
    if (root.reach == Reach::runs) {
      Place place = find_in_runs(root, wanted, writes, purpose);
      if (place.root != nullptr) return place;
      if (last.refusal.empty()) last = std::move(place);
    } else if (!allowed(root)) {
      continue;
    } else if (rest && has_hidden_part(*rest)) {
      last.refusal =
          fmt::format("'{}' is hidden (a name that begins with a dot); recipes reach no hidden files", path);
    } else if (writes && purpose == Purpose::own && is_of_a_run(wanted)) {
      last.refusal = fmt::format("'{}' belongs to a saved model; recipe code writes other files", path);
    } else if (root.leaf.empty()) {
      return {&root, root.base == root.path ? *rest : *below(wanted, root.base), {}};
    } else if (staged || rest->empty()) {
      return {&root, root.leaf + wanted.substr(root.path.size()), {}};
    }
  }
  if (last.refusal.empty()) last.refusal = refusal(path, wanted, writes, purpose);
  return last;
}

RecipeFiles::Place RecipeFiles::find_in_runs(const Root& runs, const std::string& wanted, bool writes,
                                             Purpose purpose) {
  const std::string rest = below(wanted, runs.path).value_or("");
  if (rest.empty() || purpose == Purpose::module || has_hidden_part(rest) || !runs.leaf.empty()) return {};
  const std::string name = rest.substr(0, rest.find('/'));
  Place place{nullptr, *below(wanted, runs.base), {}};
  if (runs.is_link) {
    place.refusal =
        fmt::format("runs is a link, which recipes do not follow; --allow-{0}=runs/{1} names the folder",
                    writes ? "write" : "read", name);
    return place;
  }
  if (writes)
    place.refusal = claim(runs, name, purpose);
  else if (purpose == Purpose::own && own_run_ != name)
    place.refusal =
        fmt::format("'runs/{}': recipe code opens files of its run folder and those that options name", rest);
  if (place.refusal.empty() && writes && purpose == Purpose::own && is_of_a_run(rest))
    place.refusal = fmt::format("'runs/{}' belongs to the saved model; recipe code writes other files", rest);
  if (place.refusal.empty()) place.root = &runs;
  return place;
}

std::string RecipeFiles::claim(const Root& runs, const std::string& name, Purpose purpose) {
  if (own_run_ == name) return {};
  if (own_run_)
    return fmt::format("this recipe writes in runs/{}, and a recipe has one run folder: not runs/{}",
                       *own_run_, name);
  const FileKind found = kind_at(runs.folder.number(), *below(runs.path + "/" + name, runs.base));
  if (found == FileKind::link)
    return fmt::format("runs/{} is a link, and recipes follow none; another folder works", name);
  if (found == FileKind::file || found == FileKind::other)
    return fmt::format("runs/{} is a file; a folder is wanted", name);
  if (found == FileKind::folder) {
    const std::vector<FolderEntry> entries = list_folder(runs.path + "/" + name);
    const auto holds = [&](const char* file) {
      return std::any_of(entries.begin(), entries.end(),
                         [&](const FolderEntry& entry) { return entry.name == file; });
    };
    if (purpose == Purpose::own && !replaces_ && holds(kSavedSnapshot))
      return fmt::format(
          "runs/{} holds the model of an earlier run; --resume goes on with it, --overwrite replaces it, "
          "another "
          "folder keeps both",
          name);
    if (!entries.empty() && !holds(kMark) && !holds(kSavedSnapshot))
      return fmt::format(
          "runs/{} holds files that no run of hetrun wrote; another folder works, or name this one on the "
          "command line: --allow-write=runs/{}",
          name, name);
  }
  if (!agree_on_run(name))  // or the agreement cannot be read
    return fmt::format(
        "another rank of this run writes in another folder of runs/, and they share one: not runs/{}", name);
  own_run_ = name;
  return {};
}

bool RecipeFiles::agree_on_run(const std::string& name) {
  if (!shared_run_) return true;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  const int file = shared_run_.number();
  if (fcntl(file, F_SETLKW, &lock) != 0) return false;
  std::string chosen(NAME_MAX + 1, '\0');
  const ssize_t bytes = pread(file, chosen.data(), chosen.size(), 0);
  bool agreed = bytes == 0 && pwrite(file, name.data(), name.size(), 0) == static_cast<ssize_t>(name.size());
  if (bytes > 0) agreed = std::string_view(chosen).substr(0, static_cast<size_t>(bytes)) == name;
  lock.l_type = F_UNLCK;
  fcntl(file, F_SETLK, &lock);
  return agreed;
}

int RecipeFiles::make_own_run(const Root& runs) {
  const std::string name = *below(runs.path + "/" + *own_run_, runs.base);
  if (const int error = make_beneath(runs.folder.number(), name)) return error;
  const Descriptor mark(open_beneath(runs.folder.number(), name + "/" + kMark, O_WRONLY | O_CREAT));
  return std::min(0, mark.number());
}

RecipeFiles::Target RecipeFiles::follow(const Root& root, const std::string& name, Purpose purpose) {
  const Target itself{root.folder.number(), name, kind_at(root.folder.number(), name)};
  if (itself.kind != FileKind::link) return itself;
  const auto text = read_link(root.folder.number(), name);
  if (!text || (purpose == Purpose::module && !text->ends_with(".lua"))) return itself;
  const fs::path folder = fs::path(root.real.empty() ? root.base : root.real) / fs::path(name).parent_path();
  const std::string leads = (folder / *text).lexically_normal().string();
  const auto file_at = [&](int beneath, const std::string& at) {
    const FileKind kind = beneath < 0 ? FileKind::none : kind_at(beneath, at);
    return kind == FileKind::file ? Target{beneath, at, kind} : itself;
  };
  if (const auto blob = below(leads, root.blobs_path); blob && root.blobs)
    return file_at(root.blobs.number(), *blob);
  const Place place = find(leads, false, purpose);
  return place.root == nullptr ? itself : file_at(place.root->folder.number(), place.name);
}

// What a person who wants the recipe to have a file can do. What is hidden, or too much, is not offered: who
// asks for it may be a stranger.
std::string RecipeFiles::advice(const std::string& path, const std::string& wanted, bool writes) const {
  if (has_hidden_part(wanted.substr(1)) || !excess(wanted).empty() || below(start_, wanted)) return "";
  return fmt::format(", as by --allow-{}={}", writes ? "write" : "read", path);
}

std::string RecipeFiles::refusal(const std::string& path, const std::string& wanted, bool writes,
                                 Purpose purpose) const {
  if (recipe_folder_.empty())
    return fmt::format("'{}' lies outside the current folder {}; hetrun --trust opens any file", path,
                       start_);
  if (writes)
    return fmt::format(
        "the recipe asks to write '{}'; recipes write in one folder, runs/NAME, or where the command line "
        "says{}",
        path, advice(path, wanted, true));
  if (purpose == Purpose::own)
    return fmt::format(
        "the recipe asks to open '{}'; recipe code opens files of its run folder and those that the command "
        "line "
        "names{}",
        path, advice(path, wanted, false));
  const std::string beside = (fs::path(recipe_folder_) / path).lexically_normal().string();
  std::error_code ignored;
  if (const std::string held = excess(recipe_folder_); !held.empty() && below(wanted, recipe_folder_))
    return fmt::format(
        "the recipe asks to read '{}' and lies in {}, which holds {}: there, it reads what the command line "
        "names{}",
        path, recipe_folder_, held, advice(path, wanted, false));
  if (beside != wanted && path[0] != '/' && below(beside, recipe_folder_) && fs::exists(beside, ignored))
    return fmt::format(
        "there is no '{}': paths are relative to the current folder, so it is {}; for the one in the "
        "recipe's folder: "
        "cd {}",
        path, wanted, recipe_folder_);
  return fmt::format(
      "the recipe asks to read '{}', outside its folder {}; recipes read there what the command line names{}",
      path, recipe_folder_, advice(path, wanted, false));
}

RecipeFiles::Place RecipeFiles::find_or_throw(const std::string& path, bool writes, Purpose purpose) {
  Place place = find(path, writes, purpose);
  if (place.root == nullptr) throw Error(ErrorKind::usage, place.refusal);
  return place;
}

std::string RecipeFiles::problem(const std::string& path, bool writes, Purpose purpose) {
  const std::lock_guard lock(mutex_);
  const Place place = find(path, writes, purpose);
  if (place.root == nullptr) return place.refusal;
  const FileKind kind = writes ? kind_at(place.root->folder.number(), place.name)
                               : follow(*place.root, place.name, purpose).kind;
  return kind == FileKind::link ? link_sentence(path, writes) : "";
}

int RecipeFiles::open(const std::string& path, OpenMode mode, Purpose purpose) {
  const std::lock_guard lock(mutex_);
  const bool writes = mode == OpenMode::replace || mode == OpenMode::append;
  const Place place = find_or_throw(path, writes, purpose);
  if (!place.root->folder) return -ENOENT;
  if (writes && place.root->reach == Reach::runs)
    if (const int error = make_own_run(*place.root)) return error;
  // Looked at before it is opened: opening a FIFO waits, and opening a device does what the device does.
  const int own = place.root->folder.number();
  const auto [folder, name, kind] =
      writes ? Target{own, place.name, kind_at(own, place.name)} : follow(*place.root, place.name, purpose);
  if (kind == FileKind::link) fail_link(path, writes);
  if (place.root->reach == Reach::recipe && !writes) {
    if (mode == OpenMode::read && purpose == Purpose::module && !path.ends_with(".lua"))
      fail_usage("'{}' is not a Lua module", path);
    // A recipe may lie among all that a person has. Only the library lists it, for the nearest name.
    if (mode == OpenMode::folder && purpose == Purpose::data && absolute(path) == place.root->path)
      fail_usage("'{}' is the recipe's whole folder, which is not read; name a file or a folder in it", path);
  }
  if (kind == FileKind::other) fail_usage("'{}' is not a regular file; recipes open no others", path);
  if (kind == FileKind::none && !writes) return -ENOENT;
  int flags = O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
  switch (mode) {
    case OpenMode::read: flags |= O_RDONLY; break;
    case OpenMode::folder: flags |= O_RDONLY | O_DIRECTORY; break;
    case OpenMode::replace: flags |= O_WRONLY | O_CREAT | O_TRUNC; break;
    case OpenMode::append: flags |= O_WRONLY | O_CREAT | O_APPEND; break;
  }
  unsigned permissions = 0666;
  if (mode == OpenMode::replace && purpose == Purpose::own && kind == FileKind::file) {
    // Another file in its place: cut short, it would fault where the library has it mapped.
    const Parent at(folder, name);
    struct stat status {};
    if (!at.folder) return at.folder.number();
    if (fstatat(at.folder.number(), at.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
      permissions = status.st_mode & 0777;
    if (unlinkat(at.folder.number(), at.name.c_str(), 0) != 0 && errno != ENOENT) return -errno;
    flags = (flags & ~O_TRUNC) | O_EXCL;
  }
  const int opened = open_beneath(folder, name, flags, permissions);
  if (opened == -ELOOP || opened == -EXDEV) fail_link(path, writes);
  return opened;
}

FileKind RecipeFiles::kind(const std::string& path, Purpose purpose) {
  const std::lock_guard lock(mutex_);
  Place place = find(path, false, purpose);
  if (place.root == nullptr && !path.empty()) {  // the folder of what may be written
    const std::string wanted = absolute(path);
    for (const Root& root : roots_) {
      const bool is_runs = root.reach == Reach::runs && wanted == root.path;
      if (is_runs || (root.reach == Reach::granted && fs::path(root.path).parent_path() == wanted))
        return below(wanted, root.base) ? kind_at(root.folder.number(), *below(wanted, root.base))
                                        : FileKind::folder;
    }
  }
  if (place.root == nullptr || place.root->folder.number() < 0) return FileKind::none;
  const FileKind found = follow(*place.root, place.name, purpose).kind;
  return found == FileKind::link ? FileKind::none : found;
}

int RecipeFiles::make_folders(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const Place place = find_or_throw(path, true, Purpose::data);
  if (place.root->reach == Reach::runs)
    if (const int made = make_own_run(*place.root)) return made;
  const int error = make_beneath(place.root->folder.number(), place.name);
  if (error == -ELOOP) fail_link(path, true);
  return error;
}

int RecipeFiles::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  const Place a = find_or_throw(from, true, Purpose::data), b = find_or_throw(to, true, Purpose::data);
  const Parent source(a.root->folder.number(), a.name), target(b.root->folder.number(), b.name);
  if (!source.folder || !target.folder) return std::min(source.folder.number(), target.folder.number());
  const int failed =
      renameat(source.folder.number(), source.name.c_str(), target.folder.number(), target.name.c_str());
  return failed != 0 ? -errno : 0;
}

int RecipeFiles::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const Place place = find_or_throw(path, true, Purpose::data);
  const Parent at(place.root->folder.number(), place.name);
  if (at.folder.number() < 0) return at.folder.number();
  return unlinkat(at.folder.number(), at.name.c_str(), 0) != 0 ? -errno : 0;
}

int RecipeFiles::flush_folder_of(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const Place place = find_or_throw(path, true, Purpose::data);
  const Parent at(place.root->folder.number(), place.name);
  if (!at.folder) return at.folder.number();
  return flush_folder(Descriptor(open_beneath(at.folder.number(), "", O_RDONLY | O_DIRECTORY)));
}

}  // namespace het::lua
