// Which of several corpora each sample comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace het {

// Shares are exact over every 65,536 samples, and any run of samples has them to within a few: each sample
// comes from the source that lacks most at its place. The order is the same in all such blocks, so that a
// place is found at once, whichever samples were drawn before.
class Mixture {
 public:
  // Weights in any unit; a source of weight 0 has no samples. Throws Error(usage) for a weight below 0 or
  // that is no number, for a share below 1 / 65,536, and where all are 0.
  explicit Mixture(const std::vector<double>& weights);

  struct Place {
    size_t source = 0;
    int64_t sample = 0;  // number among those of the source, from 0
  };
  Place place(int64_t sample) const;

 private:
  std::vector<int64_t> counts_;   // samples of each source in a block
  std::vector<uint16_t> source_;  // of each sample of a block
  std::vector<int32_t> before_;   // samples of that source before it
};

}  // namespace het
