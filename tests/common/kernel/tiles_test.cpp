#include "common/kernel/tiles.hpp"

#include <limits>

#include "tests/catch.hpp"

using kernel::tiles_of;

TEST_CASE("tiles cover a length, the last one perhaps in part") {
  CHECK(tiles_of(0, 32) == 0);
  CHECK(tiles_of(1, 32) == 1);
  CHECK(tiles_of(31, 32) == 1);
  CHECK(tiles_of(32, 32) == 1);
  CHECK(tiles_of(33, 32) == 2);
  CHECK(tiles_of(7, 1) == 7);
}

TEST_CASE("the longest int is covered without overflow") {
  constexpr int longest = std::numeric_limits<int>::max();
  CHECK(tiles_of(longest, 64) == longest / 64 + 1);
  CHECK(tiles_of(longest, longest) == 1);
  CHECK(tiles_of(longest, 1) == longest);
}
