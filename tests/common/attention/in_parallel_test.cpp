/// \file
/// Work that is spread over the cores gives what a loop would give.

#include "common/attention/in_parallel.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/catch.hpp"

TEST_CASE("parts cover everything once") {
  for (const int count : {0, 1, 7, 8, 1000}) {
    std::vector<int> seen(static_cast<std::size_t>(count));
    attention::in_parallel_parts(count, 8, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) ++seen[i];
    });
    CHECK(seen == std::vector<int>(static_cast<std::size_t>(count), 1));
  }
}

TEST_CASE("the least index is found, whoever finds one first") {
  constexpr std::int64_t kCount = 10000;
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{4321}, kCount - 1}) {
    CHECK(attention::find_in_parallel(kCount, [&](std::int64_t i) { return i >= first; }) == first);
    CHECK(attention::find_in_parallel(kCount, [&](std::int64_t i) { return i == first; }) == first);
  }
  CHECK(attention::find_in_parallel(kCount, [](std::int64_t) { return false; }) == kCount);
  CHECK(attention::find_in_parallel(0, [](std::int64_t) { return true; }) == 0);
}
