#include "snapshot/exchange_server.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/idle_priority.h"
#include "core/io/files.h"
#include "core/net/frame.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostWarnings = 64;
constexpr std::chrono::milliseconds kOfferPulse{1000};

AcceptorOptions acceptor_options(const SnapshotServerOptions& options,
                                 std::function<void(const std::string&)> warn) {
  AcceptorOptions acceptor;
  acceptor.address = options.address;
  acceptor.port = options.port;
  acceptor.run = options.run;
  acceptor.secret = options.secret;
  acceptor.hello_within = options.hello_within;
  acceptor.warn = std::move(warn);
  return acceptor;
}

// sendfile() to a closed connection raises SIGPIPE, which would end the process.
void block_sigpipe() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

// A folder that is not there yet, or not any more, has none.
std::vector<FolderEntry> entries_of(const Path& folder) {
  try {
    return list_folder(folder);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

void OfferOutcome::finish(SnapshotResponse response) {
  std::lock_guard lock(mutex_);
  if (response_) return;
  response_ = std::move(response);
  done_.set();
}

std::optional<SnapshotResponse> OfferOutcome::wait(std::chrono::milliseconds within,
                                                   const StopSignal& stop) const {
  done_.wait_until(Clock::now() + within, stop);
  std::lock_guard lock(mutex_);
  return response_;
}

struct SnapshotServer::Session {
  Session(Acceptor::Arrival from, const SnapshotServerOptions& options, const StopSignal& stop)
      : arrival(std::move(from)),
        connection(std::move(arrival.socket), arrival.who, options.progress, stop) {}

  Acceptor::Arrival arrival;  // its socket is the connection's
  ExchangeConnection connection;
  bool idle_priority = false;
  std::atomic<bool> ended = false;
  std::atomic<Clock::rep> idle_since = 0;  // 0: it is busy
  std::thread thread;
};

// The file that a connection read last.
struct SnapshotServer::ServedFile {
  std::string name;
  Descriptor descriptor;
  int64_t bytes = 0;
};

std::unique_ptr<SnapshotServer> SnapshotServer::start(SnapshotServerOptions options) {
  return std::unique_ptr<SnapshotServer>(new SnapshotServer(std::move(options)));
}

SnapshotServer::SnapshotServer(SnapshotServerOptions options) : options_(std::move(options)) {
  acceptor_ = std::make_unique<Acceptor>(
      acceptor_options(options_, [this](const std::string& sentence) { warn(sentence); }));
  acceptor_->open(0, [this](Acceptor::Arrival arrival) { admit(std::move(arrival)); });
}

SnapshotServer::~SnapshotServer() {
  acceptor_->close(0);  // no call of admit() comes any more
  stop_.set();
  for (const auto& session : sessions_) session->thread.join();
}

void SnapshotServer::warn(const std::string& sentence) {
  {
    std::lock_guard lock(mutex_);
    if (options_.warn == nullptr || ++warnings_ > kMostWarnings) return;
  }
  options_.warn(sentence);
}

// On the acceptor's thread.
void SnapshotServer::admit(Acceptor::Arrival arrival) {
  std::lock_guard lock(mutex_);
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    if (!(*at)->ended) {
      ++at;
      continue;
    }
    (*at)->thread.join();
    at = sessions_.erase(at);
  }
  const bool idle = arrival.hello.group == exchange_group(true);
  if (!idle && arrival.hello.group != exchange_group(false)) {
    acceptor_->answer(arrival, {Verdict::other_run, 0});
    return;
  }
  if (!acceptor_->answer(arrival, {Verdict::accepted, 0})) return;
  if (!make_room()) {
    const SnapshotResponse refusal = SnapshotRefusal{
        fmt::format("all {} connections are busy; later there may be room", options_.connections)};
    send_some(arrival.socket, write_frame(encode_response(refusal)));
    return;
  }
  sessions_.push_back(std::make_unique<Session>(std::move(arrival), options_, stop_));
  Session& session = *sessions_.back();
  session.idle_since = Clock::now().time_since_epoch().count();
  session.idle_priority = idle;
  try {
    session.thread = std::thread([this, &session] { serve(session); });
  } catch (const std::system_error&) {  // the machine has no thread left: the peer tries elsewhere
    sessions_.pop_back();
  }
}

// Ends the connection that has been idle for longest where there are too many. False: all are busy.
bool SnapshotServer::make_room() {
  const size_t open = static_cast<size_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& session) { return !session->ended; }));
  if (open < options_.connections) return true;
  Session* idlest = nullptr;
  for (const auto& session : sessions_)
    if (session->idle_since != 0 && !session->ended &&
        (idlest == nullptr || session->idle_since < idlest->idle_since))
      idlest = session.get();
  if (idlest == nullptr) return false;
  idlest->idle_since = 0;
  idlest->connection.shut_down();
  return true;
}

void SnapshotServer::serve(Session& session) {
  block_sigpipe();
  if (session.idle_priority) take_idle_priority();
  ServedFile file;
  try {
    while (const auto content = session.connection.next_frame(Clock::now() + options_.idle)) {
      session.idle_since = 0;
      answer(session, file, *content);
      session.idle_since = Clock::now().time_since_epoch().count();
    }
  } catch (const Error& error) {
    if (!session.connection.is_lost() && !stop_.is_set())
      warn(fmt::format("{} was cut off: {}", session.connection.who(), error.sentence()));
  }
  session.connection.shut_down();
  session.ended = true;
}

void SnapshotServer::answer(Session& session, ServedFile& file, const std::string& content) {
  const SnapshotRequest request = parse_request(content);
  std::visit([&](const auto& asked) { answer(session, file, asked); }, request);
}

void SnapshotServer::respond(Session& session, const SnapshotResponse& response) const {
  session.connection.send(write_frame(encode_response(response)));
}

void SnapshotServer::answer(Session& session, ServedFile& file, const ListSnapshots&) {
  file = {};
  std::vector<ServedSnapshot> files;
  std::set<std::string> seen;
  for (size_t folder = 0; folder < options_.folders.size(); ++folder) {
    const Path path = options_.folders[folder];
    for (const FolderEntry& entry : entries_of(path))
      if (const auto name = parse_snapshot_name(entry.name);
          name && entry.kind == FileKind::file && seen.insert(entry.name).second)
        files.push_back({entry.name, *name, entry.bytes, static_cast<int64_t>(folder)});
  }
  std::stable_sort(files.begin(), files.end(), [](const ServedSnapshot& a, const ServedSnapshot& b) {
    return std::pair(b.name.version, a.name.rank) < std::pair(a.name.version, b.name.rank);
  });
  files.resize(std::min(files.size(), kMostListedFiles));
  respond(session, files);
}

SnapshotServer::ServedFile SnapshotServer::open(const std::string& name) const {
  for (const std::string& folder : options_.folders) {
    const Descriptor opened(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!opened) continue;
    // Without waiting for a writer, should it be a pipe.
    Descriptor file(open_beneath(opened.number(), name, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat state {};
    if (!file || ::fstat(file.number(), &state) != 0 || !S_ISREG(state.st_mode)) continue;
    return {name, std::move(file), state.st_size};
  }
  return {};
}

void SnapshotServer::answer(Session& session, ServedFile& file, const ReadSnapshot& request) {
  if (file.name != request.file) file = open(request.file);
  if (!file.descriptor) {
    file = {};
    return respond(session, SnapshotRefusal{fmt::format("there is no file '{}' here", request.file)});
  }
  if (request.offset > file.bytes || request.bytes > file.bytes - request.offset)
    return respond(session, SnapshotRefusal{fmt::format("'{}' has {} bytes; bytes {} to {} were asked for",
                                                        request.file, file.bytes, request.offset,
                                                        static_cast<uint64_t>(request.offset) +
                                                            static_cast<uint64_t>(request.bytes))});
  respond(session, SnapshotData{request.bytes, file.bytes});
  session.connection.send_file(file.descriptor, request.offset, request.bytes);
}

void SnapshotServer::answer(Session& session, ServedFile& file, const SnapshotOffer& offer) {
  file = {};
  if (options_.on_offer == nullptr) return respond(session, SnapshotRefusal{"no replicas are kept here"});
  // Connections are left over for those who read: an offer is one that waits for others to be served.
  if (offers_ >= std::max<size_t>(options_.connections / 2, 1))
    return respond(session, SnapshotRefusal{"too many offers are waiting; later there may be room"});
  struct Counted {
    explicit Counted(std::atomic<size_t>& waiting) : count(waiting) { ++count; }
    ~Counted() { --count; }
    std::atomic<size_t>& count;
  } counted(offers_);
  const std::shared_ptr<OfferOutcome> outcome = options_.on_offer(offer);
  while (!stop_.is_set()) {
    const auto response = outcome->wait(kOfferPulse, stop_);
    respond(session, response.value_or(OfferPending{}));
    if (response) return;
  }
}

}  // namespace het
