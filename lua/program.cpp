#include "lua/program.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>

#include <sys/prctl.h>
#include <unistd.h>

#include "core/base/nearest.h"
#include "core/base/visible.h"
#include "core/cluster/environment.h"
#include "core/cluster/secret.h"
#include "core/io/file.h"
#include "lua/cli.h"
#include "lua/interrupt.h"
#include "lua/launch.h"
#include "lua/prompt.h"
#include "lua/state.h"

namespace het::lua {
namespace {

constexpr int kInterruptedExitCode = 130;

bool is_file(const std::string& path) {
  if (FILE* file = std::fopen(path.c_str(), "r")) {
    std::fclose(file);
    return true;
  }
  return false;
}

// The words of the command line that each rank is started with: not those for the launcher.
std::vector<std::string> words_of_ranks(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string name = word.substr(0, word.find('='));
    if (name == "--workers" || name == "--listen" || name == "--chaos")
      i += word == name ? 1 : 0;  // its value is a separate word
    else if (name != "--respawn")
      words.push_back(word);
  }
  return words;
}

LaunchOptions launch_options(const Settings& settings, int argc, char** argv) {
  LaunchOptions options;
  options.workers = std::max(1, settings.workers);
  options.words = words_of_ranks(argc, argv);
  options.elastic = settings.elastic;
  options.respawn = settings.respawn;
  options.chaos = settings.chaos;
  options.quiet = settings.quiet;
  options.listen = settings.listen;
  options.join = settings.join;
  // Ranks of other machines know it, too, and the next run of this name.
  const EnvironmentLookup lookup = process_environment();
  options.etcd = !settings.rendezvous.empty() || lookup("HETRUN_RENDEZVOUS");
  const bool shared = !settings.listen.empty() || !settings.join.empty();
  const bool is_there =
      lookup("HETRUN_SECRET") || lookup("HETRUN_SECRET_FILE") || !settings.secret_file.empty();
  if (shared || (settings.elastic && is_there && options.etcd)) {
    const std::string file =
        settings.secret_file.empty() ? lookup("HETRUN_SECRET_FILE").value_or("") : settings.secret_file;
    options.secret = load_secret(lookup, file);
  }
  return options;
}

// `--worker 2 recipe.lua`: the 2 would be taken for the recipe.
void refuse_misspelt_option(const CommandLine& line) {
  for (const std::string& word : line.settings.arguments)
    if (word.find('=') == std::string::npos && resembles_option(word)) fail_unknown_option(word);
}

int fail_elastic_prompt() { fail_usage("--elastic needs a recipe: at the prompt all ranks read each line"); }

int run(int argc, char** argv, const Gpus& gpus) {
  const CommandLine line = parse_command_line(argc, argv);
  if (line.exit_code) return *line.exit_code;
  const bool joins = !line.settings.join.empty() && std::getenv("HETRUN_JOINS") == nullptr;
  if (line.settings.workers > 0 || joins) {
    if (line.command.empty())
      return line.settings.elastic ? fail_elastic_prompt()
                                   : launch(launch_options(line.settings, argc, argv));
    const bool profiles = line.command == "profile" && !line.arguments.empty();
    for (const Subcommand& sub : subcommands())
      if (line.command == sub.name && !profiles)
        fail_usage("--workers {} runs a recipe in several processes; '{}' is a command, not a recipe",
                   line.settings.workers, line.command);
    const std::string& recipe = profiles ? line.arguments[0] : line.command;
    if (!is_file(recipe)) {
      refuse_misspelt_option(line);
      read_file(recipe);  // says why, and the nearest name
    }
    return launch(launch_options(line.settings, argc, argv));
  }
  prctl(PR_SET_NAME, "hetrun");  // a launched rank is a program of the name "exe"
  install_interrupt_handler();
  State state(line.settings, gpus);
  if (line.command.empty()) return run_prompt(state, line.settings);
  interrupt_recipes_of(state.get());
  if (line.settings.limit_seconds > 0)
    limit_time(std::chrono::duration<double>(line.settings.limit_seconds), line.settings.limit_time);
  std::vector<std::string> names;
  for (const Subcommand& sub : subcommands()) {
    if (line.command == sub.name) return state.call_program(sub.name, line.arguments);
    names.emplace_back(sub.name);
  }
  if (!is_file(line.command)) refuse_misspelt_option(line);
  if (!line.command.ends_with(".lua") && !is_file(line.command)) {
    const std::string nearest = nearest_name(line.command, names);
    fail_usage("'{}' is neither a recipe nor a command; {} (hetrun --help)", line.command,
               nearest.empty() ? fmt::format("commands are {}", fmt::join(names, ", "))
                               : fmt::format("did you mean '{}'?", nearest));
  }
  if (!line.arguments.empty()) refuse_misspelt_option(line);
  if (!line.arguments.empty())
    fail_usage("'{}' after the recipe is no option; those of a recipe are written --name=value, with the =",
               line.arguments[0]);
  return state.run_recipe(line.command);
}

// Print what ends the program.
void print_error(const std::string& text) {
  const std::string line = fmt::format("hetrun: {}\n", visible(text));
  const int pipe = pipe_to_launcher();
  if (pipe >= 0 && ::write(pipe, line.data(), line.size()) == std::ssize(line)) return;
  std::cerr << line;
}

}  // namespace

int run_program(int argc, char** argv, const Gpus& gpus) {
  // A file that meets the limit on file sizes shall give an error, the previous file kept, and not end the
  // program.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv, gpus);
  } catch (const Interrupted&) {
    return kInterruptedExitCode;
  } catch (const RunEnded& ended) {
    std::cerr << fmt::format("{}\n", visible(ended.sentence()));
    return 0;
  } catch (const Error& error) {
    std::cout.flush();
    // Ranks that end one after the other lose each other: no reason to say so.
    if (error.kind() == ErrorKind::peer && interrupt_pending()) return kInterruptedExitCode;
    print_error(error.what());
    return static_cast<int>(error.kind());
  } catch (const std::bad_alloc&) {
    print_error(out_of_memory().what());
    return static_cast<int>(ErrorKind::environment);
  } catch (const std::system_error& error) {  // no thread, no memory
    print_error(fmt::format("the system refuses: {}", error.what()));
    return static_cast<int>(ErrorKind::environment);
  } catch (const std::exception& error) {
    print_error(fmt::format("unexpected failure: {}", error.what()));
    return static_cast<int>(ErrorKind::bug);
  }
}

}  // namespace het::lua
