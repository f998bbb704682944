#include "core/cluster/etcd_store.h"

#include <atomic>
#include <charconv>
#include <mutex>
#include <thread>

#include "core/base/base64.h"
#include "core/base/error.h"
#include "core/io/json.h"
#include "core/net/socket.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using std::chrono::milliseconds;

// Codes of gRPC that etcd's gateway reports.
enum Code : int64_t { kInvalid = 3, kNotFound = 5, kForbidden = 7, kUnavailable = 14, kUnauthenticated = 16 };

// etcd's integers are text in JSON; a zero is left out.
int64_t integer(const Json* json) {
  if (const int64_t* number = as_integer(json)) return *number;
  int64_t value = 0;
  if (const std::string* text = as_string(json))
    std::from_chars(text->data(), text->data() + text->size(), value);
  return value;
}

bool flag(const Json* json) {
  const bool* value = as_bool(json);
  return value && *value;
}

std::string bytes(const Json* json) {
  const std::string* text = as_string(json);
  if (!text) return {};
  auto value = from_base64(*text);
  if (!value) fail(ErrorKind::peer, "etcd sent bytes that are not base64");
  return std::move(*value);
}

const Json* find(const Json& json, std::initializer_list<std::string_view> path) {
  const Json* at = &json;
  for (const std::string_view name : path) at = find_member(at, name);
  return at;
}

Json reply_of(const std::string& text) {
  try {
    return parse_json(text, "etcd's response");
  } catch (const Error& error) {
    fail(ErrorKind::peer, "{}", error.sentence());
  }
}

// The end of the range of keys that begin with `prefix`: the prefix with its last byte increased, where bytes
// that cannot be are dropped; without any left, a zero byte: up to the last key.
std::string end_of_prefix(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  ++prefix.back();
  return prefix;
}

Json::object_t range_of_prefix(const std::string& prefix) {
  return {{"key", to_base64(prefix.empty() ? std::string(1, '\0') : prefix)},
          {"range_end", to_base64(end_of_prefix(prefix))}};
}

// The connection to a cluster of etcd: which endpoint to ask, when to ask the next, and the token.
// Thread-safe.
class Cluster {
 public:
  explicit Cluster(EtcdOptions options) : options_(std::move(options)), http_(options_.http) {
    if (options_.endpoints.empty())
      fail_usage("etcd needs at least one endpoint, such as http://10.0.0.7:2379");
    for (std::string& endpoint : options_.endpoints) {
      if (!endpoint.starts_with("http://") && !endpoint.starts_with("https://"))
        fail_usage(
            "'{}' is no endpoint of etcd; one begins with http:// or https://, such as "
            "http://10.0.0.7:2379",
            endpoint);
      while (endpoint.ends_with('/')) endpoint.pop_back();
    }
  }

  const EtcdOptions& options() const { return options_; }
  std::string describe() const { return fmt::format("etcd at {}", fmt::join(options_.endpoints, ", ")); }

  // What the majority has come to.
  int64_t revision() {
    const Json reply =
        ask("kv/range", Json::object_t{{"key", to_base64("hetrun")}, {"count_only", true}}, true);
    return integer(find(reply, {"header", "revision"}));
  }

  // Ask until one endpoint answers. `repeatable`: asking twice does what asking once does; otherwise only
  // what surely was not received is asked again.
  Json ask(const std::string& path, const Json& content, bool repeatable) {
    constexpr milliseconds kPause{50};  // for an election to end
    const Deadline deadline = Clock::now() + options_.timeout;
    std::string problem = fmt::format("no response within {} ms", options_.timeout.count());
    for (size_t attempt = 0, renewed = 0;; ++attempt) {
      const size_t index = current_;
      const auto asked = Clock::now();
      const HttpReply reply = http_.post(request_of(index, path, content, deadline, repeatable, attempt));
      if (reply.status == 200) return reply_of(reply.body);
      const Json error = reply.status ? error_of(reply) : Json();
      const int64_t code = integer(find_member(error, "code"));
      if (code == kUnauthenticated && !options_.user.empty() && renewed++ == 0) {
        forget_token();
        continue;
      }
      if (reply.status && code != kUnavailable) refuse(error);
      // Of an attempt that had hardly any time, silence says less than what went wrong before.
      const bool hurried = attempt > 0 && !reply.status && deadline - asked < kPause;
      if (!hurried)
        problem = fmt::format("{}: {}", options_.endpoints[index],
                              reply.status ? sentence_of(error) : reply.problem);
      size_t failed = index;
      current_.compare_exchange_strong(failed, next(index));
      const bool whole_round = (attempt + 1) % options_.endpoints.size() == 0;
      if ((reply.sent && !repeatable) || Clock::now() + kPause >= deadline)
        fail(ErrorKind::peer, "{} did not answer; {}", describe(), problem);
      if (whole_round) std::this_thread::sleep_for(kPause);
    }
  }

  struct Stream {
    std::unique_ptr<HttpStream> lines;
    Json first;  // the first line
    size_t endpoint = 0;
  };
  // A stream that an endpoint has confirmed.
  Stream stream(const std::string& path, const Json& content) {
    const Deadline deadline = Clock::now() + options_.timeout;
    for (size_t attempt = 0;; ++attempt) {
      const size_t index = current_;
      std::string problem = "no response";
      try {
        const HttpRequest asked = request_of(index, path, content, deadline, true, attempt);
        auto stream = std::make_unique<HttpStream>(options_.http, asked);
        if (const auto line = stream->next_line(std::min(deadline, Clock::now() + asked.timeout))) {
          Json first = reply_of(*line);
          if (!find_member(first, "error")) return {std::move(stream), std::move(first), index};
          problem = sentence_of(first);
          forget_token();
        }
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::peer) throw;
        problem = error.sentence();
      }
      size_t failed = index;
      current_.compare_exchange_strong(failed, next(index));
      constexpr milliseconds kPause{50};
      if (Clock::now() + kPause >= deadline)
        fail(ErrorKind::peer, "{} did not answer; {}: {}", describe(), options_.endpoints[index], problem);
      std::this_thread::sleep_for(kPause);
    }
  }

  // The endpoint that answers, by the word of the majority. Throws when there is none.
  size_t answering() {
    revision();
    return current_;
  }

  static std::string sentence_of(const Json& reply) {
    for (const auto path :
         {std::initializer_list<std::string_view>{"error", "message"}, {"message"}, {"error"}})
      if (const std::string* text = as_string(find(reply, path))) return *text;
    return "a response that is not etcd's";
  }

 private:
  size_t next(size_t index) const { return (index + 1) % options_.endpoints.size(); }

  HttpRequest request_of(size_t index, const std::string& path, const Json& content, Deadline deadline,
                         bool repeatable, size_t attempt) {
    HttpRequest request;
    request.url = options_.endpoints[index] + "/v3/" + path;
    request.body = dump(content);
    request.timeout = std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
    // One that is silent must not use up the time in which others could answer; nor may a slow network be
    // taken for silence for ever.
    constexpr milliseconds kFirst{1500};
    const size_t round = std::min<size_t>(attempt / options_.endpoints.size(), 10);
    if (repeatable && options_.endpoints.size() > 1)
      request.timeout = std::min(request.timeout, kFirst * (1 << round));
    request.once = !repeatable;
    if (!options_.user.empty() && path != "auth/authenticate")
      request.headers = {"Authorization: " + token()};
    return request;
  }

  static Json error_of(const HttpReply& reply) {
    try {
      return parse_json(reply.body, "etcd's response");
    } catch (const Error&) {
      fail(ErrorKind::peer, "what answers is not etcd's JSON gateway (HTTP status {})", reply.status);
    }
  }
  [[noreturn]] void refuse(const Json& error) const {
    const int64_t code = integer(find_member(error, "code"));
    const std::string sentence = sentence_of(error);
    if (code == kNotFound && sentence.find("lease") != sentence.npos)
      fail(ErrorKind::peer, "the lease has lapsed, or never was ({})", sentence);
    const bool mistake = code == kInvalid || code == kForbidden || code == kUnauthenticated;
    fail(mistake ? ErrorKind::usage : ErrorKind::peer, "{} refuses: {}", describe(), sentence);
  }

  std::string token() {
    {
      std::lock_guard lock(mutex_);
      if (!token_.empty()) return token_;
    }
    const Json reply = ask("auth/authenticate",
                           Json::object_t{{"name", options_.user}, {"password", options_.password}}, true);
    const std::string* token = as_string(find_member(reply, "token"));
    if (!token) fail(ErrorKind::peer, "{} gave no token to user {}", describe(), options_.user);
    std::lock_guard lock(mutex_);
    token_ = *token;
    return token_;
  }
  void forget_token() {
    std::lock_guard lock(mutex_);
    token_.clear();
  }

  EtcdOptions options_;
  HttpClient http_;
  std::atomic<size_t> current_ = 0;  // the endpoint to ask
  std::mutex mutex_;
  std::string token_;
};

StoreEntry entry_of(const Json& kv, size_t prefix) {
  StoreEntry entry;
  entry.key = bytes(find_member(kv, "key"));
  if (entry.key.size() < prefix) fail(ErrorKind::peer, "etcd sent a key outside of what was asked for");
  entry.key.erase(0, prefix);
  entry.value = bytes(find_member(kv, "value"));
  entry.created = integer(find_member(kv, "create_revision"));
  entry.revision = integer(find_member(kv, "mod_revision"));
  entry.lease = integer(find_member(kv, "lease"));
  return entry;
}

constexpr milliseconds kQuiet{5'000};  // of a watch, until it asks whether its member is alive

class EtcdWatch final : public StoreWatch {
 public:
  EtcdWatch(std::shared_ptr<Cluster> cluster, std::string prefix, int64_t from)
      : cluster_(std::move(cluster)), prefix_(std::move(prefix)), next_(from) {
    open();
  }

  std::vector<StoreEvent> next(milliseconds timeout) override {
    const Deadline deadline = Clock::now() + timeout;
    while (!closed_) {
      if (!stream_now()) open();
      std::vector<StoreEvent> events = read(std::min(deadline, heard_ + kQuiet));
      if (!events.empty()) return events;
      if (Clock::now() >= heard_ + kQuiet && !closed_) check();
      if (Clock::now() >= deadline) break;
    }
    return {};
  }

  void close() override {
    std::lock_guard lock(mutex_);
    closed_ = true;
    if (stream_) stream_->end();
  }

 private:
  std::shared_ptr<HttpStream> stream_now() {
    std::lock_guard lock(mutex_);
    return stream_;
  }
  void set_stream(std::shared_ptr<HttpStream> stream) {
    std::lock_guard lock(mutex_);
    stream_ = std::move(stream);
    if (stream_ && closed_) stream_->end();
  }

  // Without a stream afterwards when its endpoint is lost; another one goes on from the same revision.
  std::vector<StoreEvent> read(Deadline deadline) {
    Json message;
    try {
      const auto line = stream_now()->next_line(deadline);
      if (!line) return {};
      heard_ = Clock::now();
      message = reply_of(*line);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer) throw;
      set_stream(nullptr);
      return {};
    }
    if (!find_member(message, "error")) return take(message);
    set_stream(nullptr);
    return {};
  }

  // A member that hangs, or that is cut off from the others, is as quiet as one without events.
  void check() {
    if (cluster_->answering() != endpoint_) set_stream(nullptr);
    heard_ = Clock::now();
  }

  void open() {
    Json::object_t create = range_of_prefix(cluster_->options().prefix + prefix_);
    if (next_ > 0) create.emplace_back("start_revision", std::to_string(next_));
    Cluster::Stream stream = cluster_->stream("watch", Json::object_t{{"create_request", create}});
    const Json& first = stream.first;
    const Json* revision = find(first, {"result", "header", "revision"});
    if (!flag(find(first, {"result", "created"})) || !revision)
      fail(ErrorKind::peer, "{} did not begin a watch: {}", cluster_->describe(), dump(first));
    if (next_ <= 0) next_ = integer(revision) + 1;
    // A member may be behind the others. Where all are, data was lost, and the watch would wait for ever.
    const int64_t there = next_ > integer(revision) + 1 ? cluster_->revision() : integer(revision);
    if (next_ > there + 1)
      fail(ErrorKind::peer, "{} is at revision {}, and has forgotten those to {}", cluster_->describe(),
           there, next_ - 1);
    endpoint_ = stream.endpoint;
    heard_ = Clock::now();
    set_stream(std::move(stream.lines));
  }

  std::vector<StoreEvent> take(const Json& message) {
    const Json* result = find_member(message, "result");
    if (!result) fail(ErrorKind::peer, "etcd sent no event where one was due");
    if (flag(find_member(result, "canceled"))) {
      const int64_t compacted = integer(find_member(result, "compact_revision"));
      if (compacted)
        fail(ErrorKind::peer, "the store has forgotten the events from revision {} to {}", next_,
             compacted - 1);
      set_stream(nullptr);
      return {};
    }
    std::vector<StoreEvent> events;
    const Json::array_t* list = as_array(find_member(result, "events"));
    if (!list) return {};
    for (const Json& item : *list) {
      const Json* kv = find_member(item, "kv");
      const std::string* type = as_string(find_member(item, "type"));
      if (!kv) fail(ErrorKind::peer, "etcd sent an event without a key");
      StoreEvent event;
      event.entry = entry_of(*kv, cluster_->options().prefix.size());
      if (type && *type == "DELETE") event.kind = StoreEvent::Kind::removed;
      if (event.entry.revision < next_) continue;
      events.push_back(std::move(event));
    }
    if (!events.empty()) next_ = events.back().entry.revision + 1;
    return events;
  }

  std::shared_ptr<Cluster> cluster_;
  std::string prefix_;
  int64_t next_;
  size_t endpoint_ = 0;      // of the stream
  Clock::time_point heard_;  // from it, or of it
  std::mutex mutex_;
  std::shared_ptr<HttpStream> stream_;
  std::atomic<bool> closed_ = false;
};

class EtcdStore final : public Store {
 public:
  explicit EtcdStore(EtcdOptions options) : cluster_(std::make_shared<Cluster>(std::move(options))) {
    list("");  // an endpoint answers, and lets one in
  }

  std::string describe() const override { return cluster_->describe(); }

  StoreLease grant(milliseconds ttl) override {
    if (ttl < milliseconds(1)) fail_usage("a lease lives for 1 ms or more; {} ms asked", ttl.count());
    const int64_t seconds = std::chrono::ceil<std::chrono::seconds>(ttl).count();
    const Json reply = cluster_->ask("lease/grant", Json::object_t{{"TTL", std::to_string(seconds)}}, true);
    const std::chrono::seconds granted(integer(find_member(reply, "TTL")));
    return {integer(find_member(reply, "ID")), granted, milliseconds(granted) / 3};
  }
  void keep_alive(int64_t lease) override {
    const Json reply = cluster_->ask("lease/keepalive", Json::object_t{{"ID", std::to_string(lease)}}, true);
    if (integer(find(reply, {"result", "TTL"})) <= 0)
      fail(ErrorKind::peer, "lease {:x} has lapsed, or never was", lease);
  }
  void revoke(int64_t lease) override {
    const Json id = Json::object_t{{"ID", std::to_string(lease)}};
    try {
      cluster_->ask("lease/revoke", id, true);
    } catch (const Error&) {
      if (integer(find_member(cluster_->ask("lease/timetolive", id, true), "TTL")) > 0) throw;
    }
  }

  std::optional<StoreEntry> get(const std::string& key) override {
    check_store_key(key);
    const StoreListing found = entries(cluster_->ask("kv/range", Json::object_t{{"key", name(key)}}, true));
    return found.entries.empty() ? std::nullopt : std::optional(found.entries[0]);
  }
  StoreListing list(const std::string& prefix) override {
    check_store_prefix(prefix);
    return entries(cluster_->ask("kv/range", range_of_prefix(cluster_->options().prefix + prefix), true));
  }
  int64_t put(const std::string& key, const std::string& value, int64_t lease) override {
    const Json reply = cluster_->ask("kv/put", put_of(key, value, lease), true);
    return integer(find(reply, {"header", "revision"}));
  }
  std::optional<int64_t> create(const std::string& key, const std::string& value, int64_t lease) override {
    return put_if(Json::object_t{{"key", name(key)}, {"target", "CREATE"}, {"create_revision", "0"}}, key,
                  value, lease);
  }
  std::optional<int64_t> replace(const std::string& key, const std::string& value, int64_t revision,
                                 int64_t lease) override {
    if (revision <= 0) return std::nullopt;  // to etcd, 0 is the revision of a key that is not there
    return put_if(
        Json::object_t{{"key", name(key)}, {"target", "MOD"}, {"mod_revision", std::to_string(revision)}},
        key, value, lease);
  }
  bool remove(const std::string& key) override {
    check_store_key(key);
    return integer(find_member(cluster_->ask("kv/deleterange", Json::object_t{{"key", name(key)}}, false),
                               "deleted")) > 0;
  }
  std::unique_ptr<StoreWatch> watch(const std::string& prefix, int64_t from) override {
    check_store_prefix(prefix);
    return std::make_unique<EtcdWatch>(cluster_, prefix, from);
  }

 private:
  std::string name(const std::string& key) const { return to_base64(cluster_->options().prefix + key); }

  Json put_of(const std::string& key, const std::string& value, int64_t lease) const {
    check_store_key(key);
    check_store_value(key, value);
    return Json::object_t{{"key", name(key)}, {"value", to_base64(value)}, {"lease", std::to_string(lease)}};
  }
  std::optional<int64_t> put_if(const Json& comparison, const std::string& key, const std::string& value,
                                int64_t lease) {
    const Json put = Json::object_t{{"request_put", put_of(key, value, lease)}};
    const Json reply = cluster_->ask(
        "kv/txn", Json::object_t{{"compare", Json::array_t{comparison}}, {"success", Json::array_t{put}}},
        false);
    if (!flag(find_member(reply, "succeeded"))) return std::nullopt;
    return integer(find(reply, {"header", "revision"}));
  }
  StoreListing entries(const Json& reply) const {
    StoreListing listing;
    listing.revision = integer(find(reply, {"header", "revision"}));
    if (const Json::array_t* kvs = as_array(find_member(reply, "kvs")))
      for (const Json& kv : *kvs) listing.entries.push_back(entry_of(kv, cluster_->options().prefix.size()));
    return listing;
  }

  std::shared_ptr<Cluster> cluster_;
};

}  // namespace

EtcdPlaces parse_etcd_rendezvous(std::string_view text) {
  constexpr std::string_view kScheme = "etcd://";
  if (!text.starts_with(kScheme))
    fail_usage(
        "rendezvous = \"{}\" is no place to meet; \"etcd://host:2379\" is one, with further members after "
        "commas",
        text);
  EtcdPlaces places;
  std::string_view rest = text.substr(kScheme.size());
  while (true) {
    const size_t comma = rest.find(',');
    const Endpoint endpoint = with_context([&] { return fmt::format("rendezvous = \"{}\"", text); },
                                           [&] { return parse_endpoint(rest.substr(0, comma)); });
    if (places.endpoints.empty()) places.host = endpoint.host;
    places.endpoints.push_back("http://" + to_string(endpoint));
    if (comma == rest.npos) return places;
    rest.remove_prefix(comma + 1);
  }
}

std::shared_ptr<Store> connect_etcd(EtcdOptions options) {
  return std::make_shared<EtcdStore>(std::move(options));
}

}  // namespace het
