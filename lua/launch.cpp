#include "lua/launch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <set>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "core/base/descriptor.h"
#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/base/visible.h"
#include "core/cluster/embedded_store.h"
#include "core/cluster/seal.h"
#include "core/cluster/secret.h"
#include "core/net/socket.h"
#include "core/run/memory_folder.h"
#include "core/run/roster.h"

namespace het::lua {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{50};
// How long the other ranks have to end by themselves after one has: to notice a lost rank, and to find the
// mistake that it has found.
constexpr std::chrono::milliseconds kNotice{700}, kMeet{5'000};
// How long a process may stand still when the others have ended the run.
constexpr std::chrono::seconds kThaw{5};
constexpr int kInterrupted = 130;
// A rank that ends so soon and so often is not started again.
constexpr std::chrono::seconds kSoon{10};
constexpr int kMostSoon = 3;

std::atomic<int> asked_to_end = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler sets it");
void note_signal(int signal) { asked_to_end = signal; }

// A line by which a rank of an elastic run says that it speaks for the run from here on.
constexpr std::string_view kSpeaks = "\x01hetrun: this rank speaks for the run";
// A line by which it says that the run goes on without it.
constexpr std::string_view kLeft = "\x01hetrun: this rank has left the run";
// A line by which it says how many processes are to be started again.
constexpr std::string_view kBringBack = "\x01hetrun: start again ";

struct Child {
  pid_t pid = -1;
  int output_pipe = -1;            // of an elastic run: its standard output
  int error_pipe = -1;             // its standard error; of rank 0 what ends it alone
  std::string pending;             // of that: the line not yet ended
  std::vector<std::string> lines;  // held back until it is known whether rank 0 says the same
  bool running = true;
  bool left = false;  // the run, which goes on without it
  int code = 0;       // exit code
  int signal = 0;     // that killed it
  Clock::time_point started;
  int ended_soon = 0;     // how often in a row
  bool terminal = false;  // it has the terminal to itself
};

// Whether a process stands still, as by SIGSTOP or a debugger: the letter behind its name in /proc.
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(") ");
  return end != text.npos && (text[end + 2] == 'T' || text[end + 2] == 't');
}

class Launcher {
 public:
  explicit Launcher(LaunchOptions options)
      : options_(std::move(options)), children_(static_cast<size_t>(options_.workers)) {
    if (!run_folder_)
      fail_environment("cannot make what ranks agree on their run folder in: {}", std::strerror(errno));
    if (options_.secret.empty()) options_.secret = make_secret();
    store_ = options_.join;
    if (options_.join.empty())
      serve();
    else
      speaker_ = -1;
    if (!options_.elastic) return;
    // Runs of one user may share a secret, and no port.
    const std::string port = options_.etcd ? "" : std::to_string(parse_endpoint(store_).port);
    memory_ = std::make_unique<MemoryFolder>(process_environment(), options_.secret, port);
  }

  int run() {
    struct sigaction action {};
    action.sa_handler = note_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    struct sigaction hangup {};
    if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN)  // not under nohup
      sigaction(SIGHUP, &action, nullptr);
    std::signal(SIGPIPE, SIG_IGN);  // the ranks end by themselves when no one reads what they say
    for (size_t rank = 0; rank < children_.size(); ++rank)
      start(static_cast<int>(rank), rank == 0 && options_.join.empty());
    if (options_.elastic && !options_.quiet) {
      std::vector<pid_t> pids;
      for (const Child& child : children_) pids.push_back(child.pid);
      std::cerr << fmt::format("process ids of this machine's ranks: {}\n", fmt::join(pids, ", "))
                << std::flush;
    }
    while (
        std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; })) {
      read_errors();
      read_outputs();
      reap();
      bring_back();
      pass_on_signals();
      end_the_rest();
      end_the_stopped();
    }
    read_errors();
    read_outputs();
    for (Child& child : children_)  // whose pipe is open still, held by a program that it started
      if (!child.pending.empty()) take_line(child, std::exchange(child.pending, {}));
    if (!options_.listen.empty() && !ended_well_ && !interrupted_ && code_ == 0) serve_the_others();
    if (options_.elastic && code_ == 0 && !ended_well_ && !interrupted_)
      code_ = static_cast<int>(ErrorKind::peer);
    report();
    return code_ == 0 && interrupted_ ? kInterrupted : code_;
  }

 private:
  void serve() {
    StoreServerOptions server;
    server.address = "127.0.0.1";
    if (!options_.listen.empty()) {
      const Endpoint endpoint = parse_endpoint(options_.listen);
      server.address = endpoint.host;
      server.port = endpoint.port;
    }
    server.secret = options_.secret;
    server_ = serve_store(std::move(server));
    store_ = server_->endpoint();
  }

  // What a child sees of its environment: the launcher's own, and who it is.
  // `errors`: the descriptor where it says what ends it.
  std::vector<std::string> environment(int rank, int errors) const {
    const int workers = static_cast<int>(children_.size());
    const Endpoint endpoint = parse_endpoint(store_);
    std::vector<std::string> values{fmt::format("RANK={}", rank),
                                    fmt::format("WORLD_SIZE={}", workers),
                                    fmt::format("LOCAL_RANK={}", rank),
                                    fmt::format("LOCAL_WORLD_SIZE={}", workers),
                                    "MASTER_ADDR=" + endpoint.host,
                                    fmt::format("MASTER_PORT={}", endpoint.port),
                                    "HETRUN_STORE=" + store_,
                                    fmt::format("HETRUN_RUN_FOLDER={}", run_folder_.number()),
                                    fmt::format("HETRUN_ERRORS={}", errors),
                                    "HETRUN_SECRET=" + options_.secret};
    if (options_.elastic) values.emplace_back("HETRUN_ELASTIC=1");
    values.push_back("HETRUN_CHAOS=" + options_.chaos);
    if (memory_ != nullptr) values.push_back("HETRUN_MEMORY=" + memory_->path());
    if (!options_.join.empty()) values.emplace_back("HETRUN_JOINS=1");
    if (children_[static_cast<size_t>(rank)].pid > 0) values.emplace_back("HETRUN_STARTED_AGAIN=1");
    if (std::getenv("OMP_NUM_THREADS") == nullptr)
      values.push_back(fmt::format("OMP_NUM_THREADS={}", std::max(1, thread_count() / workers)));
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const std::string_view name = text.substr(0, text.find('=') + 1);
      if (std::none_of(values.begin(), values.end(),
                       [&](const std::string& own) { return own.starts_with(name); }))
        values.emplace_back(text);
    }
    return values;
  }

  // `terminal`: it has that to itself, and says there all but what ends it.
  void start(int rank, bool terminal) {
    // For what it says of errors, for why it could not begin, and for its output.
    int ends[2], problem[2], output[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0 || pipe2(problem, O_CLOEXEC) != 0 ||
        (options_.elastic && !terminal && pipe2(output, O_CLOEXEC) != 0))
      fail_environment("cannot make a pipe: {}", std::strerror(errno));
    std::vector<std::string> words{"/proc/self/exe"},
        values = environment(rank, terminal ? ends[1] : STDERR_FILENO);
    words.insert(words.end(), options_.words.begin(), options_.words.end());
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      list.reserve(texts.size() + 1);
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    const auto arguments = pointers(words), variables = pointers(values);
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) fail_environment("cannot start rank {}: {}", rank, std::strerror(errno));
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing outlives the launcher
      if (getppid() != parent) _exit(1);
      if (!terminal) {
        dup2(options_.elastic ? output[1] : open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
      } else {
        fcntl(ends[1], F_SETFD, 0);  // inherited
      }
      fcntl(run_folder_.number(), F_SETFD, 0);  // inherited
      execve("/proc/self/exe", arguments.data(), variables.data());
      const int error = errno;
      [[maybe_unused]] const ssize_t bytes = write(problem[1], &error, sizeof error);
      _exit(127);
    }
    close(ends[1]);
    close(problem[1]);
    if (output[1] >= 0) close(output[1]);
    int error = 0;
    ssize_t bytes = 0;  // 0: it was closed, and the program runs
    while ((bytes = read(problem[0], &error, sizeof error)) < 0 && errno == EINTR) {
    }
    close(problem[0]);
    if (bytes == sizeof error) fail_environment("cannot start rank {}: {}", rank, std::strerror(error));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    if (output[0] >= 0) fcntl(output[0], F_SETFL, O_NONBLOCK);
    Child& child = children_[rank];
    child.pid = pid;
    child.error_pipe = ends[0];
    child.output_pipe = output[0];
    child.terminal = terminal;
    child.running = true;
    child.left = false;
    child.started = Clock::now();
  }

  // A rank that was lost, or has left. False: it is not started, for it ends again and again.
  bool start_again(int rank) {
    Child& child = children_[rank];
    child.ended_soon = Clock::now() - child.started < kSoon ? child.ended_soon + 1 : 0;
    if (child.ended_soon >= kMostSoon) {
      std::cerr
          << fmt::format(
                 "hetrun: process {} ended {} times within {} s of its start; it is not started again\n",
                 rank, kMostSoon, kSoon.count())
          << std::flush;
      return false;
    }
    for (int* pipe : {&child.error_pipe, &child.output_pipe})
      if (*pipe >= 0) close(std::exchange(*pipe, -1));
    child.pending.clear();
    child.lines.clear();
    std::cerr << fmt::format("hetrun: process {} is started again\n", rank) << std::flush;
    start(rank, false);
    return true;
  }

  // What ranks of an elastic run print is the run's output from when they speak for it.
  void read_outputs() {
    for (Child& child : children_) {
      char bytes[4096];
      ssize_t count = 0;
      while (child.output_pipe >= 0 && (count = read(child.output_pipe, bytes, sizeof bytes)) > 0)
        if (&child - children_.data() == speaker_)
          std::cout << std::string_view(bytes, static_cast<size_t>(count)) << std::flush;
      if (child.output_pipe >= 0 && count == 0) {
        close(child.output_pipe);
        child.output_pipe = -1;
      }
    }
  }

  void read_errors() {
    std::vector<pollfd> waiting;
    for (const Child& child : children_)
      for (const int pipe : {child.error_pipe, child.output_pipe})
        if (pipe >= 0) waiting.push_back({pipe, POLLIN, 0});
    poll(waiting.data(), waiting.size(), static_cast<int>(kTick.count()));
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      char bytes[4096];
      for (;;) {
        const ssize_t count = child.error_pipe < 0 ? 0 : read(child.error_pipe, bytes, sizeof bytes);
        if (count <= 0) {
          if (count == 0 && child.error_pipe >= 0) {
            close(child.error_pipe);
            child.error_pipe = -1;
          }
          break;
        }
        child.pending.append(bytes, static_cast<size_t>(count));
      }
      for (size_t end; (end = child.pending.find('\n')) != std::string::npos;) {
        std::string line = child.pending.substr(0, end);
        child.pending.erase(0, end + 1);
        take_line(child, std::move(line));
      }
      // It ended within a line.
      if (child.error_pipe < 0 && !child.pending.empty()) take_line(child, std::exchange(child.pending, {}));
    }
  }

  // Ranks of an elastic run are numbered again in each generation: a process keeps its number.
  std::string name_of(std::ptrdiff_t rank) const {
    return fmt::format("{} {}", options_.elastic || !options_.join.empty() ? "process" : "rank", rank);
  }

  // What ended a rank is printed once, when all have ended; warnings at once.
  void take_line(Child& child, std::string line) {
    const auto rank = &child - children_.data();
    const auto begins = [&](const char* words) { return line.starts_with(words); };
    if (line == kSpeaks) {
      speaker_ = static_cast<int>(rank);
    } else if (line == kLeft) {
      child.left = true;
    } else if (line.starts_with(kBringBack) && !options_.chaos.empty()) {
      to_bring_back_ = std::atoi(line.c_str() + kBringBack.size());
    } else if (options_.elastic && (begins("hetrun: Ctrl-C:") || begins("hetrun: SIGTERM:") ||
                                    begins("hetrun: SIGHUP:") || begins("hetrun: the limit of"))) {
      // An interrupt ends no rank yet; those of the others are the same.
      if (rank == speaker_) std::cerr << visible(line) + "\n" << std::flush;
    } else if (line.starts_with("hetrun: ") || !child.lines.empty()) {
      child.lines.push_back(std::move(line));
    } else if (options_.elastic && rank == speaker_) {
      std::cerr << visible(line) + "\n" << std::flush;
    } else if (said_.insert(line).second) {
      std::cerr << fmt::format("[{}] {}\n", name_of(rank), visible(line)) << std::flush;
    }
  }

  void reap() {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      int status = 0;
      if (!child.running || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.running = false;
      child.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
      child.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      order_.push_back(static_cast<int>(rank));
      ended_ = Clock::now();
      if (options_.elastic && (has_left(child) || (child.left && child.signal == SIGKILL))) continue;
      ended_well_ = ended_well_ || (child.code == 0 && child.signal == 0);
      if (options_.elastic && is_loss(child)) {
        lose(static_cast<int>(rank));
        continue;
      }
      if ((child.code == 0 && child.signal == 0) || (child.signal != 0 && killed_)) continue;
      // Asked to end, ranks that train save and leave; others are ended by the signal itself.
      if (child.code == kInterrupted || (child.signal != 0 && child.signal == passed_on_)) {
        interrupted_ = true;
        continue;
      }
      // A rank that only lost another may be seen before the one whose mistake ended both.
      constexpr int kPeer = static_cast<int>(ErrorKind::peer);
      const bool cause = code_ == 0 || (lost_another_ && child.signal == 0 && child.code != kPeer);
      if (cause) {
        code_ = child.signal != 0 ? kPeer : child.code;
        lost_another_ = child.signal == 0 && child.code == kPeer;
      }
      if (child.signal != 0)
        std::cerr << fmt::format("hetrun: rank {} was killed by signal {} ({})\n", rank, child.signal,
                                 strsignal(child.signal))
                  << std::flush;
    }
  }

  // Whether it ended because it was taken away: no end of the run.
  bool has_left(Child& child) {
    if (child.code != 0 || child.signal != 0) return false;
    read_errors();
    read_outputs();
    if (!child.left) return false;
    const int rank = static_cast<int>(&child - children_.data());
    if (speaker_ == rank) speaker_ = -1;  // until another says that it speaks
    return true;
  }

  // Processes that are gone; some may have to be reaped first.
  void bring_back() {
    for (size_t rank = 0; rank < children_.size() && to_bring_back_ > 0; ++rank) {
      if (children_[rank].running || ended_well_ || code_ != 0 || passed_on_ != 0) continue;
      --to_bring_back_;
      start_again(static_cast<int>(rank));
    }
  }

  // Of an elastic run.
  void lose(int rank) {
    Child& child = children_[rank];
    read_errors();
    read_outputs();
    for (const std::string& line :
         std::exchange(child.lines, {}))  // why it gave up, said once by however many
      if (said_.insert(line).second)
        std::cerr << fmt::format("[{}] {}\n", name_of(rank), visible(line)) << std::flush;
    if (child.signal != 0)
      std::cerr << fmt::format("hetrun: process {} was killed by signal {} ({})\n", rank, child.signal,
                               strsignal(child.signal))
                << std::flush;
    if (speaker_ == rank) speaker_ = -1;  // until another says that it speaks
    // Who gave up would do so again.
    if (child.signal != 0 && options_.respawn && !ended_well_ && !interrupted_ && code_ == 0 &&
        passed_on_ == 0 && start_again(rank))
      return;
    lost_ += fmt::format("{} ", rank);
    if (server_ != nullptr) store().put(kLaunchesLost, lost_);  // for those who wait for it to come
  }

  Store& store() {
    if (client_ == nullptr) {
      StoreClientOptions client;
      client.endpoint = store_;
      client.secret = options_.secret;
      client_ = connect_store(std::move(client));
    }
    return *client_;
  }

  // Of an elastic run: the others go on.
  bool is_loss(const Child& child) const {
    if (child.signal != 0) return !killed_ && child.signal != passed_on_;
    return child.code == static_cast<int>(ErrorKind::peer);
  }

  void pass_on_signals() {
    const int signal = asked_to_end.exchange(0);
    if (signal == 0) return;
    passed_on_ = signal;
    // From the keyboard the children have it already.
    if (signal != SIGINT || getpgrp() != tcgetpgrp(STDIN_FILENO)) send(signal);
  }

  // All ranks of this machine are lost: the store is there for those of others, as long as there are any.
  void serve_the_others() {
    bool said = false;
    for (;;) {
      bool others = false;
      for (const StoreEntry& entry : store().list("").entries) {
        if (entry.key.find("/member/") != std::string::npos) others = true;
        if (!entry.key.ends_with("/roster")) continue;
        const auto text = unsealed(options_.secret, entry.key, entry.value);
        const auto roster = text ? parse_roster(*text) : std::nullopt;
        ended_well_ = ended_well_ || (roster && roster->members.empty() && roster->reason == kRunEnded);
      }
      interrupted_ = asked_to_end != 0;
      if (!others || interrupted_) return;
      if (!std::exchange(said, true))
        std::cerr << "hetrun: the ranks of this machine are gone; others may go on by its store\n"
                  << std::flush;
      poll(nullptr, 0, static_cast<int>(kTick.count()) * 4);
    }
  }

  // Who does not end in time is ended.
  void end_the_rest() {
    if (code_ == 0 || killed_) return;
    const auto grace = code_ == static_cast<int>(ErrorKind::usage) ? kMeet : kNotice;
    if (Clock::now() - ended_ <= grace) return;
    killed_ = true;
    send(SIGKILL);  // SIGTERM would have them finish a step that the dead ranks cannot finish
  }

  // The others have ended the run without a process that stands still (SIGSTOP), which will never learn of
  // it.
  void end_the_stopped() {
    if (!options_.elastic || (!ended_well_ && !interrupted_) || Clock::now() - ended_ <= kThaw) return;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      if (!child.running || child.left || !is_stopped(child.pid)) continue;
      child.left = true;
      std::cerr << fmt::format("hetrun: process {} is stopped, and the run has ended: it is killed\n", rank)
                << std::flush;
      kill(child.pid, SIGKILL);
    }
  }

  void send(int signal) {
    for (const Child& child : children_)
      if (child.running) kill(child.pid, signal);
  }

  // The error that ended the run: of rank 0 where it has that exit code, else of the first rank that ended
  // with it. What others say, who only lost that rank, is left out. If all ranks report the same error, print
  // it once, without a rank. A killed rank says nothing: then the next one's.
  void report() {
    if (code_ == 0) return;
    std::vector<int> ranks{0};
    ranks.insert(ranks.end(), order_.begin(), order_.end());
    for (const bool any_code : {false, true})
      for (const int rank : ranks) {
        const std::vector<std::string>& lines = children_[rank].lines;
        if (lines.empty() || (!any_code && children_[rank].code != code_)) continue;
        const bool alone = std::count_if(children_.begin(), children_.end(),
                                         [&](const Child& child) { return child.lines == lines; }) == 1;
        const std::string name =
            alone && rank > 0 ? fmt::format("[{}] ", name_of(static_cast<std::ptrdiff_t>(rank))) : "";
        for (const std::string& line : lines) std::cerr << name << visible(line) << "\n";
        return;
      }
    const auto killed = [](const Child& child) { return child.signal != 0; };
    if (options_.elastic && options_.join.empty() && std::all_of(children_.begin(), children_.end(), killed))
      std::cerr
          << "hetrun: the ranks of this machine were all killed; --resume goes on from the last save or "
             "snapshot, and with --respawn a run does so by itself\n";
  }

  LaunchOptions options_;
  std::string store_;                     // its endpoint
  std::unique_ptr<MemoryFolder> memory_;  // of snapshots of a run that outlives its ranks
  int to_bring_back_ = 0;                 // processes
  int speaker_ = 0;                       // the rank whose output is the run's; -1: none of these
  bool ended_well_ = false;
  // What all ranks' recipes write in, once one of them has chosen (RecipeFiles::share_run_folder).
  Descriptor run_folder_{memfd_create("hetrun-run-folder", MFD_CLOEXEC)};
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> client_;  // of it
  std::string lost_;               // ranks, with blanks
  std::vector<Child> children_;
  std::set<std::string> said_;
  std::vector<int> order_;  // ranks, as they ended
  int code_ = 0;
  bool lost_another_ = false;  // code_ is of a rank that ended because it lost another
  Clock::time_point ended_;    // when the last of order_ did
  int passed_on_ = 0;          // the last signal that was
  bool interrupted_ = false, killed_ = false;
};

}  // namespace

int pipe_to_launcher() {
  const char* number = std::getenv("HETRUN_ERRORS");
  const int pipe = number == nullptr ? -1 : std::atoi(number);
  struct stat about {};
  if (pipe <= STDERR_FILENO || fstat(pipe, &about) != 0 || !S_ISFIFO(about.st_mode)) return -1;
  fcntl(pipe, F_SETFD, FD_CLOEXEC);
  return pipe;
}

namespace {
int own_output = -1;  // while this process is silent

void say_to_launcher(std::string_view words) {
  const int pipe = pipe_to_launcher();
  const std::string line = fmt::format("{}\n", words);
  [[maybe_unused]] const ssize_t bytes = write(pipe >= 0 ? pipe : STDERR_FILENO, line.data(), line.size());
}
}  // namespace

void be_silent() {
  if (std::getenv("HETRUN_ELASTIC") == nullptr || own_output >= 0) return;
  std::cout << std::flush;
  std::fflush(stdout);
  own_output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const Descriptor nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (own_output >= 0) dup2(nowhere.number(), STDOUT_FILENO);
}

void speak_for_run() {
  if (std::getenv("HETRUN_ELASTIC") == nullptr) return;
  std::cout << std::flush;
  if (own_output >= 0) {
    dup2(own_output, STDOUT_FILENO);
    close(std::exchange(own_output, -1));
  }
  say_to_launcher(kSpeaks);
}

void say_left() {
  if (std::getenv("HETRUN_ELASTIC") == nullptr) return;
  say_to_launcher(kLeft);
}

void bring_back(int processes) {
  if (std::getenv("HETRUN_ELASTIC") == nullptr) return;
  say_to_launcher(fmt::format("{}{}", kBringBack, processes));
}

int launch(LaunchOptions options) {
  // A prompt that is ended from outside leaves the terminal as it reads lines.
  termios settings{};
  const bool terminal = tcgetattr(STDIN_FILENO, &settings) == 0;
  const int code = Launcher(std::move(options)).run();
  if (terminal) tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
  return code;
}

}  // namespace het::lua
