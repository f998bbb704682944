// A device slower than the machine: it does the work, then waits until a stated rate is met. Ranks on paced
// devices and shaped links (core/comm/shaped.h) take on one machine the time that a mixed cluster takes, as
// long as the paced rates together stay well below the machine's own.
#pragma once

#include <memory>

#include "core/device/device.h"

namespace het {

struct Pace {
  double flops_per_second = 0;  // 0: not limited
  double bytes_per_second = 0;  // of memory traffic; 0: not limited
  int64_t memory_bytes = 0;     // 0: as much as the machine has
};

// Seconds that one call takes at this pace: the longer of its arithmetic and its memory traffic.
double seconds_at(const Pace& pace, const Cost& cost);

// When paced work is done. The device is busy from one piece of work to the next; only where nothing was
// asked of it for longer than kGap does time pass without work. A piece that takes the machine longer than it
// should leaves the clock behind, and later ones catch up: on the whole the rate is met exactly. Times in
// seconds, of any clock.
class PaceClock {
 public:
  static constexpr double kGap = 100e-6;   // between two pieces that follow each other
  static constexpr double kBehind = 0.25;  // at most so far behind: else the machine is too slow to keep up

  void begin(double now);
  // The work of `seconds` that began has been done by `now`; returns when the device is done with it.
  double end(double now, double seconds);
  // When the device is done with all that it was given.
  double due() const { return due_; }
  // Time by which the machine was too slow to keep up, beyond kBehind.
  double lost() const { return lost_; }
  // Nothing happened until `now`: the wait for what end() returned.
  void waited(double now) { last_ = now; }

 private:
  double due_ = 0, last_ = 0, lost_ = 0;
  bool started_ = false;
};

std::shared_ptr<Device> make_paced(std::shared_ptr<Device> device, const Pace& pace);

// Seconds that a paced device could not make up for: above 0, the machine is slower than the pace. 0 for a
// device that is not paced.
double pace_lost(const Device& device);

}  // namespace het
