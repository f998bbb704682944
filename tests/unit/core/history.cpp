#include "core/plan/history.h"

#include <catch2/catch.hpp>

using namespace het;

TEST_CASE("a version is on a history when the generation that decided its step is the history's",
          "[history]") {
  const History history{{1, 1}, {3, 5}, {4, 9}};
  for (const Version on : {Version{1, 1}, {4, 1}, {5, 3}, {8, 3}, {9, 4}, {100, 4}})
    CHECK(is_on(history, on));
  for (const Version off : {Version{5, 1}, {4, 3}, {9, 3}, {2, 2}, {8, 4}}) CHECK_FALSE(is_on(history, off));
  CHECK(is_on(history, {0, 7}));  // the state before the first step
  CHECK(is_on({}, {0, 0}));
  CHECK_FALSE(is_on({}, {1, 0}));
}

TEST_CASE("a history grows by decided steps, and is cut where a run goes back", "[history]") {
  History history;
  for (int64_t step = 1; step <= 3; ++step) append(history, {step, 1}, 77);
  append(history, {4, 2}, 78);
  CHECK(history == History{{1, 1, 77}, {2, 4, 78}});
  CHECK(up_to(history, {3, 1}) == History{{1, 1, 77}});
  CHECK(up_to(history, {4, 2}) == history);
  CHECK(up_to(history, {0, 0}).empty());
  History again = up_to(history, {2, 1});
  append(again, {3, 3}, 79);
  CHECK(is_on(again, {2, 1}));
  CHECK(is_on(again, {3, 3}));
  CHECK_FALSE(is_on(again, {3, 1}));
}
