// Requests to one bucket: addressed, signed, tried again where that helps, and their failures as sentences
// without secrets. Internal to snapshot/store. Used from several threads.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "snapshot/store/backoff.h"
#include "snapshot/store/credentials.h"
#include "snapshot/store/store.h"
#include "snapshot/store/web.h"

namespace het {

struct S3Call {
  std::string method;
  std::string key;                             // in the bucket; empty: the bucket itself
  std::map<std::string, std::string> query;    // not encoded
  std::map<std::string, std::string> headers;  // lower-case names
  std::span<const std::byte> body;
  std::span<std::byte> into;
  const TransferOptions* options = nullptr;
  std::function<void(int64_t bytes)> progress;  // of this call alone
};

class S3Client {
 public:
  S3Client(std::string bucket, const StoreAccess& access);

  // The reply to a call that is tried again after failures that may pass. A reply with a 4xx status, which
  // the caller knows what to do with, is returned too. Throws Error(peer) when the tries are used up, and
  // when it is cancelled.
  WebReply send(const S3Call& call);
  WebReply send_once(const S3Call& call);

  // A failure that may pass: no whole reply, an overloaded server, a broken one.
  static bool may_pass(const WebReply& reply);
  // The kind of failure and the sentence for it; the reply is one that did not succeed.
  [[noreturn]] void refuse(const S3Call& call, const WebReply& reply, int tries = 1) const;
  Backoff backoff() const;
  // Waits before the next try. Throws Error(peer) when the call is cancelled meanwhile.
  void wait(const S3Call& call, std::chrono::milliseconds time) const;
  int tries() const { return access_.tries; }
  std::string name_of(const std::string& key) const;  // "s3://bucket/key"

 private:
  WebReply perform(const S3Call& call);
  bool renew_credentials();
  std::string without_secrets(std::string text) const;

  const std::string bucket_;
  const StoreAccess access_;
  const S3Site site_;
  std::string origin_;  // "https://host", and the bucket in the path or not
  std::string host_, path_;
  mutable std::mutex mutex_;
  Credentials credentials_;  // guarded by mutex_
  std::unique_ptr<WebClient> web_;
};

// <Code> of an answer that is an <Error>; empty: it is none.
std::string error_code(const WebReply& reply);

}  // namespace het
