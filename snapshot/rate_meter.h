// How fast a tier was read or written of late.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace het {

// Bytes a second of transfers that may overlap: the time counts in which at least one is under way.
// Thread-safe.
class RateMeter {
 public:
  // One transfer, as long as it lives; of no bytes before any `arrived`.
  class Transfer {
   public:
    explicit Transfer(RateMeter& meter) : meter_(meter) { meter_.begin(); }
    ~Transfer() { meter_.end(bytes_); }
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    void arrived(int64_t bytes) { bytes_ += bytes; }

   private:
    RateMeter& meter_;
    int64_t bytes_ = 0;
  };

  // Since the last call with enough bytes to tell, else as that call had it; 0: not known.
  double bytes_per_second();

 private:
  void begin();
  void end(int64_t bytes);

  std::mutex mutex_;
  int under_way_ = 0;
  std::chrono::steady_clock::time_point since_;  // while some are
  double busy_seconds_ = 0;
  int64_t bytes_ = 0;
  double rate_ = 0;
};

}  // namespace het
