#include "planner/measured/profiles.h"

#include <filesystem>

#include <fmt/format.h>

#include "core/base/error.h"

namespace het::planner {
namespace {

void missing(std::vector<std::string>& problems, const std::string& in, const std::string& type,
             const std::vector<std::string>& there) {
  problems.push_back(fmt::format("{}: no profile of GPU type \"{}\"; there are {}", in, type,
                                 there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", "))));
}

}  // namespace

Profiles::Profiles(std::string path, std::vector<std::string>& problems) : path_(std::move(path)) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path_, ignored)) {
    try {
      combined_ = read_json(path_);
      if (!combined_->is_object()) problems.push_back(path_ + ": is no JSON object");
    } catch (const Error& error) {
      problems.push_back(fmt::format("{}: {}", path_, error.sentence()));
      combined_ = Json();
    }
  } else {
    flat_ = !json_files(path_, problems).empty();
  }
}

bool Profiles::has(const std::string& model) const {
  return combined_ ? of_model(model) != nullptr : flat_ || has_folder(model);
}

const TypeTimes* Profiles::find(const std::string& model, int layers, const std::string& type,
                                std::vector<std::string>& problems) {
  Entry& entry = entries_[{model, type}];
  if (!entry.read) {
    entry.read = true;
    combined_ ? read_combined(entry, model, layers, type) : read_file(entry, model, layers, type);
  }
  problems.insert(problems.end(), entry.problems.begin(), entry.problems.end());
  return entry.problems.empty() ? &entry.times : nullptr;
}

bool Profiles::has_folder(const std::string& model) const {
  std::error_code ignored;
  return std::filesystem::is_directory(path_ + "/" + model, ignored);
}

const Json* Profiles::of_model(const std::string& model) const {
  const Json* found = combined_->is_object() ? find_member(*combined_, model) : nullptr;
  return found != nullptr && found->is_object() ? found : nullptr;
}

void Profiles::read_combined(Entry& entry, const std::string& model, int layers,
                             const std::string& type) const {
  const Json* types = of_model(model);
  if (types == nullptr) return missing(entry.problems, path_, type, {});
  if (const Json* found = find_member(*types, type))
    entry.times = type_times(*found, fmt::format("{}, {}, {}", path_, model, type), layers, entry.problems);
  else {
    std::vector<std::string> there;
    for (const auto& [name, times] : *as_object(*types)) there.push_back(name);
    missing(entry.problems, fmt::format("{}, {}", path_, model), type, there);
  }
}

void Profiles::read_file(Entry& entry, const std::string& model, int layers, const std::string& type) const {
  const std::string in = has_folder(model) ? path_ + "/" + model : path_;
  std::error_code ignored;
  // A type comes from a plan's file: it names a file of this folder and nothing else.
  if (type.find_first_of("/\\") == std::string::npos)
    for (const std::string& path : {in + "/" + type + ".json", in + "/" + type + "/profile.json"})
      if (std::filesystem::exists(path, ignored)) {
        entry.times = read_type_times(path, layers, entry.problems);
        return;
      }
  std::vector<std::string> there, unread;
  for (const std::string& file : nested_json_files(in, unread)) {
    const std::filesystem::path at = file;
    if (at.parent_path() == std::filesystem::path(in))
      there.push_back(at.stem().string());
    else if (at.filename() == "profile.json")
      there.push_back(at.parent_path().filename().string());
  }
  missing(entry.problems, in, type, there);
}

}  // namespace het::planner
