// hetrun: run a recipe, a command, or the prompt. Every error ends here as one sentence and an exit code.
#include <csignal>
#include <cstdio>
#include <iostream>
#include <new>

#include "core/base/units.h"
#include "core/io/file.h"
#include "lua/cli.h"
#include "lua/interrupt.h"
#include "lua/launch.h"
#include "lua/prompt.h"
#include "lua/state.h"

namespace {

bool is_file(const std::string& path) {
  if (FILE* file = std::fopen(path.c_str(), "r")) {
    std::fclose(file);
    return true;
  }
  return false;
}

// The words of the command line that each worker is started with.
std::vector<std::string> without_workers(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--workers")
      ++i;
    else if (!word.starts_with("--workers="))
      words.push_back(word);
  }
  return words;
}

// `--worker 2 recipe.lua`: the 2 would be taken for the recipe.
void refuse_misspelt_option(const het::lua::CommandLine& line) {
  for (const std::string& word : line.settings.arguments)
    if (word.find('=') == std::string::npos && het::lua::resembles_option(word))
      het::lua::fail_unknown_option(word);
}

int run(int argc, char** argv) {
  using namespace het::lua;
  const CommandLine line = parse_command_line(argc, argv);
  if (line.exit_code) return *line.exit_code;
  if (line.settings.workers > 0) {
    if (line.command.empty()) het::fail_usage("--workers {} needs a recipe to run", line.settings.workers);
    const bool profiles = line.command == "profile" && !line.arguments.empty();
    for (const Subcommand& sub : subcommands())
      if (line.command == sub.name && !profiles)
        het::fail_usage("--workers {} runs a recipe in several processes; '{}' is a command, not a recipe",
                        line.settings.workers, line.command);
    refuse_misspelt_option(line);
    const std::string& recipe = profiles ? line.arguments[0] : line.command;
    if (!is_file(recipe)) het::read_file(recipe);  // says why, and the nearest name
    return launch(line.settings.workers, without_workers(argc, argv));
  }
  install_interrupt_handler();
  State state(line.settings);
  if (line.command.empty()) return run_prompt(state, line.settings);
  std::vector<std::string> names;
  for (const Subcommand& sub : subcommands()) {
    if (line.command == sub.name) return state.call_program(sub.name, line.arguments);
    names.emplace_back(sub.name);
  }
  if (!is_file(line.command)) refuse_misspelt_option(line);
  if (!line.command.ends_with(".lua") && !is_file(line.command)) {
    const std::string nearest = het::nearest_name(line.command, names);
    het::fail_usage("'{}' is neither a recipe nor a command; {} (hetrun --help)", line.command,
                    nearest.empty() ? fmt::format("commands are {}", fmt::join(names, ", "))
                                    : fmt::format("did you mean '{}'?", nearest));
  }
  if (!line.arguments.empty())
    het::fail_usage("'{}' follows the recipe; options of a recipe are written --name=value",
                    line.arguments[0]);
  return state.run_recipe(line.command);
}

}  // namespace

int main(int argc, char** argv) {
  // A file that meets the limit on file sizes shall give an error, the previous file kept, and not end the
  // program.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const het::Error& error) {
    std::cout.flush();
    std::cerr << "hetrun: " << error.what() << '\n';
    return static_cast<int>(error.kind());
  } catch (const std::bad_alloc&) {
    std::cerr << "hetrun: " << het::out_of_memory().what() << '\n';
    return static_cast<int>(het::ErrorKind::environment);
  } catch (const std::exception& error) {
    std::cerr << "hetrun: unexpected failure: " << error.what() << '\n';
    return static_cast<int>(het::ErrorKind::bug);
  }
}
