// A store in a bucket whose server and connections fail in every way that they can.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "snapshot/store/store.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/s3_server.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

constexpr size_t kLarge = 300'000;  // in parts of 64 KiB

std::string content_of(uint32_t seed, size_t bytes) {
  std::mt19937 random(seed);
  std::string content(bytes, '\0');
  for (char& c : content) c = static_cast<char>(random());
  return content;
}

std::string all_of(ObjectStore& store, const std::string& key, size_t bytes = kLarge) {
  std::string into(bytes, '\0');
  store.get_range(key, 0, std::as_writable_bytes(std::span(into)));
  return into;
}

// The first `count` requests that `which` picks go wrong.
auto first(int count, std::function<bool(const S3Request&)> which, S3Fault fault) {
  return [=, seen = 0](const S3Request& request) mutable {
    return which(request) && seen++ < count ? fault : S3Fault{};
  };
}
auto every(const std::string& method) {
  return [method](const S3Request& request) { return request.method == method; };
}

S3Fault status(int status, const std::string& code) { return {.status = status, .code = code}; }

}  // namespace

TEST_CASE("requests that fail in passing are tried again", "[store]") {
  const Scratch scratch;
  const std::string small = content_of(1, 1000), large = content_of(2, kLarge);
  for (const S3Fault& fault :
       {status(503, "SlowDown"), status(500, "InternalError"), status(429, "TooManyRequests"),
        status(400, "RequestTimeout"), status(200, "InternalError"), S3Fault{.lost = true}, S3Fault{.cut = 0},
        S3Fault{.cut = 20}})
    for (const char* method : {"PUT", "POST", "GET", "HEAD"}) {
      const bool is_head = method == std::string("HEAD"), is_get = method == std::string("GET");
      if (is_head && (fault.cut >= 0 || fault.status == 400)) continue;  // has no body
      if ((is_head || is_get) && fault.status == 200) continue;          // is no error then
      INFO(fmt::format("{} of a {}, lost {}, cut {}", fault.status, method, fault.lost, fault.cut));
      S3Server server;
      server.fault = first(3, every(method), fault);
      const auto store = open_store("s3://bucket/p", server.access());
      CHECK(store->put("small", scratch.put("file", small)));
      CHECK(store->put("large", scratch.put("file", large)));
      CHECK(all_of(*store, "small", 1000) == small);
      CHECK(all_of(*store, "large") == large);
      CHECK(server.objects().at("p/large").content == large);
      CHECK(server.uploads() <= 3);  // begun by requests whose answers were lost
    }
}

TEST_CASE("an answer whose text breaks off, but not by its length, is asked for again", "[store]") {
  const Scratch scratch;
  const std::string large = content_of(2, kLarge);
  const S3Fault half{.edit = [](S3Reply& reply) { reply.body.resize(reply.body.size() / 2); }};
  S3Server server;
  const auto store = open_store("s3://bucket/p", server.access());
  server.fault = first(2, every("POST"), half);
  CHECK(store->put("large", scratch.put("file", large)));
  CHECK(all_of(*store, "large") == large);
  int asked = 0;
  server.fault = [&](const S3Request& request) {
    return request.method == "GET" && ++asked < 3 ? half : S3Fault{};
  };
  CHECK(store->list().size() == 1);
  CHECK(asked == 3);
}

TEST_CASE("an upload has no more parts than servers take", "[store]") {
  const Scratch scratch;
  S3Server server;
  StoreAccess access = server.access();
  access.part_bytes = 100;
  const std::string content = content_of(3, 150'000);  // 1,500 such parts
  const auto store = open_store("s3://bucket/p", access);
  int64_t most = 0;
  server.fault = [&](const S3Request& request) {
    if (const auto part = request.query.find("partNumber"); part != request.query.end())
      most = std::max<int64_t>(most, std::stoll(part->second));
    return S3Fault{};
  };
  CHECK(store->put("many", scratch.put("file", content)));
  CHECK(most == 1000);
  CHECK(all_of(*store, "many", content.size()) == content);
}

TEST_CASE("failures that do not pass are named after a bounded number of tries, without secrets", "[store]") {
  const Scratch scratch;
  const std::string file = scratch.put("file", content_of(2, kLarge));
  S3Server server;
  const auto store = open_store("s3://bucket/p", server.access());
  server.fault = [](const S3Request&) { return status(503, "SlowDown"); };
  CHECK(error_of([&] { store->size("a"); }) ==
        "peer: HEAD of s3://bucket/p/a was answered with status 503 (6 tries)");
  CHECK(server.count("") == 6);
  for (const bool reads : {false, true}) {
    const std::string said =
        error_of([&] { reads ? void(all_of(*store, "a")) : void(store->put("a", file)); });
    CHECK_THAT(said,
               Contains("peer: ") && Contains(" of s3://bucket/p/a was answered with status 503, SlowDown: "
                                              "The server says SlowDown. (6 tries)"));
  }
  server.fault = [](const S3Request& request) {
    S3Fault fault;
    fault.edit = [request](S3Reply& reply) {
      reply = {403,
               {},
               fmt::format("<Error><Code>SignatureDoesNotMatch</Code><Message>{} {} {}</Message>"
                           "<StringToSign>\x1b</StringToSign></Error>",
                           "with \x1b[2J", S3Server::kSecret, request.header("authorization").substr(0, 16))};
    };
    return fault;
  };
  const size_t before = server.count("");
  CHECK(error_of([&] { all_of(*store, "a", 1000); }) ==
        "environment: GET of s3://bucket/p/a was answered with status 403, SignatureDoesNotMatch: with "
        "\\x1b[2J "
        "(secret) AWS4-HMAC-SHA256");
  CHECK(server.count("") == before + 1);
  server.fault = [](const S3Request&) { return S3Fault{.lost = true}; };
  CHECK_THAT(error_of([&] { store->list(); }),
             Contains("peer: GET of s3://bucket failed: ") && Contains("(6 tries)") && !Contains("secret"));
  server.fault = [](const S3Request&) {
    return S3Fault{.edit = [](S3Reply& reply) {
      reply = {301, {{"x-amz-bucket-region", "eu-west-3"}}, "<html>moved</html>"};
    }};
  };
  CHECK(error_of([&] { store->size("a"); }) ==
        "usage: HEAD of s3://bucket/p/a was answered with status 301; the bucket is in the region eu-west-3: "
        "set "
        "AWS_REGION");
}

TEST_CASE("a server that is not there is named", "[store]") {
  StoreAccess access;
  {
    const S3Server server;
    access = server.access();
  }
  access.tries = 2;
  CHECK_THAT(error_of([&] { open_store("s3://bucket", access)->list(); }),
             Contains("peer: GET of s3://bucket failed: Failed to connect") && Contains("(2 tries)"));
}

TEST_CASE("a server that falls silent counts as failed, and what it had sent is kept", "[store]") {
  S3Server server;
  const std::string content = content_of(3, kLarge);
  server.put("a", content);
  StoreAccess access = server.access();
  access.stall = std::chrono::milliseconds(200);
  access.part_bytes = kLarge;
  int asked = 0;
  std::vector<std::string> ranges;
  server.fault = [&](const S3Request& request) {
    ranges.push_back(request.header("range"));
    return ++asked == 1 ? S3Fault{.deaf = true}
           : asked == 2 ? S3Fault{.edit =
                                      [](S3Reply& reply) {
                                        reply.length = static_cast<int64_t>(reply.body.size());
                                        reply.body.resize(100'000);  // and then nothing
                                      }}
                        : S3Fault{};
  };
  CHECK(all_of(*open_store("s3://bucket", access), "a") == content);
  CHECK(ranges == std::vector<std::string>{"bytes=0-299999", "bytes=0-299999", "bytes=100000-299999"});
}

TEST_CASE("a download goes on where it broke off, as often as it gets on", "[store]") {
  S3Server server;
  const std::string content = content_of(3, kLarge);
  server.put("a", content);
  StoreAccess access = server.access();
  access.part_bytes = kLarge;
  server.fault = [](const S3Request&) { return S3Fault{.cut = 20'000}; };
  const auto store = open_store("s3://bucket", access);
  CHECK(all_of(*store, "a") == content);
  CHECK(server.count("GET") == 15);
  CHECK(server.bytes_served() == static_cast<int64_t>(kLarge));
  server.fault = [](const S3Request&) { return S3Fault{.cut = 500}; };  // too little of 300,000
  CHECK_THAT(
      error_of([&] { all_of(*store, "a"); }),
      Contains("peer: GET of s3://bucket/a failed in a reply with status 206: ") && Contains("(6 tries)"));
}

TEST_CASE("answers with other bytes than those asked for are refused", "[store]") {
  S3Server server;
  const std::string content = content_of(3, kLarge);
  server.put("a", content);
  const auto store = open_store("s3://bucket", server.access());
  const auto said = [&](std::function<void(S3Reply&)> edit) {
    server.fault = [edit = std::move(edit)](const S3Request& request) {
      return request.method == "GET" ? S3Fault{.edit = edit} : S3Fault{};
    };
    return error_of([&] { all_of(*store, "a", 50'000); });
  };
  CHECK_THAT(
      said([&](S3Reply& reply) {
        reply.status = 200;
        reply.headers.clear();
        reply.body = content;
      }),
      Contains("peer: GET of s3://bucket/a was answered with the wrong bytes: 0 to 49999 were asked for, "
               "and status 200 came with ''"));
  for (const char* range :
       {"bytes 1-50000/300000", "bytes 0-50000/300000", "bytes 5-4/300000", "bytes */300000", "bytes 0-4",
        "0-49999/300000", "bytes 0-99999999999999999999/1"})
    CHECK_THAT(said([range](S3Reply& reply) { reply.headers["Content-Range"] = range; }),
               Contains("was answered with the wrong bytes") && Contains(range));
  CHECK_THAT(
      said([](S3Reply& reply) { reply.headers["Content-Range"] = "bytes 0-49999/49000"; }),
      Contains("usage: 's3://bucket/a' is truncated: it has 49000 bytes; those up to 50000 are wanted"));
  CHECK_THAT(said([](S3Reply& reply) { reply.body += "more"; }),
             Contains("peer: ") && Contains("more bytes than were asked for") && Contains("(6 tries)"));
  CHECK_THAT(said([](S3Reply& reply) { reply.body.resize(10); }),
             Contains("peer: ") && Contains("it ended after 10 of 49") && Contains("(6 tries)"));
}

TEST_CASE("an answer that was lost does not make a put fail or be made twice", "[store]") {
  const Scratch scratch;
  const std::string large = scratch.put("file", content_of(2, kLarge)), small = scratch.put("small", "small");
  for (const bool conditional : {true, false}) {
    S3Server server;
    server.conditional = conditional;
    const auto lose = [](const S3Request& request) {
      return (request.method == "POST" && request.has("uploadId")) ||
             (request.method == "PUT" && !request.has("uploadId"));
    };
    server.fault = first(1, lose, {.lost = true});
    const auto store = open_store("s3://bucket", server.access());
    CHECK(store->put("large", large, true));
    CHECK(server.objects().at("large").content == content_of(2, kLarge));
    CHECK(server.uploads() == 0);
    CHECK(server.count("POST large uploads") == 1);
    server.fault = first(1, lose, {.lost = true});
    CHECK(store->put("small", small, true));
    CHECK_FALSE(store->put("small", large, true));
    CHECK(server.objects().at("small").content == "small");
  }
}

TEST_CASE("of two that put what is not there one is refused, where the server can tell", "[store]") {
  const Scratch scratch;
  for (const size_t bytes : {size_t{1000}, kLarge}) {
    S3Server server;
    const std::string file = scratch.put("file", content_of(2, bytes));
    int heads = 0;
    const auto store = open_store("s3://bucket", server.access());
    const auto other = open_store("s3://bucket", server.access());
    server.fault = [&](const S3Request& request) {  // the first look finds nothing, then the other one writes
      return request.method == "HEAD" && ++heads == 1 ? status(404, "NoSuchKey") : S3Fault{};
    };
    server.put("a", "another's");
    CHECK_FALSE(store->put("a", file, true));
    CHECK(server.objects().at("a").content == "another's");
    CHECK(server.uploads() == 0);
  }
}

TEST_CASE("an object is put again when the server has less than it was sent", "[store]") {
  const Scratch scratch;
  for (const size_t bytes : {size_t{1000}, kLarge}) {
    S3Server server;
    const std::string content = content_of(2, bytes), file = scratch.put("file", content);
    int heads = 0;
    server.fault = [&](const S3Request& request) {
      return request.method == "HEAD" && ++heads <= 2
                 ? S3Fault{.edit = [](S3Reply& reply) { reply.length = 10; }}
                 : S3Fault{};
    };
    const auto store = open_store("s3://bucket", server.access());
    CHECK(store->put("a", file));
    CHECK(heads == 3);
    CHECK(server.objects().at("a").content == content);
    heads = -100;
    CHECK(error_of([&] { store->put("a", file); }) ==
          fmt::format("peer: 's3://bucket/a' was sent {} bytes and has 10 (6 tries)", bytes));
    CHECK(server.objects().empty());
  }
}

TEST_CASE("an upload that fails is aborted, and an unfinished one is given up after its time", "[store]") {
  const Scratch scratch;
  S3Server server;
  server.page = 2;
  const std::string file = scratch.put("file", content_of(2, kLarge));
  const auto store = open_store("s3://bucket/p", server.access());
  server.fault = [](const S3Request& request) {
    return request.has("partNumber") && request.query.at("partNumber") == "3" ? status(403, "AccessDenied")
                                                                              : S3Fault{};
  };
  CHECK_THAT(error_of([&] { store->put("a", file); }),
             Contains("environment: PUT of s3://bucket/p/a was answered with status 403, AccessDenied"));
  CHECK(server.uploads() == 0);
  server.fault = [](const S3Request& request) {
    return request.has("partNumber") || request.method == "DELETE" ? status(403, "AccessDenied") : S3Fault{};
  };
  for (const char* key : {"a", "b/c=+", "b/c=+", "d", "e"}) CHECK_THROWS(store->put(key, file));
  CHECK_THROWS(open_store("s3://bucket/other", server.access())->put("a", file));
  CHECK(server.uploads() == 6);
  server.fault = nullptr;
  server.begun = "2999-01-02T03:04:05.000Z";
  CHECK(store->remove_unfinished(std::chrono::hours(24)).empty());
  server.begun = "not a time";
  CHECK(store->remove_unfinished(std::chrono::hours(24)).empty());
  server.begun = "2020-01-02T03:04:05.000Z";
  CHECK(store->remove_unfinished(std::chrono::hours(24)) ==
        std::vector<std::string>{"a", "b/c=+", "b/c=+", "d", "e"});
  CHECK(server.uploads() == 1);
}

TEST_CASE("listings of hostile servers end", "[store]") {
  S3Server server;
  server.put("a", "a");
  const auto store = open_store("s3://bucket", server.access());
  const auto said = [&](const std::string& body) {
    server.fault = [body](const S3Request&) {
      return S3Fault{.edit = [body](S3Reply& reply) { reply.body = body; }};
    };
    return error_of([&] { store->list(); });
  };
  CHECK_THAT(said("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
             Contains("peer: GET of s3://bucket: the listing does not end"));
  CHECK_THAT(said("<Other/>"),
             Contains("peer: GET of s3://bucket was answered with something else than <ListBucketResult>"));
  CHECK_THAT(said("<ListBucketResult>"), Contains("something else"));
  CHECK(said("<ListBucketResult><Contents><Key>b</Key><Size>-1</Size></Contents><Contents/>"
             "<Contents><Key>c/</Key><Size>0</Size></Contents></ListBucketResult>") == "none");
  CHECK(store->list().empty());
  CHECK_THAT(said(std::string(17 << 20, ' ')), Contains("longer than a reply may be"));
}

TEST_CASE("credentials that end in the middle of a run are read again", "[store]") {
  S3Server server;
  server.put("a", "a");
  std::string token = "old";
  StoreAccess access = server.access();
  access.environment = [&, given = access.environment](const std::string& name) {
    return name == "AWS_SESSION_TOKEN" ? std::optional(token) : given(name);
  };
  const auto store = open_store("s3://bucket", access);
  server.fault = [](const S3Request& request) {
    return request.header("x-amz-security-token") == "new" ? S3Fault{} : status(400, "ExpiredToken");
  };
  CHECK_THAT(error_of([&] { store->list(); }), Contains("status 400, ExpiredToken"));
  token = "new";
  CHECK(store->list().size() == 1);
}

TEST_CASE("whatever fails, in any order: a transfer ends with the right bytes or an error", "[store]") {
  const Scratch scratch;
  int whole = 0, failed = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    S3Server server;
    std::mt19937 random(seed);
    const int odds = 2 + static_cast<int>(seed % 12);
    server.fault = [&](const S3Request&) -> S3Fault {
      if (random() % static_cast<unsigned>(odds) != 0) return {};
      switch (random() % 4) {
        case 0: return status(503, "SlowDown");
        case 1: return {.lost = true};
        case 2: return {.cut = static_cast<int64_t>(random() % 60'000)};
        default: return {.edit = [](S3Reply& reply) { reply.body.resize(reply.body.size() / 2); }};
      }
    };
    const size_t bytes = random() % kLarge;
    const std::string content = content_of(seed, bytes);
    const auto store = open_store("s3://bucket", server.access());
    try {
      store->put("a", scratch.put("file", content));
      CHECK(server.objects().at("a").content == content);
      CHECK(all_of(*store, "a", bytes) == content);
      ++whole;
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::peer);
      ++failed;
    }
    if (const auto left = server.objects(); left.count("a") != 0) CHECK(left.at("a").content == content);
  }
  CHECK(whole > 30);
  CHECK(failed < 30);
}
