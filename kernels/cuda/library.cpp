#include "kernels/cuda/library.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <dlfcn.h>
#include <link.h>

#include "core/base/error.h"

namespace het::HET_CUDA {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words_of(const char* variable) {
  std::vector<std::string> words;
  const char* text = std::getenv(variable);
  std::istringstream in(text == nullptr ? "" : text);
  for (std::string word; std::getline(in, word, ':');)
    if (!word.empty()) words.push_back(word);
  return words;
}

// Folders in `parent` whose names begin with `prefix`, the greatest name (the newest version) first.
std::vector<fs::path> folders_in(const fs::path& parent, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code problem;
  for (fs::directory_iterator at(parent, problem), end; !problem && at != end; at.increment(problem))
    if (at->path().filename().string().starts_with(prefix) && fs::is_directory(at->path(), problem))
      found.push_back(at->path());
  std::sort(found.rbegin(), found.rend());
  return found;
}

// Where pip puts NVIDIA's wheels, below a Python's prefix: lib/python3.11/site-packages/nvidia/cublas/lib.
void add_wheels(const fs::path& prefix, std::vector<fs::path>& folders) {
  for (const fs::path& python : folders_in(prefix / "lib", "python3"))
    for (const char* packages : {"site-packages", "dist-packages"})
      for (const fs::path& package : folders_in(python / packages / "nvidia", ""))
        folders.push_back(package / "lib");
}

OpenLibrary open_at(const std::string& name) {
  OpenLibrary found;
  found.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (found.handle == nullptr) {
    found.problem = dlerror();
    return found;
  }
  link_map* map = nullptr;
  found.path = dlinfo(found.handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : name;
  return found;
}

}  // namespace

std::vector<std::string> library_folders() {
  std::vector<fs::path> folders;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    for (const std::string& home : words_of(variable)) {
      folders.push_back(fs::path(home) / "lib64");
      folders.push_back(fs::path(home) / "lib");
    }
  for (const fs::path& toolkit : folders_in("/usr/local", "cuda")) folders.push_back(toolkit / "lib64");
  std::vector<fs::path> prefixes;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    for (const std::string& prefix : words_of(variable)) prefixes.emplace_back(prefix);
  for (const std::string& bin : words_of("PATH")) prefixes.push_back(fs::path(bin).parent_path());
  if (const char* home = std::getenv("HOME")) prefixes.push_back(fs::path(home) / ".local");
  for (const fs::path& prefix : prefixes) add_wheels(prefix, folders);

  std::vector<std::string> existing;
  for (const fs::path& folder : folders) {
    std::error_code problem;
    if (!fs::is_directory(folder, problem)) continue;
    if (std::find(existing.begin(), existing.end(), folder.string()) == existing.end())
      existing.push_back(folder.string());
  }
  return existing;
}

OpenLibrary open_library(const std::string& file) {
  std::string unusable;  // the first file that is there and cannot be opened
  const auto try_folder = [&](const std::string& folder) {
    const std::string path = folder + "/" + file;
    std::error_code problem;
    if (!fs::exists(path, problem)) return OpenLibrary{};
    OpenLibrary found = open_at(path);
    if (found.handle == nullptr && unusable.empty()) unusable = found.problem;
    return found;
  };
  for (const std::string& folder : words_of("HETRUN_CUDA_LIBRARIES"))
    if (OpenLibrary found = try_folder(folder); found.handle != nullptr) return found;
  if (OpenLibrary found = open_at(file); found.handle != nullptr) return found;
  for (const std::string& folder : library_folders())
    if (OpenLibrary found = try_folder(folder); found.handle != nullptr) return found;
  OpenLibrary none;
  none.problem =
      unusable.empty()
          ? fmt::format(
                "{} was not found on the library path, in a CUDA toolkit or in a Python environment; "
                "HETRUN_CUDA_LIBRARIES names the folder where it is",
                file)
          : fmt::format("{} cannot be opened: {}", file, unusable);
  return none;
}

}  // namespace het::HET_CUDA
