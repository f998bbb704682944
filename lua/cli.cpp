#include "lua/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <utility>

#include "core/base/nearest.h"
#include "core/base/units.h"
#include "core/net/socket.h"

namespace het::lua {
namespace {

// A name and what it is, in two columns of lines that fit a terminal.
std::string in_columns(std::string name, std::string_view sentence, size_t column) {
  constexpr size_t kWidth = 100;
  std::string text = "  " + std::move(name);
  text += text.size() + 2 > column ? "\n" + std::string(column, ' ') : std::string(column - text.size(), ' ');
  size_t at = column;
  while (!sentence.empty()) {
    const std::string_view word = sentence.substr(0, sentence.find(' '));
    if (at > column && at + 1 + word.size() > kWidth) {
      text += "\n" + std::string(column, ' ');
      at = column;
    } else if (at > column) {
      text += ' ';
      ++at;
    }
    text += word;
    at += word.size();
    sentence.remove_prefix(std::min(sentence.size(), word.size() + 1));
  }
  return text + '\n';
}

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: hetrun [OPTIONS] recipe.lua [--name=value ...], or one of the commands below\n";
  }
  std::string make_option(const CLI::Option* option, bool) const override {
    const std::string& value = option->get_type_name();
    return in_columns(make_option_name(option, false) + (value.empty() ? "" : " " + value),
                      option->get_description(), 26);
  }
};

std::string footer() {
  constexpr size_t kColumn = 42;
  std::string text = "Commands:\n" +
                     in_columns("hetrun recipe.lua [--name=value ...]",
                                "run a recipe; `hetrun recipe.lua --help` shows its options", kColumn) +
                     in_columns("hetrun", "the interactive prompt", kColumn);
  for (const Subcommand& sub : subcommands())
    text += in_columns(fmt::format("hetrun {}{}{}", sub.name, *sub.arguments ? " " : "", sub.arguments),
                       sub.sentence, kColumn);
  return text +
         "\nExit codes: 0 done, 2 a mistake in the recipe, an option or a file, 70 a bug in hetrun, 71 the "
         "machine\n"
         "(memory, disk), 75 another process failed (run again), 130 interrupted.";
}

// More are a typing error: each thread and each rank needs memory.
constexpr int kMostThreads = 4096, kMostWorkers = 512;

const std::vector<std::string>& option_names() {
  static const std::vector<std::string> names{
      "--help",        "--version",      "--quiet",  "--json",       "--trust",      "--metrics",
      "--threads",     "--trace",        "--device", "--workers",    "--elastic",    "--respawn",
      "--chaos",       "--listen",       "--join",   "--rendezvous", "--interface",  "--secret-file",
      "--timeout",     "--warn-after",   "--resume", "--overwrite",  "--limit-time", "--allow-read",
      "--allow-write", "--limit-memory", "--zone",   "--price"};
  return names;
}

// A value that an option takes, for messages.
std::string example_of(const std::string& option) {
  static const std::map<std::string, std::string> examples{{"--metrics", "metrics.jsonl"},
                                                           {"--trace", "step.json"},
                                                           {"--threads", "4"},
                                                           {"--workers", "2"},
                                                           {"--elastic", "2:6"},
                                                           {"--chaos", "7"},
                                                           {"--listen", "10.0.0.7:7777"},
                                                           {"--join", "10.0.0.7:7777"},
                                                           {"--device", "cpu"},
                                                           {"--rendezvous", "etcd://host:2379"},
                                                           {"--interface", "eth1"},
                                                           {"--secret-file", "secret"},
                                                           {"--timeout", "90s"},
                                                           {"--warn-after", "10s"},
                                                           {"--zone", "us-east-1a"},
                                                           {"--price", "1.2"},
                                                           {"--allow-read", "corpus.txt"},
                                                           {"--allow-write", "models/mine"},
                                                           {"--limit-memory", "8GiB"},
                                                           {"--limit-time", "30min"}};
  const auto found = examples.find(option);
  return found == examples.end() ? "value" : found->second;
}

// The seconds that an option was given; 0 when it was not given.
double duration_of(const std::string& option, const std::string& text) {
  if (text.empty()) return 0;
  constexpr double kLeast = 0.001, kMost = 1e9;
  double seconds = 0;
  try {
    seconds = parse_seconds(text);
  } catch (const Error& error) {
    fail_usage("{}={}: {}", option, text, error.sentence());
  }
  if (!(seconds >= kLeast && seconds <= kMost))
    fail_usage("{}={} is not a time from 1 ms to 1000000000 s, such as {}={}", option, text, option,
               example_of(option));
  return seconds;
}

// "; did you mean --threads?", or nothing.
std::string did_you_mean(const char* format, const std::string& name) {
  return name.empty() ? "" : fmt::format("; did you mean {}?", fmt::format(fmt::runtime(format), name));
}

// The whole number above 0 that an option was given; 0 when it was not given.
int count_of(const std::string& option, const std::string& text, int most) {
  if (text.empty()) return 0;
  const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
  const double value = digits ? std::strtod(text.c_str(), nullptr) : 0;
  if (value < 1)
    fail_usage("{}={} is not a whole number above 0, such as {}={}", option, text, option,
               example_of(option));
  if (value > most) fail_usage("{}={} is above {}, the most that works", option, text, most);
  return static_cast<int>(value);
}

}  // namespace

namespace {

// "--workers" for "--worker"; empty: no option resembles it.
std::string nearest_option(const std::string& option) {
  std::vector<std::string> names;  // without the dashes, which all have
  for (const std::string& name : option_names()) names.push_back(name.substr(2));
  const std::string nearest = nearest_name(option.starts_with("--") ? option.substr(2) : option, names);
  return nearest.empty() ? "" : "--" + nearest;
}

}  // namespace

void fail_unknown_option(const std::string& name) {
  fail_usage("there is no option {}{} (hetrun --help lists the options)", name,
             did_you_mean("{}", nearest_option(name)));
}

bool resembles_option(const std::string& name) { return !nearest_option(name).empty(); }

const std::vector<Subcommand>& subcommands() {
  static const std::vector<Subcommand> list{
      {"doctor", "", "what this machine offers and what is missing"},
      {"bench", "NAME [--name=value ...]", "measure training speed; `hetrun bench` lists the names"},
      {"plan", "RECIPE [--cluster=FILE ...]", "find the best plan for a cluster and explain it; --help"},
      {"simulate", "RECIPE [--cluster=FILE ...]",
       "what the recipe's own plan does in a step, simulated; or measured plans: --help"},
      {"profile", "RECIPE [--out=FILE ...]",
       "measure the recipe's layers and links on this machine, for plans; --help"},
      {"solve", "FILE [--seconds=60 ...]",
       "choose strategies for a graph in the form of google/iopddl, with a proven bound; --help"},
      {"snapshot", "list|show|verify|copy|import|export PLACE [TO]",
       "look at snapshots, check them, copy them, make them of a saved model and the other way; --help"},
      {"status", "[--rendezvous=PLACE ...]",
       "how a running job is doing: its ranks, step, changes, snapshots; --help"},
      {"attach", "[WORD]", "steer a running job: pause, resume, replan, snapshot, status; --help"},
      {"generate", "FOLDER [--prompt=TEXT ...]",
       "write text with a saved model, also of Hugging Face's; --help"},
      {"eval", "FOLDER --text=FILE [...]", "the mean loss and perplexity of a text by a saved model; --help"},
      {"merge", "ADAPTERS MODEL", "a model with its adapters (LoRA) merged; --help"},
      {"convert", "FOLDER TO [--precision=bf16 ...]",
       "a model's folder in another precision or in files of a given size; --help"},
      {"docs", "FOLDER", "write the pages of the Lua library, and editor stubs"},
  };
  return list;
}

namespace {
// "2:6": at least 2 ranks, at most 6.
void read_elastic(const std::string& text, Settings& settings) {
  if (text.empty()) return;
  const size_t colon = text.find(':');
  if (colon == 0 || colon == text.size() - 1)
    fail_usage("--elastic={}: a number is missing; 2:6 is at least 2 and at most 6 ranks", text);
  settings.elastic = true;
  settings.least = count_of("--elastic", text.substr(0, colon), kMostWorkers);
  settings.most = colon == text.npos ? 0 : count_of("--elastic", text.substr(colon + 1), kMostWorkers);
  if (settings.most != 0 && settings.most < settings.least)
    fail_usage("--elastic={}: at most {} ranks are fewer than at least {}", text, settings.most,
               settings.least);
  if (settings.workers > 0 && settings.workers < settings.least && settings.listen.empty())
    fail_usage(
        "--elastic={} needs {} ranks at least; --workers {} starts fewer, and without --listen no others "
        "join",
        text, settings.least, settings.workers);
  if (settings.workers > 0 && settings.most != 0 && settings.workers > settings.most)
    fail_usage("--elastic={} has {} ranks at most; --workers {} starts more", text, settings.most,
               settings.workers);
}

// The seed of --chaos, and what faults need: ranks of this machine alone, more than the run needs at least.
void check_chaos(const Settings& settings) {
  if (settings.chaos.empty()) return;
  constexpr size_t kMostDigits = 9;
  if (settings.chaos.size() > kMostDigits ||
      settings.chaos.find_first_not_of("0123456789") != std::string::npos)
    fail_usage("--chaos={} is not a seed: a whole number from 0 to 999999999, such as --chaos=7",
               settings.chaos);
  if (!settings.elastic || settings.workers == 0)
    fail_usage(
        "--chaos has ranks of this machine vanish and come again: it needs --workers and --elastic, such as "
        "--workers 4 --elastic 2:4");
  if (settings.workers <= settings.least)
    fail_usage("--chaos has no rank to lose: --workers {} starts as many as --elastic={} needs at least",
               settings.workers, settings.least);
  if (!settings.join.empty() || !settings.listen.empty() || !settings.rendezvous.empty())
    fail_usage("--chaos is for the ranks of one machine; leave --listen, --join and --rendezvous out");
  if (settings.respawn)
    fail_usage(
        "--chaos starts the ranks again that it has taken, when the seed says so; leave --respawn out");
}

// Endpoints, and what they need.
void check_elastic(const Settings& settings) {
  const auto check = [](const char* option, const std::string& text) {
    if (!text.empty()) with_context([&] { return std::string(option); }, [&] { parse_endpoint(text); });
  };
  check("--listen", settings.listen);
  check("--join", settings.join);
  if (!settings.join.empty() && !settings.listen.empty())
    fail_usage("--join goes to a run that another machine has begun, --listen begins one; give one of them");
  if (!settings.join.empty() && settings.least > 0)
    fail_usage("--join takes --elastic from the run that it joins; leave it out here");
  if (!settings.join.empty() && !settings.rendezvous.empty())
    fail_usage("--join names the place where ranks meet, --rendezvous another; give one of them");
  for (const auto& [option, given] :
       {std::pair("--listen", !settings.listen.empty()), {"--respawn", settings.respawn}}) {
    if (given && !settings.elastic)
      fail_usage(
          "{} is of runs that continue when ranks are lost or join: it needs --elastic, such as "
          "--workers 4 --elastic 2:6",
          option);
    if (given && settings.workers == 0 && settings.join.empty())
      fail_usage("{} is for the process that starts the ranks: it needs --workers", option);
  }
}

// The zone and the price of this machine: of the options, else of the environment.
void read_place(Settings& settings, std::string price) {
  constexpr size_t kLongest = 64;
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string zone_from = settings.zone.empty() ? "HETRUN_ZONE" : "--zone";
  if (settings.zone.empty()) settings.zone = variable("HETRUN_ZONE");
  const bool plain = std::all_of(settings.zone.begin(), settings.zone.end(),
                                 [](unsigned char c) { return std::isalnum(c) || std::strchr("-_.:/", c); });
  if (!plain || settings.zone.size() > kLongest)
    fail_usage("{}={} is no name of a zone: letters, digits and - _ . : /, at most {} of them, such as {}",
               zone_from, settings.zone, kLongest, example_of("--zone"));
  const std::string price_from = price.empty() ? "HETRUN_PRICE" : "--price";
  if (price.empty()) price = variable("HETRUN_PRICE");
  if (price.empty()) return;
  constexpr double kMost = 1e6;
  double value = 0;
  const auto [end, error] = std::from_chars(price.data(), price.data() + price.size(), value);
  if (error != std::errc() || end != price.data() + price.size() || !(value >= 0 && value <= kMost))
    fail_usage("{}={} is no price of an hour: a number from 0 to {:.0f}, such as {}={}", price_from, price,
               kMost, price_from, example_of("--price"));
  settings.price = value;
}

// Options whose text is read after all of them are known.
struct OptionTexts {
  bool version = false;
  std::string threads, workers, elastic, price;
};

void add_options(CLI::App& app, Settings& settings, OptionTexts& texts) {
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("-h,--help", settings.help, "this text, or the options of the recipe that is named");
  app.add_flag("--version", texts.version, "print the version");
  app.add_flag("--quiet", settings.quiet, "print results and errors only");
  app.add_flag("--json", settings.json, "make the last line one JSON object");
  app.add_flag("--trust", settings.trust, "let the recipe use all of Lua (files, programs, machine code)");
  app.add_option("--allow-read", settings.allow_read, "a file or folder that the recipe may read")
      ->type_name("PATH")
      ->allow_extra_args(false);
  app.add_option("--allow-write", settings.allow_write, "a file or folder that the recipe may write")
      ->type_name("PATH")
      ->allow_extra_args(false);
  app.add_option("--limit-memory", settings.limit_memory,
                 "memory of the process, such as 8GiB (default: what is available; with --trust, at the "
                 "prompt and on a GPU none)")
      ->type_name("SIZE");
  app.add_option("--metrics", settings.metrics, "write one JSON object per report to this file")
      ->type_name("FILE");
  app.add_option("--trace", settings.trace, "write a Chrome trace of one step over all ranks to this file")
      ->type_name("FILE");
  app.add_option("--threads", texts.threads, "CPU threads (default: every core)")->type_name("N");
  app.add_option("--workers", texts.workers, "number of ranks on this machine, each a process")
      ->type_name("N");
  app.add_option("--elastic", texts.elastic,
                 "continue when ranks are lost or join; how many at least and at most: 2:6, or 2 for at most "
                 "those that are started")
      ->type_name("MIN[:MAX]");
  app.add_flag("--respawn", settings.respawn, "with --elastic: start a rank again that was lost");
  app.add_option(
         "--chaos", settings.chaos,
         "with --workers and --elastic: ranks are killed, get notice and come again as this seed draws "
         "it, never fewer than the least; a seed repeats its schedule")
      ->type_name("SEED");
  app.add_option("--listen", settings.listen,
                 "with --elastic: address and port of this machine where ranks of others may join, such as "
                 "10.0.0.7:7777")
      ->type_name("HOST:PORT");
  app.add_option("--join", settings.join,
                 "join the run that listens there, with --workers ranks of this machine (1)")
      ->type_name("HOST:PORT");
  app.add_option(
         "--device", settings.device,
         "where to run: cpu, cuda (cuda:1 for the second GPU) or reference (default: cpu); of several ranks "
         "of a machine in turn: cuda,cpu,cpu")
      ->type_name("DEVICE");
  app.add_option("--rendezvous", settings.rendezvous,
                 "where ranks on several machines meet: etcd://host:2379 (default: MASTER_ADDR, MASTER_PORT)")
      ->type_name("PLACE");
  app.add_option("--interface", settings.interface,
                 "interface or address for the traffic between ranks: eth1, 10.0.0.7 (default: the one "
                 "towards the rendezvous)")
      ->type_name("NAME");
  app.add_option("--secret-file", settings.secret_file,
                 "file with the run's shared secret (default: the variable HETRUN_SECRET)")
      ->type_name("FILE");
  app.add_option("--timeout", settings.timeout,
                 "how long to wait for other ranks: 90s, 10min (default: 5min to join, 60s in a step)")
      ->type_name("TIME");
  app.add_option("--warn-after", settings.warn_after,
                 "after how long to name the ranks that are late (default: 10s)")
      ->type_name("TIME");
  app.add_option("--zone", settings.zone,
                 "the zone of this machine: machines of one zone may be lost together, and no zone alone "
                 "has all copies of the state (default: the variable HETRUN_ZONE)")
      ->type_name("NAME");
  app.add_option("--price", texts.price,
                 "what this machine costs an hour, for what a run says of money (default: the variable "
                 "HETRUN_PRICE)")
      ->type_name("PRICE");
  app.add_flag("--resume", settings.resume, "go on with the run that is saved where the recipe saves");
  app.add_flag("--overwrite", settings.overwrite, "replace the model that is saved where the recipe saves");
  app.add_option("--limit-time", settings.limit_time,
                 "end as by Ctrl-C after this time: 90s, 10min (default: no limit)")
      ->type_name("TIME");
  app.footer(footer());
}

// Checks each option by itself and those that exclude each other, and reads what was text.
void read_settings(Settings& settings, const OptionTexts& texts) {
  settings.threads = count_of("--threads", texts.threads, kMostThreads);
  settings.workers = count_of("--workers", texts.workers, kMostWorkers);
  read_elastic(texts.elastic, settings);
  if (!settings.join.empty() && settings.least == 0) settings.elastic = true;
  read_place(settings, texts.price);
  check_elastic(settings);
  check_chaos(settings);
  if (!settings.limit_memory.empty())
    with_context([] { return std::string("--limit-memory"); },
                 [&] {
                   constexpr int64_t kLeast = int64_t{256} << 20;  // of the program and its threads alone
                   if (parse_bytes(settings.limit_memory) < kLeast)
                     fail_usage("'{}' leaves no room for the program itself; 256MiB or more works",
                                settings.limit_memory);
                 });
  settings.limit_seconds = duration_of("--limit-time", settings.limit_time);
  if (settings.resume && settings.overwrite)
    fail_usage("--resume goes on with a saved model and --overwrite replaces it; give one of them");
  std::string& device = settings.device;
  device = device_of_rank(device, local_rank());
  if (device != "cpu" && device != "reference" && !names_gpu(device))
    fail_usage(
        "--device={} is neither cpu nor cuda nor reference{}", device,
        did_you_mean("'{}'", device == "gpu" ? "cuda" : nearest_name(device, {"cpu", "cuda", "reference"})));
}

// What is no option of hetrun: the command, its arguments, and the options of a recipe.
void take_words(const std::vector<std::string>& words, CommandLine& line) {
  bool follows_option = false;
  for (const std::string& word : words) {
    const bool follows = std::exchange(follows_option, false);
    if (word.starts_with("--")) {
      follows_option = !line.command.empty();
      if (line.command.empty()) {
        const std::string name = word.substr(0, word.find('='));
        // Options of a recipe may also stand before it; without a recipe they are unknown.
        bool recipe_follows = false;
        for (const std::string& other : words) recipe_follows = recipe_follows || !other.starts_with("-");
        if (!recipe_follows) fail_unknown_option(name);
      }
      line.settings.arguments.push_back(word);
      line.settings.followers.emplace_back();
    } else if (word.starts_with("-") && word.size() > 1) {
      fail_usage("there is no option {} (hetrun --help lists the options)", word);
    } else if (line.command.empty()) {
      line.command = word;
    } else {
      line.arguments.push_back(word);
      if (follows) line.settings.followers.back() = std::to_string(line.arguments.size());
    }
  }
}
}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  CommandLine line;
  OptionTexts texts;
  CLI::App app("hetrun trains large models from Lua recipes.", "hetrun");
  app.formatter(std::make_shared<HelpFormatter>());
  add_options(app, line.settings, texts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    const std::string name = text.substr(0, text.find(':'));
    fail_usage("{} needs one value, such as {}={}", name, name, example_of(name));
  } catch (const CLI::ParseError& error) {
    fail_usage("{} (hetrun --help lists the options)", error.what());
  }
  read_settings(line.settings, texts);
  take_words(app.remaining(), line);
  if (line.settings.limit_seconds > 0 && line.command.empty() && !texts.version && !line.settings.help)
    fail_usage("--limit-time={} needs a recipe or a command to end", line.settings.limit_time);
  if (texts.version) {
    std::cout << "hetrun " << HET_VERSION << '\n';
    line.exit_code = 0;
  } else if (line.settings.help && line.command.empty()) {
    std::cout << app.help();
    line.exit_code = 0;
  }
  return line;
}

}  // namespace het::lua
