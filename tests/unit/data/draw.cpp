#include "core/data/draw.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

// How often each token is drawn when `uniform` goes evenly through [0, 1).
std::map<int64_t, int> draws(const std::vector<float>& logits, const DrawOptions& options,
                             int count = 20'000) {
  std::map<int64_t, int> found;
  for (int i = 0; i < count; ++i) ++found[draw_token(logits, options, (i + 0.5) / count)];
  return found;
}

// The shares that the definition gives, after a sort of everything.
std::map<int64_t, double> shares(const std::vector<float>& logits, const DrawOptions& options) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  order.resize(std::min<size_t>(order.size(), options.top_k.value_or(order.size())));
  const auto weight = [&](int64_t id) {
    return std::exp((double{logits[id]} - logits[order[0]]) / options.temperature);
  };
  double total = 0, sum = 0, kept_total = 0;
  for (const int64_t id : order) total += weight(id);
  size_t kept = 0;
  while (kept < order.size() && (options.top_p >= 1 || sum < options.top_p * total))
    sum += weight(order[kept++]);
  order.resize(kept);
  std::map<int64_t, double> result;
  for (const int64_t id : order) kept_total += weight(id);
  for (const int64_t id : order) result[id] = weight(id) / kept_total;
  return result;
}

}  // namespace

TEST_CASE("tokens are drawn by their shares among the likeliest", "[draw]") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  for (const size_t size : {1u, 2u, 9u, 300u}) {
    std::vector<float> logits(size);
    for (float& logit : logits) logit = std::round(normal(random) * 4) / 4;  // with equal ones among them
    for (const auto& [k, p] : std::vector<std::pair<int64_t, double>>{
             {0, 1}, {1, 1}, {3, 1}, {40, 1}, {400, 1}, {0, 0.5}, {0, 0.01}, {20, 0.9}, {400, 0.999}}) {
      DrawOptions options;
      options.temperature = 0.7;
      options.top_p = p;
      if (k > 0) options.top_k = k;
      INFO("size " << size << ", top_k " << k << ", top_p " << p);
      const auto wanted = shares(logits, options);
      const auto got = draws(logits, options);
      for (const auto& [id, count] : got) CHECK(wanted.count(id) == 1);
      for (const auto& [id, share] : wanted) {
        const auto found = got.find(id);
        CHECK(std::abs((found == got.end() ? 0 : found->second) - share * 20'000) <= 1.01);
      }
    }
  }
}

TEST_CASE("temperature 0 draws the first of the likeliest tokens", "[draw]") {
  DrawOptions options;
  options.temperature = 0;
  CHECK(draws({1, 5, 5, 2}, options, 10) == std::map<int64_t, int>{{1, 10}});
}

TEST_CASE("a token without probability is not drawn", "[draw]") {
  const float never = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits{0, never, 0, never};
  CHECK(draw_token(logits, {}, std::nextafter(1.0, 0.0)) == 2);
  CHECK(draws(logits, {}, 100) == std::map<int64_t, int>{{0, 50}, {2, 50}});
}

TEST_CASE("logits that are no numbers are refused", "[draw]") {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinite = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits :
       {std::vector<float>{1, nan}, std::vector<float>{infinite, 1}, std::vector<float>{-infinite}})
    CHECK_THAT(error_of([&] { draw_token(logits, {}, 0.5); }), Contains("logits are not finite"));
}

TEST_CASE("settings that no draw can be made by are refused", "[draw]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<float> logits{1, 2, 3};
  const auto error = [&](const DrawOptions& options, double uniform) {
    return error_of([&] { draw_token(logits, options, uniform); });
  };
  CHECK_THAT(error_of([] { draw_token({}, {}, 0.5); }),
             Contains("usage: ") && Contains("there are no logits"));
  for (const double temperature : {-1.0, nan})
    CHECK_THAT(error({temperature}, 0.5), Contains("temperature = "));
  for (const int64_t top_k : {0, -7}) CHECK_THAT(error({1, top_k}, 0.5), Contains("top_k = "));
  for (const double top_p : {-0.5, nan}) CHECK_THAT(error({1, {}, top_p}, 0.5), Contains("top_p = "));
  for (const double uniform : {-0.1, 1.0, nan}) CHECK_THAT(error({}, uniform), Contains("uniform = "));
  CHECK(draw_token(logits, {1, {}, 0.0}, 0.5) == 2);
  CHECK(draw_token(logits, {1, int64_t{1} << 50, 1.0}, 0.0) == 0);
}
