// Profiles of published runs, by model and GPU type. Each file is read once, when it is first used.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/json.h"
#include "planner/measured/files.h"

namespace het::planner {

// A folder of MODEL/TYPE.json or MODEL/TYPE/profile.json, a folder of one model, or one file
// {MODEL: {TYPE: times}}.
class Profiles {
 public:
  // What cannot be read is added to `problems`, as sentences.
  Profiles(std::string path, std::vector<std::string>& problems);

  bool has(const std::string& model) const;
  const std::string& path() const { return path_; }

  // nullptr with the reasons in `problems`. `layers`: how many the model has.
  const TypeTimes* find(const std::string& model, int layers, const std::string& type,
                        std::vector<std::string>& problems);

 private:
  struct Entry {
    bool read = false;
    TypeTimes times;
    std::vector<std::string> problems;
  };
  bool has_folder(const std::string& model) const;
  const Json* of_model(const std::string& model) const;
  void read_combined(Entry& entry, const std::string& model, int layers, const std::string& type) const;
  void read_file(Entry& entry, const std::string& model, int layers, const std::string& type) const;

  std::string path_;
  std::optional<Json> combined_;
  bool flat_ = false;  // it has profiles itself
  std::map<std::pair<std::string, std::string>, Entry> entries_;
};

}  // namespace het::planner
