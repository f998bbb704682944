// The next token, drawn from a model's logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace het {

struct DrawOptions {
  double temperature = 1;        // 0: always the likeliest
  std::optional<int64_t> top_k;  // among so many of the likeliest; of equal ones the first counts as likelier
  double top_p = 1;              // among the likeliest that together have this share of the probability
};

// A token id. `uniform`, in [0, 1), decides which. Takes O(n) and a little more for each token it may choose
// among, where it may not choose among all. Throws Error(usage) for logits that are not numbers.
int64_t draw_token(std::span<const float> logits, const DrawOptions& options, double uniform);

}  // namespace het
