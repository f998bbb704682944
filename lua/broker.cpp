#include "lua/broker.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/error.h"

namespace het::lua {
namespace {

enum class Call : uint8_t {
  open,
  kind,
  make_folders,
  rename,
  remove,
  flush,
  problem,
  grant_option,
  add_named
};

struct Request {
  Call call;
  uint8_t mode = 0;  // OpenMode, or whether it is written to
  Purpose purpose = Purpose::data;
  uint32_t first = 0, second = 0;  // bytes of the two texts that follow
};

struct Reply {
  int32_t value = 0;  // a negative errno, a kind, or 0
  int32_t error = 0;  // ErrorKind of the text that follows; 0: it is a result
  uint32_t bytes = 0;
};

constexpr size_t kMostBytes = 65536;  // of a message
using Message = std::array<char, kMostBytes>;

// One message of a socket that keeps them apart, with a descriptor where `descriptor` is not negative.
bool send_message(int socket, const void* head, size_t head_bytes, std::string_view text, int descriptor) {
  std::array<iovec, 2> parts{iovec{const_cast<void*>(head), head_bytes},
                             iovec{const_cast<char*>(text.data()), text.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(head_bytes + text.size());
}

// Bytes of the message received into `bytes`, 0 when the other end is closed.
size_t receive_message(int socket, Message& bytes, Descriptor& descriptor) {
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return 0;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each))
    if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_RIGHTS)
      // There is room for two; all but the last are closed.
      for (size_t at = CMSG_LEN(0); at + sizeof(int) <= each->cmsg_len; at += sizeof(int)) {
        int value = -1;
        std::memcpy(&value, reinterpret_cast<char*>(each) + at, sizeof value);
        descriptor = Descriptor(value);
      }
  return static_cast<size_t>(got);
}

// --- the broker

struct Response {
  Reply reply;
  std::string text;
  Descriptor descriptor;
};

Response respond(RecipeFiles& files, const Request& request, const std::string& first,
                 const std::string& second) {
  Response result;
  try {
    switch (request.call) {
      case Call::open:
        result.reply.value = files.open(first, static_cast<OpenMode>(request.mode), request.purpose);
        result.descriptor = Descriptor(result.reply.value);
        break;
      case Call::kind: result.reply.value = static_cast<int32_t>(files.kind(first, request.purpose)); break;
      case Call::make_folders: result.reply.value = files.make_folders(first); break;
      case Call::rename: result.reply.value = files.rename(first, second); break;
      case Call::remove: result.reply.value = files.remove(first); break;
      case Call::flush: result.reply.value = files.flush_folder_of(first); break;
      case Call::problem: result.text = files.problem(first, request.mode != 0, request.purpose); break;
      case Call::grant_option: files.grant_option(first, request.mode != 0); break;
      case Call::add_named: files.add_named(first); break;
    }
  } catch (const Error& error) {
    result.reply.error = static_cast<int32_t>(error.kind());
    result.text = error.sentence();
  } catch (const std::exception& error) {
    result.reply.error = static_cast<int32_t>(ErrorKind::bug);
    result.text = error.what();
  }
  return result;
}

// Until the other end is closed. What it is asked is not believed to be well formed.
void serve(int socket, RecipeFiles& files) {
  const auto bytes = std::make_unique<Message>();
  for (;;) {
    Descriptor unasked;
    const size_t got = receive_message(socket, *bytes, unasked);
    if (got == 0) return;
    Request request{};
    if (got < sizeof request) return;
    std::memcpy(&request, bytes->data(), sizeof request);
    if (sizeof request + size_t{request.first} + size_t{request.second} != got) return;
    if (request.call > Call::add_named || request.mode > static_cast<uint8_t>(OpenMode::append) ||
        request.purpose > Purpose::own)
      return;
    const std::string first(bytes->data() + sizeof request, request.first);
    const std::string second(bytes->data() + sizeof request + request.first, request.second);
    Response done = respond(files, request, first, second);
    done.text.resize(std::min(done.text.size(), kMostBytes / 2));
    done.reply.bytes = static_cast<uint32_t>(done.text.size());
    if (!send_message(socket, &done.reply, sizeof done.reply, done.text, done.descriptor.number())) return;
  }
}

// --- the confined side

class RemoteFiles final : public RecipeAccess {
 public:
  explicit RemoteFiles(Descriptor socket) : socket_(std::move(socket)) {}

  int open(const std::string& path, OpenMode mode, Purpose purpose) override {
    Descriptor descriptor;
    const int value = ask(Call::open, static_cast<uint8_t>(mode), purpose, path, {}, nullptr, &descriptor);
    if (value < 0) return value;
    return descriptor ? descriptor.release() : -EMFILE;  // it was sent, and there was no place for it
  }
  FileKind kind(const std::string& path, Purpose purpose) override {
    return static_cast<FileKind>(ask(Call::kind, 0, purpose, path));
  }
  int make_folders(const std::string& path) override {
    return ask(Call::make_folders, 0, Purpose::data, path);
  }
  int rename(const std::string& from, const std::string& to) override {
    return ask(Call::rename, 0, Purpose::data, from, to);
  }
  int remove(const std::string& path) override { return ask(Call::remove, 0, Purpose::data, path); }
  int flush_folder_of(const std::string& path) override { return ask(Call::flush, 0, Purpose::data, path); }
  std::string target(const std::string& path) override { return path; }
  std::string problem(const std::string& path, bool writes, Purpose purpose) override {
    std::string text;
    ask(Call::problem, writes ? 1 : 0, purpose, path, {}, &text);
    return text;
  }
  void grant_option(const std::string& name, bool writes) override {
    ask(Call::grant_option, writes ? 1 : 0, Purpose::data, name);
  }
  void add_named(const std::string& file) override { ask(Call::add_named, 0, Purpose::data, file); }

 private:
  int ask(Call call, uint8_t mode, Purpose purpose, const std::string& first, const std::string& second = {},
          std::string* text = nullptr, Descriptor* descriptor = nullptr) {
    if (first.size() + second.size() > kMostBytes / 2)
      fail_usage("a path of {} bytes is too long", std::max(first.size(), second.size()));
    const Request request{call, mode, purpose, static_cast<uint32_t>(first.size()),
                          static_cast<uint32_t>(second.size())};
    const auto bytes = std::make_unique<Message>();
    const std::lock_guard lock(mutex_);
    Descriptor got;
    Reply reply;
    size_t count = 0;
    if (!send_message(socket_.number(), &request, sizeof request, first + second, -1) ||
        (count = receive_message(socket_.number(), *bytes, got)) < sizeof reply)
      fail_environment("the process that opens files for the recipe has ended, so '{}' cannot be opened",
                       first);
    std::memcpy(&reply, bytes->data(), sizeof reply);
    std::string said(bytes->data() + sizeof reply, count - sizeof reply);
    if (reply.error != 0) throw Error(static_cast<ErrorKind>(reply.error), std::move(said));
    if (text != nullptr) *text = std::move(said);
    if (descriptor != nullptr) *descriptor = std::move(got);
    return reply.value;
  }

  std::mutex mutex_;  // saves run beside the steps
  Descriptor socket_;
};

}  // namespace

std::shared_ptr<RecipeAccess> start_broker(std::unique_ptr<RecipeFiles> files, int kept) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail_environment("cannot start the process that opens files for the recipe: {}", std::strerror(errno));
  Descriptor own(ends[0]), other(ends[1]);
  const pid_t parent = getpid(), child = fork();
  if (child < 0)
    fail_environment("cannot start the process that opens files for the recipe: {}", std::strerror(errno));
  if (child > 0) {
    // What else is open was left open by whoever started hetrun, and is not for recipes.
    files.reset();
    other = Descriptor();
    unsigned next = STDERR_FILENO + 1;
    for (const int keep : {std::min(kept, own.number()), std::max(kept, own.number())}) {
      const auto number = static_cast<unsigned>(keep);
      if (keep > static_cast<int>(next)) close_range(next, number - 1, 0);
      if (keep >= 0) next = number + 1;
    }
    close_range(next, ~0U, 0);
    return std::make_shared<RemoteFiles>(std::move(own));
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "hetrun-files");
  if (getppid() != parent) _exit(0);
  // The terminal's Ctrl-C is for the run, which still needs its files.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) std::signal(signal, SIG_IGN);
  own = Descriptor();
  if (kept >= 0) close(kept);
  // Pipes end when the run ends.
  const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing.number(), standard);
  try {
    serve(other.number(), *files);
  } catch (const std::exception&) {  // no memory: the run finds the broker gone
    _exit(1);
  }
  _exit(0);
}

}  // namespace het::lua
