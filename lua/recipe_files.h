// What files a recipe may reach. Recipes are shared between strangers, so this is the whole list, and the
// page "What a recipe may do" of recipes/README.md says the same in words:
//
//   reads   Lua modules beside it (`require`); as data: what lies beside it, runs/, and text of the system
//           (/usr/include, /usr/share); what the person names on the command line, by an option that the
//           recipe declares with path = "read" or by --allow-read
//   writes  one folder, runs/NAME; what the person names, by an option with path = "write" or
//   --allow-write
//
// Hidden files (names that begin with a dot) are reached only where the person named them. Links are followed
// to read a file that may be read by its name, or a blob that a snapshot of Hugging Face's cache leads
// to; none to a folder, none to write. Each path is opened beneath the folder that was given, by descriptor,
// so that nothing between a check and its use can change where it leads.
//
// Used from several threads. In a confined run these objects live in a process of their own (lua/broker.h).
#pragma once

#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/io/files.h"

namespace het::lua {

// What recipe code may have changed of them, while it runs: both go by the words of the command line alone.
class RecipeAccess : public Files {
 public:
  // The value of option `name` is a path, which the recipe reads or writes. Throws Error(usage) as grant()
  // does.
  virtual void grant_option(const std::string& name, bool writes) = 0;
  // A word of the command line is another Lua file that runs.
  virtual void add_named(const std::string& file) = 0;
};

class RecipeFiles final : public RecipeAccess {
 public:
  // `words`: of the command line, --name=value ones and others; only what they name can be granted later.
  explicit RecipeFiles(std::vector<std::string> words);

  // The folder of a Lua file that runs: a recipe, a cluster file. Of one in /, or in the home folder, only
  // modules.
  void add_recipe(const std::string& file);
  // A file or folder that the person named. Throws Error(usage) for a folder that is too much to give: /, the
  // home folder, one that holds the current one.
  void grant(const std::string& path, bool writes);
  // All of the current folder: of the prompt, where a person types.
  void grant_current_folder();
  // The person lets the run go on with what is saved, or replace it.
  void let_replace() { replaces_ = true; }
  // Ranks that `hetrun --workers` started write in one run folder: `file` holds its name, once one has chosen
  // it.
  void share_run_folder(Descriptor file) { shared_run_ = std::move(file); }

  void grant_option(const std::string& name, bool writes) override;
  void add_named(const std::string& file) override;

  int open(const std::string& path, OpenMode mode, Purpose purpose) override;
  FileKind kind(const std::string& path, Purpose purpose) override;
  int make_folders(const std::string& path) override;
  int rename(const std::string& from, const std::string& to) override;
  int remove(const std::string& path) override;
  int flush_folder_of(const std::string& path) override;
  std::string target(const std::string& path) override { return path; }
  std::string problem(const std::string& path, bool writes, Purpose purpose) override;

 private:
  enum class Reach : uint8_t { granted, recipe, module, system, runs };
  // A file or folder that may be reached. `folder` is what its paths are opened beneath: itself; of a file
  // the folder that it really stands in, where it is called `leaf`; of what is not there yet, the nearest
  // folder that is.
  struct Root {
    Reach reach;
    bool writes = false;
    std::string path;  // absolute, as it was named
    std::string base;  // the path of `folder`
    std::string leaf;
    Descriptor folder;
    // Of a folder that the person named: where it really is; of a snapshot, the blobs that its links lead to.
    std::string real, blobs_path;
    bool is_link = false;
    Descriptor blobs;
  };
  // Where a path leads: a name beneath a folder, or why nowhere.
  struct Place {
    const Root* root = nullptr;
    std::string name, refusal;
  };

  Place find(const std::string& path, bool writes, Purpose purpose);
  Place find_in_runs(const Root& runs, const std::string& wanted, bool writes, Purpose purpose);
  Place find_or_throw(const std::string& path, bool writes, Purpose purpose);
  std::string advice(const std::string& path, const std::string& wanted, bool writes) const;
  std::string refusal(const std::string& path, const std::string& wanted, bool writes, Purpose purpose) const;
  // The one folder of runs/ that this recipe writes to: `name` from now on, or why it cannot be. Asking
  // counts: who asks whether it may write is about to.
  std::string claim(const Root& runs, const std::string& name, Purpose purpose);
  // What a name beneath a root that is read leads to: itself, or where a link that may be followed does.
  struct Target {
    int folder;
    std::string name;
    FileKind kind;
  };
  Target follow(const Root& root, const std::string& name, Purpose purpose);
  int make_own_run(const Root& runs);  // the folder with its mark: 0, or a negative errno
  // Whether this rank's folder is that of all ranks of the machine, which it becomes when none is yet.
  bool agree_on_run(const std::string& name);

  // Grant `named`, absolute, because the person wrote `path`.
  void grant_named(const std::string& path, const std::string& named, bool writes);
  std::string absolute(const std::string& path) const;
  // What a folder holds that is too much to give: "the home folder"; empty: nothing.
  std::string excess(const std::string& folder) const;
  void add_root(Reach reach, const std::string& path, bool writes);

  std::mutex mutex_;
  std::vector<std::string> words_;
  std::string start_;  // the current folder as hetrun was started
  std::vector<Root> roots_;
  std::set<std::string> granted_options_;
  std::string recipe_folder_;           // of the first recipe, for messages
  std::optional<std::string> own_run_;  // NAME of runs/NAME
  bool replaces_ = false;
  Descriptor shared_run_;  // holds that of all ranks of the machine
};

}  // namespace het::lua
