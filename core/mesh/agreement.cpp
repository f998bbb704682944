#include "core/mesh/agreement.h"

#include <algorithm>
#include <string_view>

#include "core/base/error.h"

namespace het {
namespace {

constexpr int64_t kAtEnd = 1, kInterrupted = 2;

// FNV-1a, which is the same on all machines.
int64_t digest_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

}  // namespace

Agreement::Agreement(Communicator& world, std::function<bool()> interrupted)
    : world_(world), interrupted_(std::move(interrupted)) {
  CollectiveRequest request;
  request.kind = CollectiveKind::all_gather;
  request.dtype = DType::i64;
  request.counts.assign(static_cast<size_t>(world_.size()), 2);
  request.label = "what ranks are about to do";
  gather_ = world_.prepare(request);
}

std::vector<Agreement::Word> Agreement::exchange(const std::string& what, int64_t flags) {
  if (interrupted_ && interrupted_()) flags |= kInterrupted;
  const Word own{digest_of(what), flags};
  std::vector<Word> words(static_cast<size_t>(world_.size()));
  gather_->start(reinterpret_cast<const std::byte*>(&own), reinterpret_cast<std::byte*>(words.data()));
  gather_->wait();
  return words;
}

std::vector<std::string> Agreement::gather_text(const std::string& own) {
  return all_gather_text(world_, own, "what ranks are about to do");
}

void Agreement::on(const std::string& what, const std::string& detail) {
  const std::vector<Word> words = exchange(what + "\n" + detail, 0);
  const bool interrupted = std::any_of(words.begin(), words.end(),
                                       [](const Word& word) { return (word.flags & kInterrupted) != 0; });
  const bool same = std::all_of(words.begin(), words.end(), [&](const Word& word) {
    return word.digest == words[0].digest && (word.flags & kAtEnd) == 0;
  });
  if (same && !interrupted) return;
  std::vector<std::string> texts = gather_text(what);
  if (interrupted) fail_usage("interrupted");
  const auto differs = [&](const std::string& text) { return text != texts[0]; };
  if (std::none_of(texts.begin(), texts.end(), differs))
    texts = gather_text(fmt::format("{} ({})", what, detail));
  const auto other = std::find_if(texts.begin(), texts.end(), differs) - texts.begin();
  HET_REQUIRE(other < std::ssize(texts), what);
  fail_usage(
      "ranks do different things: rank 0 is at {}, rank {} at {}; lines on distributed tensors have to do "
      "the same on every rank",
      texts[0], other, texts[static_cast<size_t>(other)]);
}

std::vector<std::string> Agreement::at_end(const std::string& place, const std::string& own) {
  for (;;) {
    const std::vector<Word> words = exchange(place, kAtEnd);
    const bool all =
        std::all_of(words.begin(), words.end(), [](const Word& word) { return (word.flags & kAtEnd) != 0; });
    if (all) return gather_text(own);
    gather_text(place);  // to those that are about to do something else
  }
}

}  // namespace het
