#include "core/data/sampler.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/base/error.h"
#include "core/data/samples.h"

namespace het {

// The thread that makes batches ahead, and what it shares with the Sampler: everything below `mutex` under
// it.
struct Sampler::Ahead {
  struct Item {
    Batch batch;
    std::exception_ptr error;
  };

  explicit Ahead(std::shared_ptr<const Samples> s)
      : samples(std::move(s)), next(samples->options().start), thread([this] { run(); }) {}

  ~Ahead() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    room.notify_one();
    thread.join();
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      room.wait(lock, [&] { return stop || static_cast<int>(made.size()) < samples->options().ahead; });
      if (stop) return;
      const int64_t cursor = next;
      const uint64_t at = generation;
      next += samples->options().batch;
      lock.unlock();
      Item item = make(cursor);
      lock.lock();
      if (at != generation) continue;  // the sampler went elsewhere meanwhile
      made.push_back(std::move(item));
      ready.notify_one();
    }
  }

  Item make(int64_t cursor) const {
    Item item;
    try {
      item.batch = samples->batch(cursor);
    } catch (...) {
      item.error = std::current_exception();
    }
    return item;
  }

  Batch take() {
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return !made.empty(); });
    Item item = std::move(made.front());
    made.pop_front();
    lock.unlock();
    room.notify_one();
    if (item.error) std::rethrow_exception(item.error);
    return std::move(item.batch);
  }

  void seek(int64_t cursor) {
    {
      const std::lock_guard lock(mutex);
      made.clear();
      next = cursor;
      ++generation;
    }
    room.notify_one();
  }

  const std::shared_ptr<const Samples> samples;

  std::mutex mutex;
  std::condition_variable room, ready;
  std::deque<Item> made;
  int64_t next;
  uint64_t generation = 0;
  bool stop = false;
  std::thread thread;  // last: it starts when all above is there
};

Sampler::Sampler(std::shared_ptr<const Corpus> corpus, SamplerOptions options)
    : corpus_(std::move(corpus)),
      samples_(std::make_shared<const Samples>(*corpus_, options)),
      cursor_(options.start) {
  if (samples_->options().ahead > 0) ahead_ = std::make_unique<Ahead>(samples_);
}

Sampler::~Sampler() = default;

const SamplerOptions& Sampler::options() const { return samples_->options(); }
PackedExamples Sampler::packed() const { return samples_->packed(); }

Batch Sampler::next() {
  try {
    Batch batch = ahead_ ? ahead_->take() : samples_->batch(cursor_);
    cursor_ += options().batch;
    return batch;
  } catch (...) {
    seek(cursor_);  // the batch that failed is still the next one
    throw;
  }
}

void Sampler::seek(int64_t cursor) {
  if (cursor < 0) fail_usage("the cursor {} is before the first sample", cursor);
  cursor_ = cursor;
  if (ahead_) ahead_->seek(cursor);
}

void Sampler::close() { ahead_.reset(); }

}  // namespace het
