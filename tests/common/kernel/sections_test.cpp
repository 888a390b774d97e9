#include "common/kernel/sections.hpp"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/catch.hpp"

using kernel::Sections, kernel::TileOfHead;

namespace {

using Order = std::vector<std::pair<int, int>>;  ///< head and tile

Order order_of(const Sections& sections) {
  Order order;
  for (int number = 0; number < sections.tiles * sections.heads; ++number) {
    const TileOfHead item = sections[number];
    order.emplace_back(item.head, item.tile);
  }
  return order;
}

/// The same by loops: section by section, tile by tile, head by head.
Order order_by_loops(const Sections& s) {
  Order order;
  for (int first_head = 0; first_head < s.heads; first_head += s.section)
    for (int tile = 0; tile < s.tiles; ++tile)
      for (int head = first_head; head < first_head + s.section && head < s.heads; ++head) {
        order.emplace_back(head, tile);
      }
  return order;
}

}  // namespace

TEST_CASE("sections have every tile of every head once, in the order of three loops") {
  for (const int tiles : {1, 2, 3, 8})
    for (const int heads : {1, 2, 5, 6, 7, 12})
      for (int section = 1; section <= heads; ++section) {
        CAPTURE(tiles, heads, section);
        // The loops visit each pair once, so that the order's being theirs says that nothing is missing or twice.
        REQUIRE(order_of({tiles, heads, section}) == order_by_loops({tiles, heads, section}));
      }
}

TEST_CASE("with sections of one head a head's tiles follow each other") {
  CHECK(order_of({3, 2, 1}) == Order{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}});
}

TEST_CASE("with one section for all, all heads' first tiles come first") {
  CHECK(order_of({3, 2, 2}) == Order{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}});
}

TEST_CASE("the last section may be cut") {
  CHECK(order_of({2, 5, 3}) == Order{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {2, 1}, {3, 0}, {4, 0}, {3, 1}, {4, 1}});
}

TEST_CASE("a section has as many heads as fit, one at least and all at most") {
  const auto section = [](std::int64_t bytes_of_head, std::int64_t heads) {
    const Sections s = Sections::that_fit(bytes_of_head, 7, heads);
    CHECK(s.tiles == 7);
    CHECK(s.heads == heads);
    return s.section;
  };
  constexpr std::int64_t kAll = Sections::kBytes;
  CHECK(section(kAll / 4, 10) == 4);
  CHECK(section(kAll / 4 + 1, 10) == 3);
  CHECK(section(kAll / 4 - 1, 10) == 4);
  // Too large for one: it has the L2 to itself, such as it is.
  CHECK(section(kAll, 10) == 1);
  CHECK(section(kAll + 1, 10) == 1);
  CHECK(section(std::numeric_limits<std::int64_t>::max(), 10) == 1);
  // Tiny ones, and those that share nothing: no queries, say.
  CHECK(section(kAll / 10, 10) == 10);
  CHECK(section(kAll / 11, 10) == 10);
  CHECK(section(1, 10) == 10);
  CHECK(section(0, 10) == 10);
  CHECK(section(0, 1) == 1);
  CHECK(section(1, std::numeric_limits<int>::max()) == kAll);
}

TEST_CASE("numbers up to the last block that a grid has room for do not overflow") {
  constexpr int kLast = std::numeric_limits<int>::max() - 1;  // of 2³¹ − 1 blocks
  struct Item {
    Sections sections;
    int number, head, tile;
  };
  // Constants: the compiler refuses a computation of them that overflows.
  constexpr Item items[] = {{{1, kLast + 1, 1}, kLast, kLast, 0},
                            {{1, kLast + 1, kLast + 1}, kLast, kLast, 0},
                            {{1, kLast + 1, kLast}, kLast, kLast, 0},
                            {{kLast + 1, 1, 1}, kLast, 0, kLast},
                            // 46340 · 46341 = 2³¹ − 41708.
                            {{46340, 46341, 46341}, 46340 * 46341 - 1, 46340, 46339},
                            {{46340, 46341, 46340}, 46340 * 46341 - 1, 46340, 46339},
                            {{46340, 46341, 46340}, 46340 * 46340 - 1, 46339, 46339},
                            {{46340, 46341, 1}, 46340 * 46341 - 1, 46340, 46339}};
  constexpr auto right = [](const Item& item) {
    const TileOfHead found = item.sections[item.number];
    return found.head == item.head && found.tile == item.tile;
  };
  static_assert(right(items[0]) && right(items[1]) && right(items[2]) && right(items[3]));
  static_assert(right(items[4]) && right(items[5]) && right(items[6]) && right(items[7]));
}
